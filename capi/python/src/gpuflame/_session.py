"""When to record, and what is done: what gpuflame.h has, as Python writes it."""

import functools
import inspect
import os
import threading
import warnings

from . import _library
from ._library import Error


def start():
    """Opens a window: what any thread launches from now on is recorded. Loads the library if it is not in the process, and
    raises Error where nothing can be recorded. Best before the first CUDA call."""
    found = _library.library()
    _library.check(found, found.gpuflame_start())


def stop():
    """Closes the window. What was launched in it is followed to its end; nobody waits for that."""
    found = _library.library()
    _library.check(found, found.gpuflame_stop())


def flush():
    """Collects what the GPU has completed so far, also for the recording of a process that is killed later."""
    found = _library.library()
    _library.check(found, found.gpuflame_flush())


def is_active():
    """Whether what is launched now is recorded."""
    found = _library.loaded()
    return found is not None and found.gpuflame_is_active() == 1


def step():
    """Says that another step begins, of whatever the program repeats. Does nothing where the library is not."""
    found = _library.loaded()
    if found is not None:
        _library.check(found, found.gpuflame_step())


def mark(text):
    """Marks this instant on the timeline of the calling thread. Does nothing where nothing is recorded."""
    found = _library.loaded()
    if found is not None:
        found.gpuflame_mark(_bytes(text))


def set_output(prefix):
    """Has the files go elsewhere than GPUFLAME_OUTPUT says: those that are not written yet. Not while a window is open."""
    prefix = os.fsencode(prefix)
    if b"\0" in prefix:
        raise ValueError("no name of a file has a zero byte in it")
    found = _library.library()
    _library.check(found, found.gpuflame_set_output(prefix))


def version():
    """The version of the library."""
    return _library.library().gpuflame_version().decode()


def _bytes(text):
    return str(text).encode("utf-8", "surrogateescape").replace(b"\0", b" ")


class Stats:
    """What a run comes to so far.

    `launches` = `matched` + `pending` + `outside` + `dropped`; `window_ns` = `busy_ns` + `idle_ns`; `idle_ns` is the sum of
    `idle`, by cause. `top` has the kernels that took most time, as (name, count, ns)."""

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
    """What all windows come to so far, without stopping anything. Raises Error where nothing is recorded."""
    found = _library.library()
    raw = _library.Statistics()
    raw.size = _library.ctypes.sizeof(raw)
    _library.check(found, found.gpuflame_stats(_library.ctypes.byref(raw)))
    return Stats(raw)


class _Scope:
    """`with scope:`, and `@scope` on a function: once for each time, also on several threads at once."""

    def __call__(self, function):
        if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
            raise TypeError("%s may stop in its middle, and other work of its thread would count as its own: use `with` "
                            "around what does not await or yield" % function.__qualname__)

        @functools.wraps(function)
        def inside(*arguments, **named):
            with self:
                return function(*arguments, **named)

        return inside


class range(_Scope):
    """`with gpuflame.range("layer 3"):`, or `@gpuflame.range("forward")`: a frame of all that the thread launches in it.

    Costs about a microsecond; where the library is not in the process, less, and it does nothing."""

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
    """`with gpuflame.window():` records what is launched in it, by any thread; with a name that is also a range of the
    thread. Where nothing can be recorded it warns once, and the program runs as without it.

    Windows do not nest: of two that are open at once, the first to end closes both."""

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
