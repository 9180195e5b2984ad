"""held.py LIBRARY: a thread holds Python's lock for a second while another thread launches. Prints the number of
launches."""

import ctypes
import sys
import threading

released, held = ctypes.CDLL(sys.argv[1]), ctypes.PyDLL(sys.argv[1])
thread = threading.Thread(target=released.launch_on)
thread.start()
# The thread makes its first launches before the measurement, because at a first launch gpuflame looks up new functions
# and names.
assert released.wait_for_launches(10)
# This library function is called with Python's lock held, and keeps the lock until it returns.
launched = held.launched_in_a_second()
released.stop()
thread.join()
print(launched)
