"""Launches from Python functions of all kinds. For each launch, the program writes Python's own view of the stack to
frames.txt: a line `KERNEL TAB frames`, root first. Each launch has a different kernel.

    frames.py [PATTERN OF SCENARIOS]
"""

import asyncio
import contextlib
import ctypes
import fnmatch
import functools
import os
import sys
import threading

released, held = ctypes.CDLL("libcuda.so.1"), ctypes.PyDLL("libcuda.so.1")
for library in (released, held):
    library.cuLaunchKernel.argtypes = [ctypes.c_void_p] + [ctypes.c_uint] * 7 + [ctypes.c_void_p] * 3

context, module, stream = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
said = []
lock = threading.Lock()
count = 0


def must(error):
    assert error == 0, error


def prepare():
    device = ctypes.c_int()
    must(released.cuInit(0))
    must(released.cuDeviceGet(ctypes.byref(device), 0))
    must(released.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
    must(released.cuCtxSetCurrent(context))
    must(released.cuModuleLoadData(ctypes.byref(module), b".version 8.0\0"))
    must(released.cuStreamCreate(ctypes.byref(stream), 0))


def note(frame, kernel):
    frames = []
    while frame is not None:
        code = frame.f_code
        name = getattr(code, "co_qualname", code.co_name)
        frames.append("%s (%s:%d)" % (name, os.path.basename(code.co_filename), frame.f_lineno))
        frame = frame.f_back
    with lock:
        said.append("%s\t%s" % (kernel, ";".join(reversed(frames))))


def launch():
    """Launches once with Python's global lock released, and once with the lock held."""
    global count
    for library in (released, held):
        with lock:
            count += 1
            kernel = "k%d_d100" % count
        must(library.cuCtxSetCurrent(context))
        function = ctypes.c_void_p()
        must(library.cuModuleGetFunction(ctypes.byref(function), module, kernel.encode()))
        note(sys._getframe(), kernel); must(library.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, None, None))


def plain():
    launch()


def recursion(depth=40):
    return launch() if depth == 0 else recursion(depth - 1)


class Block:
    def __init__(self, launches=False):
        if launches:
            launch()

    def __call__(self, value):
        return self.forward(value)

    def forward(self, value):
        launch()
        return value

    @property
    def size(self):
        launch()
        return 1

    @staticmethod
    def static():
        launch()

    @classmethod
    def of_class(cls):
        launch()

    def __getattr__(self, name):
        launch()
        return name

    def __lt__(self, other):
        launch()
        return False

    def __enter__(self):
        launch()

    def __exit__(self, *of):
        launch()

    def __del__(self):
        if self.__dict__.get("last"):
            launch()


class Derived(Block):
    def __init__(self):
        super().__init__(True)


def methods():
    block = Block()
    block(1)
    block.size
    block.nothing
    Block.static()
    Block.of_class()
    sorted([block, Block()])
    with block:
        launch()


def inits():
    # The loop runs so often that a Python version which specialises bytecode specialises this function.
    for _ in range(20):
        Block(True)
    Derived()


def finalizers():
    block = Block()
    block.last = True
    del block


def generators():
    def give(count):
        for number in range(count):
            launch()
            yield number

    def through(count):
        yield from give(count)

    list(through(2))
    for _ in give(2):
        launch()
    sum(number for number in give(1) if launch() is None)
    sent = give(3)
    next(sent)
    sent.send(None)


def coroutines():
    async def inner():
        launch()
        await asyncio.sleep(0)
        launch()

    async def items():
        for number in range(2):
            await asyncio.sleep(0)
            launch()
            yield number

    async def outer():
        await inner()
        await asyncio.gather(inner(), inner())
        async for _ in items():
            launch()

    asyncio.run(outer())
    coroutine = inner()
    with contextlib.suppress(StopIteration):
        while True:
            coroutine.send(None)


def comprehensions():
    [launch() for _ in range(2)]
    {launch() for _ in range(1)}
    {number: launch() for number in range(1)}
    list(launch() for _ in range(1))
    [[launch() for _ in range(1)] for _ in range(1)]


def lambdas():
    (lambda: launch())()
    (lambda: (lambda: launch())())()


