"""Finds the shared library that implements gpuflame.h: the copy in the process, or otherwise the package's own copy."""

import ctypes
import os
import threading
import time

NAME = "libgpuflame.so.0"
HERE = os.path.dirname(os.path.abspath(__file__))
# Folders of the built files in an installed package, and in a clone of the repository. (In a clone, this file is
# capi/python/src/gpuflame/_library.py.)
PLACES = (os.path.join(HERE, "_bin"), os.path.normpath(os.path.join(HERE, *[os.pardir] * 4, "target", "release")))

OK = 0


class Error(RuntimeError):
    """An error that the library reports, as one sentence. `code` is the error code from gpuflame.h."""

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
    """Returns the path of a built file, which is the library or the command."""
    for folder in PLACES:
        path = os.path.join(folder, name)
        if os.path.exists(path):
            return path
    raise Error("%s is missing in %s: install the package again, or run `cargo build --release`"
                % (name, " and ".join(PLACES)))


_lock = threading.Lock()
_found = None
_asked = 0.0


def loaded():
    """Returns the copy of the library that is loaded in this process, or None. Asks the dynamic linker at most once per
    second."""
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
    """Returns the copy of the library that is loaded in this process. If no copy is loaded, loads the package's own
    copy.

    The package's copy is loaded into the global scope. If CUDA injects another copy later, that copy
    forwards its calls to the package's copy."""
    global _found
    with _lock:
        if _found is None:
            _found = _open(NAME, os.RTLD_LAZY | os.RTLD_NOLOAD)
        if _found is None:
            path = place_of("libgpuflame.so")
            _found = _open(path, os.RTLD_NOW | os.RTLD_GLOBAL)
            if _found is None:
                raise Error("cannot load %s; check that it was built for this machine" % path)
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
    """Raises the library's error if `code`, the result of a call, is negative."""
    if code < 0:
        raise Error(found.gpuflame_last_error().decode("utf-8", "replace"), code)
