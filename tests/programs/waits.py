"""waits.py LIBRARY: launches from nested functions, a generator and a thread. Each of the two threads then waits in the
same line until the program's input ends, so that a test can read its stack from outside."""

import ctypes
import os
import sys
import threading

launch = ctypes.CDLL(sys.argv[1]).launch_once
gate, is_in = threading.Lock(), threading.Lock()


class Block:
    def forward(self):
        launch(); is_in.acquire(); print("waits", flush=True); os.read(0, 1)


def numbers(block):
    for number in range(1):
        yield block.forward()


def step(block):
    return [number for number in numbers(block)]


class Loader:
    def load(self, depth=5):
        if depth:
            return self.load(depth - 1)
        launch(); is_in.release(); gate.acquire()


def main():
    gate.acquire(), is_in.acquire()
    loader = threading.Thread(target=Loader().load)
    loader.start()
    step(Block())
    gate.release()
    loader.join()


main()
