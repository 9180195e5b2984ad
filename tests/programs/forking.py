"""Forks before its first launch, and between launches. The first child can launch; later children run Python functions,
and their launches fail. Writes Python's own view of the stack at each launch, like frames.py.

    forking.py
"""

import os
import sys

sys.dont_write_bytecode = True
import frames  # noqa: E402


def wait(child):
    _, status = os.waitpid(child, 0)
    assert status == 0, status


def child_that_launches():
    os.mkdir("child")
    os.chdir("child")
    frames.prepare()
    frames.recursion(7)
    frames.generators()
    frames.finish()
    sys.exit(0)


def child_of_a_launching_process(depth):
    if depth:
        return child_of_a_launching_process(depth - 1)
    function = frames.ctypes.c_void_p()
    frames.released.cuModuleGetFunction(frames.ctypes.byref(function), frames.module, b"lost_d100")
    frames.released.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, frames.stream, None, None)
    sys.exit(0)


def fork_and_launch(depth):
    if depth:
        return fork_and_launch(depth - 1)
    frames.launch()
    child = os.fork()
    if not child:
        child_of_a_launching_process(3)
    frames.launch()
    wait(child)
    frames.launch()


def main():
    child = os.fork()
    if not child:
        child_that_launches()
    wait(child)
    frames.prepare()
    frames.methods()
    for depth in range(3):
        fork_and_launch(depth)
        frames.generators()
    frames.threads()
    frames.finish()


if __name__ == "__main__":
    main()
