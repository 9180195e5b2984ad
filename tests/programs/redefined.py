"""Defines, redefines and deletes functions, so that nearly every function has the address of an earlier function.
Launches from each new function immediately, and from some functions again later. Writes Python's own view of the stack
at each launch, like frames.py.

    redefined.py LAUNCHES SEED
"""

import random
import sys

sys.dont_write_bytecode = True
import frames  # noqa: E402

NAMES = ["step", "forward", "backward", "update"]
BODIES = [
    "    launch()\n",
    "    pass\n    launch()\n",
    "    pass; launch()\n    pass\n",
    "    for _ in range(1):\n        launch()\n",
    "    (lambda: launch())()\n",
    "    [launch() for _ in range(1)]\n",
    "    def inner():\n        launch()\n    inner()\n",
    "    if depth:\n        return {name}(depth - 1)\n    launch()\n",
    "    try:\n        launch()\n    finally:\n        pass\n",
    "    x = (1,\n         2)\n    launch()\n    return x\n",
    "    yield launch()\n",
]
FILES = ["/a/model.py", "/b/model.py", "<cell 1 of 2>", "<cell 2 of 2>", "/a/layers/model.py"]


def made(random):
    """Returns a function in a module of its own; nothing else refers to this module."""
    name, body = random.choice(NAMES), random.choice(BODIES)
    text = "\n" * random.randrange(3) + "def {name}(depth=1):\n" + "    pass\n" * random.randrange(3) + body
    space = {"launch": frames.launch}
    exec(compile(text.format(name=name), random.choice(FILES), "exec"), space)
    return space.pop(name) if "return {name}" not in body else space[name]


def call(function):
    result = function()
    if result is not None and hasattr(result, "__next__"):
        list(result)


def main():
    launches, seed = int(sys.argv[1]), int(sys.argv[2])
    choose = random.Random(seed)
    frames.prepare()
    kept = []
    while len(frames.said) < launches:
        function = made(choose)
        call(function)
        if choose.random() < 0.3:
            kept.append(function)
        if kept and choose.random() < 0.5:
            call(choose.choice(kept))
        while len(kept) > 8:
            kept.pop(choose.randrange(len(kept)))
        # Replace the function's code.
        if kept and choose.random() < 0.2:
            other = made(choose)
            one = choose.choice(kept)
            if not one.__code__.co_freevars and not other.__code__.co_freevars:
                one.__code__ = other.__code__
                one.__globals__.update(other.__globals__)
    frames.finish()


main()
