"""Launches 200 kernels, creates a file `ready`, and ends in the way that the argument names.

    interrupted.py sleeping|asyncio|launching|exit|exception|returns|forks

`sleeping` and `asyncio` wait for an interrupt and do not catch it. `launching` launches until the interrupt. `exit`
exits with code 7. `forks` forks while another thread holds the loader's lock of the list of libraries; the child ends
with code 3."""

import asyncio
import ctypes
import os
import pathlib
import sys
import threading
import time
import warnings

sys.dont_write_bytecode = True
import workers  # noqa: E402


def fork_a_child():
    held, is_over = threading.Event(), threading.Event()

    def look(*_):
        held.set()
        is_over.wait()
        return 1

    look = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)(look)
    visitor = threading.Thread(target=ctypes.CDLL(None).dl_iterate_phdr, args=(look, None))
    visitor.start()
    held.wait()
    # Python prints a warning about the fork, which this program makes on purpose.
    warnings.simplefilter("ignore")
    child = os.fork()
    if child == 0:
        sys.exit(3)
    _, status = os.waitpid(child, 0)
    is_over.set()
    visitor.join()
    print("child", status >> 8, status & 127)


def say_so_once_it_waits():
    threading.Timer(0.2, pathlib.Path("ready").touch).start()


async def wait():
    say_so_once_it_waits()
    await asyncio.sleep(120)


def main(how):
    workers.launch(200)
    if how == "asyncio":
        asyncio.run(wait())
    if how == "sleeping":
        say_so_once_it_waits()
        time.sleep(120)
    pathlib.Path("ready").touch()
    if how == "launching":
        workers.launch(1, lambda: False)
    if how == "forks":
        fork_a_child()
    if how == "exit":
        sys.exit(7)
    if how == "exception":
        raise RuntimeError("nobody catches it")


main(sys.argv[1])
