"""harmed.py LIBRARY WHICH WRONG: launches while a word of the interpreter's data about this thread's frames is wrong.

WHICH is the wrong pointer: `thread` is the pointer from the thread's state to its frames; `previous` and `code` are
pointers in the frame that launches. WRONG is the pointer's value: a number, `frame` (the address of this frame),
`bytes` (the address of a bytes object) or `gone` (the address of unmapped memory)."""

import ctypes
import sys

library = ctypes.PyDLL(sys.argv[1])
which, wrong = sys.argv[2:]
library.launch_with.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
this_thread = ctypes.pythonapi.PyGILState_GetThisThreadState
this_thread.restype = ctypes.c_void_p

# Offsets from the headers of each Python version: the offset of the frame pointer in the thread's state (in some
# versions, this pointer is reached through another pointer), and the offsets of two fields of a frame.
THREAD, THROUGH, PREVIOUS, CODE = {
    (3, 9): (24, None, 24, 32),
    (3, 10): (24, None, 24, 32),
    (3, 11): (56, 8, 48, 32),
    (3, 12): (56, 0, 8, 0),
    (3, 13): (72, None, 8, 0),
    (3, 14): (72, None, 8, 0),
    (3, 15): (72, None, 8, 0),
}[sys.version_info[:2]]


def launch():
    place = this_thread() + THREAD
    # This code is not in a function, because a function would have a separate frame.
    if THROUGH is not None:
        place = ctypes.c_uint64.from_address(place).value + THROUGH
    frame = ctypes.c_uint64.from_address(place).value
    if which != "thread":
        place = frame + (PREVIOUS if which == "previous" else CODE)
    other = b"x" * 4096
    if wrong == "gone":
        library.unmapped.restype = ctypes.c_uint64
        value = library.unmapped()
    else:
        value = {"frame": frame, "bytes": id(other) + 64}.get(wrong)
        value = int(wrong, 0) if value is None else value
    library.launch_with(place, value)
    library.launch_once()


def main():
    library.launch_once()
    launch()


main()
