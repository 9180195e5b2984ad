"""Launches from functions that call each other. Arguments: LIBRARY LAUNCHES"""

import ctypes
import sys

library = ctypes.CDLL(sys.argv[1])


def dig(depth, launch):
    if depth:
        return dig(depth - 1, launch)
    library.launch_step(launch)


for launch in range(int(sys.argv[2])):
    dig(launch % 20, launch)
library.wait_for_all()
