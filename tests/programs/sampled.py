"""Launches from time to time, and otherwise spends its time in known functions; samples must find each function's share of
the time.

    sampled.py loader|comprehensions|extension|held|asyncio|deep SECONDS LIBRARY [refused|sandboxed|crowded|measured]

With `refused`, the kernel refuses perf_event_open, so gpuflame uses a timer instead. With `sandboxed`, the kernel
refuses process_vm_readv. With `crowded`, there are 40 more threads. LIBRARY has the functions `launch_once` and `spin`,
which spins for some milliseconds in C. First, the program prints `starts`. At the end it prints its total CPU time in
ns and, with `measured`, the CPU time of each function."""

import asyncio
import ctypes
import hashlib
import sys
import threading
import time
import zlib

what, seconds, library = sys.argv[1], float(sys.argv[2]), sys.argv[3]
# With `held`, launch calls keep the GIL, so the second thread runs only while the launching thread waits for the GIL.
launch = (ctypes.PyDLL if what == "held" else ctypes.CDLL)(library).launch_once
spin = ctypes.CDLL(library).spin
# Calls of `spin` through this object keep the GIL.
spin_holding = ctypes.PyDLL(library).spin
packed = zlib.compress(bytes(range(256)) * 800, 9)


def unpack(data):
    return zlib.decompress(data)


def decode(data):
    raw = unpack(data)
    total = 0
    for at in range(0, len(raw), 29):
        total += raw[at] * 3 & 0xFF
    return total


def collate(numbers):
    return sorted(number * 7919 % 10007 for number in numbers)


class Loader:
    def __iter__(self):
        while True:
            for _ in range(4):
                timed(decode, packed)
            timed(collate, range(4 * 700))
            yield


def square(number):
    return number * number


def squares(count):
    return [square(number) for number in range(count)]


def evens(count):
    return sum(number for number in range(count) if not number & 1)


def table(count):
    return {number: str(number) for number in range(count)}


def digest(block):
    return hashlib.sha256(block).digest()


def spins_in_c():
    spin(3)


def adds():
    total = 0
    for number in range(40000):
        total += number
    return total


def holds():
    """Holds the GIL while it spins in C and while it computes in Python."""
    began = time.thread_time_ns()
    while not is_over.is_set():
        spin_holding(33)
        timed(keeps_on)
        time.sleep(0.002)
    taken["holds"] = time.thread_time_ns() - began


def keeps_on():
    end = time.thread_time() + 0.0213
    while time.thread_time() < end:
        pass


def works():
    total = 0
    for number in range(80000):
        total += number
    return total


async def parses(number):
    total = 0
    for part in range(9000):
        total += part ^ number
    await asyncio.sleep(0)
    return total


async def encodes(number):
    text = ""
    for part in range(1500):
        text += hex(part * number)
        if not part % 500:
            await asyncio.sleep(0)
    return text


async def serves(end):
    while time.perf_counter() < end:
        launch()
        await asyncio.gather(*(parses(number) for number in range(4)), *(encodes(3) for _ in range(3)))


def deep(calls):
    return deep(calls - 1) if calls else adds()


taken = {}


def timed(function, *arguments):
    if "measured" not in sys.argv:
        return function(*arguments)
    began = time.thread_time_ns()
    # Read the clock before `del result`, because freeing the result takes time too.
    result = function(*arguments)
    nanos = time.thread_time_ns() - began
    del result
    taken[function.__name__] = taken.get(function.__name__, 0) + nanos


def load(batches):
    next(batches)


def run(end):
    if what == "asyncio":
        return asyncio.run(serves(end))
    batches = iter(Loader())
    block = bytes(4_000_000)
    while time.perf_counter() < end:
        launch()
        if what == "loader":
            timed(load, batches)
        elif what == "comprehensions":
            # Each call takes some milliseconds, because gpuflame reads frames up to 0.15 ms after a sample, when a
            # shorter call may have returned.
            timed(squares, 60000), timed(evens, 200000), timed(table, 45000)
        elif what == "extension":
            timed(digest, block), timed(spins_in_c), timed(adds)
        elif what == "held":
            timed(works)
        elif what == "deep":
            timed(deep, 900)


is_over = threading.Event()


def main():
    if "refused" in sys.argv:
        ctypes.CDLL(library).refuse_events()
    if "sandboxed" in sys.argv:
        ctypes.CDLL(library).refuse_reads()
    print("starts", flush=True)
    launch()
    time.sleep(0.1)
    crowd = [threading.Thread(target=is_over.wait) for _ in range(40 if "crowded" in sys.argv else 0)]
    [one.start() for one in crowd]
    other = threading.Thread(target=holds)
    if what == "held":
        other.start()
    began = time.thread_time_ns()
    run(time.perf_counter() + seconds)
    taken["all"] = time.thread_time_ns() - began
    is_over.set()
    if what == "held":
        other.join()
        taken["all"] += taken["holds"]
    print(*(f"{name} {nanos}" for name, nanos in taken.items()), sep="\n")


main()
