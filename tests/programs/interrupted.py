"""Launches 200 kernels, makes a file `ready`, and ends.

    interrupted.py sleeping|asyncio|launching|exit|exception|returns

sleeping, asyncio: waits for an interrupt, which nobody catches. launching: launches on until it comes. exit: with code 7."""

import asyncio
import pathlib
import sys
import time

sys.dont_write_bytecode = True
import workers  # noqa: E402


async def wait():
    pathlib.Path("ready").touch()
    await asyncio.sleep(120)


def main(how):
    workers.launch(200)
    if how == "asyncio":
        asyncio.run(wait())
    pathlib.Path("ready").touch()
    if how == "sleeping":
        time.sleep(120)
    if how == "launching":
        workers.launch(1, lambda: False)
    if how == "exit":
        sys.exit(7)
    if how == "exception":
        raise RuntimeError("nobody catches it")


main(sys.argv[1])
