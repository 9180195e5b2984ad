"""The shared library, as C has it (gpuflame.h): the copy that is in the process, or the package's own."""

import ctypes
import os
import threading
import time

NAME = "libgpuflame.so.0"
HERE = os.path.dirname(os.path.abspath(__file__))
# As installed, and in a clone, where this file is capi/python/src/gpuflame/_library.py.
PLACES = (os.path.join(HERE, "_bin"), os.path.normpath(os.path.join(HERE, *[os.pardir] * 4, "target", "release")))

OK = 0


class Error(RuntimeError):
    """What the library refused, in a sentence. `code` is the number that gpuflame.h names."""

    def __init__(self, message, code=0):
        super().__init__(message)
        self.code = code


class Kernel(ctypes.Structure):
    _fields_ = [("count", ctypes.c_uint64), ("ns", ctypes.c_uint64), ("name", ctypes.c_char * 240)]


class Statistics(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in (
        "size", "windows", "steps", "launches", "matched", "pending", "outside", "dropped", "activities", "gpus", "window_ns",
        "busy_ns", "idle_ns", "host_late", "launch_latency", "dependency", "unknown", "opening", "closing", "kernels")]
    _fields_.append(("top", Kernel * 8))


def place_of(name):
    """Where a file lies that is built: the library or the command."""
    for folder in PLACES:
        path = os.path.join(folder, name)
        if os.path.exists(path):
            return path
    raise Error("there is no %s in %s: install the package again, or build it with `cargo build --release`"
                % (name, " nor in ".join(PLACES)))


_lock = threading.Lock()
_found = None
_asked = 0.0


def loaded():
    """The copy that is in this process, however it came in, or None. The loader is asked at most once a second."""
    global _found, _asked
    if _found is None:
        now = time.monotonic()
        if now - _asked < 1.0:
            return None
        with _lock:
            _asked = now
            if _found is None:
                _found = _open(NAME, os.RTLD_LAZY | os.RTLD_NOLOAD)
    return _found


def library():
    """The copy that is in this process, or the package's own, which is loaded now.

    It is loaded for all to see: if CUDA is told to inject another copy later, that one leaves the work to this."""
    global _found
    with _lock:
        if _found is None:
            _found = _open(NAME, os.RTLD_LAZY | os.RTLD_NOLOAD)
        if _found is None:
            path = place_of("libgpuflame.so")
            _found = _open(path, os.RTLD_NOW | os.RTLD_GLOBAL)
            if _found is None:
                raise Error("%s cannot be loaded: is it for this machine?" % path)
        return _found


def _open(name, mode):
    try:
        found = ctypes.CDLL(name, mode=mode)
    except OSError:
        return None
    found.gpuflame_version.restype = found.gpuflame_last_error.restype = ctypes.c_char_p
    for function in ("range_push", "mark", "set_output"):
        getattr(found, "gpuflame_" + function).argtypes = [ctypes.c_char_p]
    found.gpuflame_stats.argtypes = [ctypes.POINTER(Statistics)]
    return found


def check(found, code):
    """Raises what the library says of a call that returned `code`."""
    if code < 0:
        raise Error(found.gpuflame_last_error().decode("utf-8", "replace"), code)
