"""Runs a program under PyTorch's own profiler: witness.py TRACE PROGRAM [stacks]"""

import pathlib
import runpy
import sys

import torch
from torch.profiler import ProfilerActivity, profile

trace, program, *stacks = sys.argv[1:]
sys.path.insert(0, str(pathlib.Path(__file__).parent))
torch.cuda.init()
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], with_stack=bool(stacks)) as profiler:
    runpy.run_path(str(pathlib.Path(__file__).with_name(program)), run_name="__main__")
profiler.export_chrome_trace(trace)
