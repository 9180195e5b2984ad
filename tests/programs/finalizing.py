"""The interpreter ends while daemon threads launch on. LIBRARY"""

import ctypes
import sys
import threading

library = ctypes.CDLL(sys.argv[1])


def work(depth):
    # What Python keeps of the frames of a deep stack it gives back to the system at its end.
    return library.launch_on() if depth == 0 else work(depth - 1)


for depth in (0, 5, 50, 400):
    threading.Thread(target=work, args=(depth,), daemon=True).start()
assert library.wait_for_launches(200)
