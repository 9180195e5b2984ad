"""Runs a program under PyTorch's own profiler: witness.py [--stacks] TRACE PROGRAM [ARGS]"""

import pathlib
import runpy
import sys

import torch
from torch.profiler import ProfilerActivity, profile

stacks = "--stacks" in sys.argv[:2]
trace, program, *args = sys.argv[1 + stacks :]
path = str(pathlib.Path(__file__).with_name(program))
sys.argv = [path, *args]
sys.path.insert(0, str(pathlib.Path(__file__).parent))
torch.cuda.init()
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], with_stack=stacks) as profiler:
    runpy.run_path(path, run_name="__main__")
profiler.export_chrome_trace(trace)
