"""Launches from functions of the main interpreter and, between these launches, from functions of two other
interpreters. Writes Python's own view of the stack at each launch, like frames.py; each interpreter sees only its own
functions.

    subinterpreters.py
"""

import os
import sys

sys.dont_write_bytecode = True
import frames  # noqa: E402

try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters

FOLDER = os.path.dirname(os.path.abspath(__file__))
# Each interpreter numbers its own kernels. Each interpreter starts at a different number, so that the numbers of two
# interpreters do not overlap.
CODE = """
import sys
sys.dont_write_bytecode = True
sys.path.insert(0, {folder!r})
import frames
frames.count = {first}
frames.prepare()
def inside(depth):
    if depth:
        return inside(depth - 1)
    frames.plain()
    frames.generators()
inside({depth})
frames.must(frames.released.cuStreamSynchronize(frames.stream))
with open("inside.txt", "a", encoding="utf-8") as out:
    out.writelines(line + "\\n" for line in frames.said)
"""


def create():
    """Creates an interpreter in which ctypes can be imported."""
    for arguments, keywords in [(("legacy",), {}), ((), {"isolated": False}), ((), {})]:
        try:
            return interpreters.create(*arguments, **keywords)
        except TypeError:
            pass


def outside(interpreter, code):
    frames.plain()
    error = interpreters.run_string(interpreter, code)
    assert error is None, error
    frames.plain()


def main():
    frames.prepare()
    for number in (1, 2):
        interpreter = create()
        for again in (0, 1):
            first = 1000 * number + 500 * again
            outside(interpreter, CODE.format(folder=FOLDER, first=first, depth=number))
            frames.methods()
        interpreters.destroy(interpreter)
    frames.plain()
    frames.finish()


if __name__ == "__main__":
    main()
