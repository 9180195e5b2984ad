"""finalizing.py LIBRARY: Python's interpreter ends while daemon threads still launch."""

import ctypes
import sys
import threading

library = ctypes.CDLL(sys.argv[1])


def work(depth):
    # When the interpreter ends, it frees the memory in which it stores the frames of a deep stack.
    return library.launch_on() if depth == 0 else work(depth - 1)


for depth in (0, 5, 50, 400):
    threading.Thread(target=work, args=(depth,), daemon=True).start()
assert library.wait_for_launches(200)
