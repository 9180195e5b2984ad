"""The interpreter ends while daemon threads still launch. LIBRARY"""

import ctypes
import sys
import threading

library = ctypes.CDLL(sys.argv[1])


def work(depth):
    # At its end Python returns to the system the memory that it keeps for the frames of a deep stack.
    return library.launch_on() if depth == 0 else work(depth - 1)


for depth in (0, 5, 50, 400):
    threading.Thread(target=work, args=(depth,), daemon=True).start()
assert library.wait_for_launches(200)
