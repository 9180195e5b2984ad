"""LIBRARY: launches from a loop that runs often enough to be compiled, and prints how often it was compiled."""

import ctypes
import sys

launch, is_active = ctypes.CDLL(sys.argv[1]).launch_once, sys._jit.is_active


def loop(count):
    active = 0
    for _ in range(count):
        active += is_active(); launch()
    return active


def main():
    print(loop(8000))


main()
