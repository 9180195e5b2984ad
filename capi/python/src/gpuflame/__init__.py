"""GPU flame graphs: every nanosecond of GPU time under the CPU stack that launched it.

Most programs need none of this: `gpuflame run python train.py` records them as they are. This module is for those that want
to say when to record, name what they do, or read what was recorded:

    import gpuflame

    with gpuflame.window("decode"):          # before the first CUDA call, or where gpuflame is injected
        for layer in layers:
            with gpuflame.range("attention"):
                ...
    print(gpuflame.stats())

    gpuflame.read("run.gfr").activities.to_pandas()

Files are written when the process exits, as the GPUFLAME_* variables say (`gpuflame settings`).
"""

from ._library import Error
from ._read import Run, read
from ._session import Stats, flush, is_active, mark, range, set_output, start, stats, step, stop, version, window

__all__ = ["Error", "Run", "Stats", "flush", "get_include", "is_active", "mark", "range", "read", "set_output", "start",
           "stats", "step", "stop", "version", "window"]


def get_include():
    """The folder of gpuflame.h."""
    import os
    from ._library import HERE
    folders = (os.path.join(HERE, "include"), os.path.normpath(os.path.join(HERE, *[os.pardir] * 4, "include")))
    return next((folder for folder in folders if os.path.exists(os.path.join(folder, "gpuflame.h"))), folders[0])
