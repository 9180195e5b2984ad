"""Windows, ranges, steps and statistics: the functions of gpuflame.h for Python."""

import functools
import inspect
import os
import threading
import warnings

from . import _library
from ._library import Error


def start():
    """Opens a window: launches that any thread makes after this call are recorded. Loads the library if it is not in the
    process. Raises Error if recording is not possible. If possible, call this function before the first CUDA call."""
    found = _library.library()
    _library.check(found, found.gpuflame_start())


def stop():
    """Closes the window. GPU work launched in the window is tracked until it ends. This function does not wait for
    the GPU."""
    found = _library.library()
    _library.check(found, found.gpuflame_stop())


def flush():
    """Collects the records of the GPU work that has completed so far, so that they survive if the process is killed later."""
    found = _library.library()
    _library.check(found, found.gpuflame_flush())


def is_active():
    """Returns whether launches are currently recorded."""
    found = _library.loaded()
    return found is not None and found.gpuflame_is_active() == 1


def step():
    """Begins the next step: one iteration of the program's main loop. Does nothing if the library is not in the process."""
    found = _library.loaded()
    if found is not None:
        _library.check(found, found.gpuflame_step())


def mark(text):
    """Marks the current instant on the timeline of the calling thread. Does nothing if nothing is being recorded."""
    found = _library.loaded()
    if found is not None:
        found.gpuflame_mark(_bytes(text))


def set_output(prefix):
    """Overrides GPUFLAME_OUTPUT for all files that are not written yet. Raises Error while a window is open."""
    prefix = os.fsencode(prefix)
    if b"\0" in prefix:
        raise ValueError("a file name cannot contain a zero byte")
    found = _library.library()
    _library.check(found, found.gpuflame_set_output(prefix))


def version():
    """Returns the version of the library."""
    return _library.library().gpuflame_version().decode()


def _bytes(text):
    return str(text).encode("utf-8", "surrogateescape").replace(b"\0", b" ")


class Stats:
    """Results of a run so far.

    `launches` = `matched` + `pending` + `outside` + `dropped`, and `window_ns` = `busy_ns` + `idle_ns`. `idle` contains the
    idle time in ns of each cause, and `idle_ns` is their sum. `top` lists the kernels with the longest total time, as
    (name, count, ns)."""

    FIELDS = ("windows", "steps", "launches", "matched", "pending", "outside", "dropped", "activities", "gpus", "window_ns",
              "busy_ns", "idle_ns", "kernels")
    CAUSES = ("host_late", "launch_latency", "dependency", "unknown", "opening", "closing")

    def __init__(self, raw):
        for name in self.FIELDS:
            setattr(self, name, getattr(raw, name))
        self.idle = {name: getattr(raw, name) for name in self.CAUSES}
        self.top = [(kernel.name.decode("utf-8", "replace"), kernel.count, kernel.ns) for kernel in raw.top if kernel.count]

    def __repr__(self):
        fields = ", ".join("%s=%r" % (name, getattr(self, name)) for name in self.FIELDS + ("idle", "top"))
        return "Stats(%s)" % fields


def stats():
    """Returns the results of all windows so far. Recording continues. Raises Error if there is no recording session."""
    found = _library.library()
    raw = _library.Statistics()
    raw.size = _library.ctypes.sizeof(raw)
    _library.check(found, found.gpuflame_stats(_library.ctypes.byref(raw)))
    return Stats(raw)


class _Scope:
    """A context manager that is also a decorator. Each `with` block and each call of a decorated function enters the
    context manager. Any number of threads may do so at the same time."""

    def __call__(self, function):
        if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
            raise TypeError("%s can suspend, so other work of its thread would be counted as part of it: use `with` around "
                            "code that does not await or yield" % function.__qualname__)

        @functools.wraps(function)
        def inside(*arguments, **named):
            with self:
                return function(*arguments, **named)

        return inside


class range(_Scope):
    """`with gpuflame.range("layer 3"):`, or `@gpuflame.range("forward")`, adds a frame to the stack of everything that the
    thread launches inside the range.

    A range costs about a microsecond. If the library is not in the process, a range does nothing and costs less."""

    def __init__(self, name):
        self._name = _bytes(name)
        self._open = threading.local()

    def __enter__(self):
        found = _library.loaded()
        pushed = found is not None and found.gpuflame_range_push(self._name) == _library.OK
        opened = self._open.__dict__.setdefault("opened", [])
        opened.append(pushed)
        return self

    def __exit__(self, *_):
        if self._open.opened.pop():
            _library.loaded().gpuflame_range_pop()


class window(_Scope):
    """`with gpuflame.window():` records what all threads launch while the block runs. If a name is given, the window also
    opens a range with this name on this thread. If recording is not possible, one warning is printed, and the program runs
    unchanged.

    Windows do not nest. If two windows are open at the same time, the window that ends first closes both."""

    _has_warned = False

    def __init__(self, name=None):
        self._range = None if name is None else range(name)

    def __enter__(self):
        try:
            start()
        except Error as error:
            if not window._has_warned:
                window._has_warned = True
                warnings.warn("gpuflame does not record: %s" % error, RuntimeWarning, stacklevel=2)
        if self._range is not None:
            self._range.__enter__()
        return self

    def __exit__(self, *_):
        if self._range is not None:
            self._range.__exit__()
        if is_active():
            stop()
