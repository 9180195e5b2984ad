"""A thread holds Python's lock until another has launched on. LIBRARY"""

import ctypes
import sys
import threading

released, held = ctypes.CDLL(sys.argv[1]), ctypes.PyDLL(sys.argv[1])
thread = threading.Thread(target=released.launch_on)
thread.start()
# The first launches, in which what is new is looked up.
assert released.wait_for_launches(10)
done = held.wait_for_launches(1000)
released.stop()
thread.join()
assert done, "nothing was launched while the lock was held"
