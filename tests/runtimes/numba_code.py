"""Launches from machine code that Numba's compiler makes while the program runs. The launches are in functions that
call each other and themselves, and in a callback of a C function. Arguments: LIBRARY LAUNCHES"""

import ctypes
import sys

import numba

library = ctypes.CDLL(sys.argv[1])
launches = int(sys.argv[2])
launch_step = library.launch_step
launch_step.argtypes, launch_step.restype = [ctypes.c_int], None


@numba.njit
def dig(depth, launch):
    if depth > 0:
        return dig(depth - 1, launch) + 1
    launch_step(launch)
    return 0


@numba.njit
def work(launches):
    depth = 0
    for launch in range(launches):
        depth += dig(launch % 20, launch)
    return depth


@numba.cfunc("int32(int32)")
def called_back(launch):
    launch_step(launch)
    return launch


def main():
    assert work(launches) == sum(launch % 20 for launch in range(launches))
    call = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(called_back.address)
    for launch in range(launches):
        call(launch)
    library.wait_for_all()


main()
