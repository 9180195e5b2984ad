"""Windows, ranges, steps and statistics: the functions of gpuflame.h for Python."""

import functools
import inspect
import os
import threading
import warnings

from . import _library
from ._library import Error


def start():
    """Opens a window: launches from now on, by any thread, are recorded. Loads the library if it is not in the process, and
    raises Error if recording is not possible. Call it before the first CUDA call if possible."""
    found = _library.library()
    _library.check(found, found.gpuflame_start())


def stop():
    """Closes the window. Work launched in it is followed to its end on the GPU, without waiting for it."""
    found = _library.library()
    _library.check(found, found.gpuflame_stop())


def flush():
    """Collects the work that the GPU has completed so far, so that it is kept if the process is killed later."""
    found = _library.library()
    _library.check(found, found.gpuflame_flush())


def is_active():
    """Returns whether launches are recorded now."""
    found = _library.loaded()
    return found is not None and found.gpuflame_is_active() == 1


def step():
    """Begins the next step of whatever the program repeats. Does nothing if the library is not in the process."""
    found = _library.loaded()
    if found is not None:
        _library.check(found, found.gpuflame_step())


def mark(text):
    """Marks this instant on the timeline of the calling thread. Does nothing if nothing is recorded."""
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

    `launches` = `matched` + `pending` + `outside` + `dropped`; `window_ns` = `busy_ns` + `idle_ns`; `idle_ns` is the sum of
    `idle`, by cause. `top` lists the kernels with the longest total time, as (name, count, ns)."""

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
    """Returns the results of all windows so far, without stopping the recording. Raises Error if nothing is recorded."""
    found = _library.library()
    raw = _library.Statistics()
    raw.size = _library.ctypes.sizeof(raw)
    _library.check(found, found.gpuflame_stats(_library.ctypes.byref(raw)))
    return Stats(raw)


class _Scope:
    """A context manager that is also a decorator: entered for each `with` and each call, on any number of threads at once."""

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
    """`with gpuflame.range("layer 3"):`, or `@gpuflame.range("forward")`: a frame in the stack of everything that the thread
    launches inside.

    Costs about a microsecond. Without the library in the process it does nothing and costs less."""

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
    """`with gpuflame.window():` records the launches of all threads inside it. A name also opens a range on this thread. If
    recording is not possible, it warns once, and the program runs as without it.

    Windows do not nest: if two are open at once, the first one to end closes both."""

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
