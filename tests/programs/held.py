"""A thread holds Python's lock for a second while another thread launches; prints the number of launches. LIBRARY"""

import ctypes
import sys
import threading

released, held = ctypes.CDLL(sys.argv[1]), ctypes.PyDLL(sys.argv[1])
thread = threading.Thread(target=released.launch_on)
thread.start()
# The first launches come before the measurement, because at a first launch gpuflame looks up new functions and names.
assert released.wait_for_launches(10)
# A library function that is called with the lock held keeps the lock until it returns.
launched = held.launched_in_a_second()
released.stop()
thread.join()
print(launched)
