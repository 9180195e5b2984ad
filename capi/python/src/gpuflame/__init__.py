"""GPU flame graphs: every nanosecond of GPU time under the CPU stack that launched it.

Most programs do not need this module, because `gpuflame run python train.py` records them unchanged. Use the module to choose
when to record, to name parts of the program, or to read recordings:

    import gpuflame

    with gpuflame.window("decode"):          # before the first CUDA call, unless gpuflame is injected
        for layer in layers:
            with gpuflame.range("attention"):
                ...
    print(gpuflame.stats())

    gpuflame.read("run.gfr").activities.to_pandas()    # a recording of every call: GPUFLAME_FORMATS=gfr

Files are written when the process exits. GPUFLAME_* environment variables configure them (`gpuflame settings` lists the
variables).
"""

from ._library import Error
from ._read import Run, read
from ._session import Stats, flush, is_active, mark, range, set_output, start, stats, step, stop, version, window

__all__ = ["Error", "Run", "Stats", "flush", "get_include", "is_active", "mark", "range", "read", "set_output", "start",
           "stats", "step", "stop", "version", "window"]


def get_include():
    """Returns the folder that contains gpuflame.h."""
    import os
    from ._library import HERE
    folders = (os.path.join(HERE, "include"), os.path.normpath(os.path.join(HERE, *[os.pardir] * 4, "include")))
    return next((folder for folder in folders if os.path.exists(os.path.join(folder, "gpuflame.h"))), folders[0])


def __getattr__(name):
    """Computes `__version__` on first access, because importing `importlib.metadata` takes milliseconds."""
    if name == "__version__":
        from importlib.metadata import version as installed_version
        return installed_version("gpuflame")
    raise AttributeError("module %r has no attribute %r" % (__name__, name))
