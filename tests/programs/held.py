"""A thread holds Python's lock for a second while another launches on; says how often that did. LIBRARY"""

import ctypes
import sys
import threading

released, held = ctypes.CDLL(sys.argv[1]), ctypes.PyDLL(sys.argv[1])
thread = threading.Thread(target=released.launch_on)
thread.start()
# The first launches, in which what is new is looked up.
assert released.wait_for_launches(10)
# A function of a library that is called with the lock keeps it until it returns.
launched = held.launched_in_a_second()
released.stop()
thread.join()
print(launched)