def callbacks():
    list(map(lambda _: launch(), range(2)))
    sorted([3, 1], key=lambda number: (launch(), number))
    functools.partial(plain)()
    functools.reduce(lambda one, other: launch(), [1, 2])
    min([1, 2], key=lambda number: (launch(), number))
    any(map(lambda _: launch(), [1]))


def called_by_c():
    compare = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)

    def order(one, other):
        launch()
        return 0

    array = (ctypes.c_int * 2)(2, 1)
    ctypes.CDLL(None).qsort(array, 2, 4, compare(order))


def texts():
    exec("launch()\nfor _ in range(1):\n    launch()\n", {"launch": launch})
    eval("launch()", {"launch": launch})
    exec(compile("\n\ndef f():\n\n    launch()\nf()\n", "/made/up/name.py", "exec"), {"launch": launch})
    for number in range(5):
        made = {"launch": launch}
        exec("%sdef made_%d():\n    launch()\n" % ("\n" * number, number), made)
        made["made_%d" % number]()


def exceptions():
    def fails():
        raise ValueError

    try:
        fails()
    except ValueError:
        launch()
        try:
            fails()
        except ValueError:
            launch()
    finally:
        launch()


def contexts():
    @contextlib.contextmanager
    def around():
        launch()
        yield
        launch()

    with around():
        launch()


def decorated():
    def decorate(function):
        @functools.wraps(function)
        def wrapper(*args):
            launch()
            return function(*args)

        return wrapper

    @decorate
    @decorate
    def inner():
        launch()

    inner()


def classes():
    class Made:
        launch()

        class Inner:
            launch()

    class Meta(type):
        def __new__(cls, *args):
            launch()
            return super().__new__(cls, *args)

    class Other(metaclass=Meta):
        pass


def names():
    def größe():
        launch()

    def 大きさ():
        launch()

    def 𝔣():
        launch()

    größe(), 大きさ(), 𝔣()


def threads():
    def work():
        recursion(3)
        generators()

    started = [threading.Thread(target=work) for _ in range(3)]
    [thread.start() for thread in started]
    [thread.join() for thread in started]


def daemons():
    over = threading.Event()

    def work():
        launch()
        over.set()
        threading.Event().wait()

    threading.Thread(target=work, daemon=True).start()
    over.wait()


def traced():
    def trace(frame, event, arg):
        return trace

    sys.settrace(trace)
    try:
        methods()
        generators()
    finally:
        sys.settrace(None)


def long_lines():
    launch() if len(
        "a"
    ) else None
    for _ in range(1): launch(); launch()
    (
        launch(),
        launch(),
    )
    # fmt: off
















































































































































    launch()


def deep():
    recursion(600)


def reused():
    # The code objects of most of these functions are at addresses at which other code objects were before.
    for number in range(300):
        name = "f%d" % (number % 7)
        made = {"launch": launch}
        exec("%sdef %s():\n    %slaunch()\n" % ("\n" * (number % 3), name, "pass;" * (number % 5)), made)
        made[name]()


def reused_classes():
    # Only the qualified names of these functions differ. Some of these names are short, and some are longer than a few
    # machine words.
    for number in range(300):
        name = "%c%s" % (65 + number % 7, "lass" * (1 + number % 3 * 4))
        made = {"launch": launch}
        exec("class %s:\n    def run(self):\n        launch()\n%s().run()\n" % (name, name), made)


SCENARIOS = [
    plain, recursion, methods, inits, finalizers, generators, coroutines, comprehensions, lambdas, callbacks,
    called_by_c, texts, exceptions, contexts, decorated, classes, names, threads, daemons, traced, long_lines, deep,
    reused, reused_classes,
]  # fmt: skip


def main():
    sys.setrecursionlimit(5000)
    prepare()
    pattern = sys.argv[1] if len(sys.argv) > 1 else "*"
    for scenario in SCENARIOS:
        if fnmatch.fnmatch(scenario.__name__, pattern):
            scenario()
            # Run the scenario again, so that gpuflame uses its cached stacks.
            scenario()
    finish()


def finish():
    must(released.cuStreamSynchronize(stream))
    with open("frames.txt", "w", encoding="utf-8") as out:
        out.writelines(line + "\n" for line in said)


if __name__ == "__main__":
    main()
