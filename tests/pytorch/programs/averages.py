"""Runs a program under PyTorch's profiler, and writes its trace and its table `key_averages`: averages.py TRACE TABLE PROGRAM [ARGS]"""

import json
import pathlib
import runpy
import sys

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

trace, table, program, *args = sys.argv[1:]
path = str(pathlib.Path(__file__).with_name(program))
sys.argv = [path, *args]
sys.path.insert(0, str(pathlib.Path(__file__).parent))
torch.cuda.init()
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
    runpy.run_path(path, run_name="__main__")
profiler.export_chrome_trace(trace)
rows = [
    {
        "name": row.key,
        "on_gpu": row.device_type == DeviceType.CUDA,
        "is_annotation": row.is_user_annotation,
        "count": row.count,
        "self_us": row.self_device_time_total,
        "total_us": row.device_time_total,
    }
    for row in profiler.key_averages()
]
pathlib.Path(table).write_text(json.dumps(rows))
