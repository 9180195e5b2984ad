"""A stand-in for PyTorch. The execution trace and the profile that it makes have one operator, which lasts as long as
the window."""

import contextlib
import json
import os
import sys
import threading
import time
import types

# Whether the caller must request stacks from the profiler, and the operator's `rf_id` in the execution trace.
WITH_STACK, RF_ID = False, 3

# Names of the functions that have been called so far, in order.
ORDER = []


class ExecutionTraceObserver:
    def register_callback(self, path):
        self.path = path

    def start(self):
        ORDER.append("start")

    def stop(self):
        ORDER.append("stop")
        with open(self.path, "w") as file:
            json.dump(execution_trace(), file)

    def unregister_callback(self):
        ORDER.append("unregister")


def execution_trace():
    """Returns an execution trace with one operator, `op`, below the root nodes of the process and the thread."""
    def node(number, name, parent, rf_id):
        values = {"values": [], "shapes": [], "types": []}
        attributes = [{"name": "rf_id", "type": "uint64", "value": rf_id}, {"name": "tid", "type": "uint64", "value": 1}]
        return {"id": number, "name": name, "ctrl_deps": parent, "inputs": values, "outputs": values, "attrs": attributes}

    root = "[pytorch|profiler|execution_trace|%s]"
    nodes = [node(1, root % "process", 1, 0), node(2, root % "thread", 1, 0), node(3, "op", 2, RF_ID)]
    return {"schema": "1.1.1-chakra.0.0.4", "pid": os.getpid(), "time": "", "start_ts": 1, "nodes": nodes}


class Profile:
    """A stand-in for PyTorch's profiler. Its profile has one operator, which lasts as long as the profile."""

    def __init__(self, **options):
        # By default, the caller requests shapes.
        assert (options["use_kineto"], options["record_shapes"], options["with_stack"]) == (True, True, WITH_STACK), options

    def __enter__(self):
        self.began = time.time_ns()
        ORDER.append("profile")

    def __exit__(self, *_):
        self.ended = time.time_ns()
        ORDER.append("profiled")

    def export_chrome_trace(self, path):
        args = {"External id": 7, "Record function id": 3, "Input Dims": [[2]]}
        operator = {"ph": "X", "cat": "cpu_op", "name": "op", "pid": os.getpid(), "tid": threading.get_native_id(),
                    "ts": (self.began - BASE) / 1000, "dur": (self.ended - self.began) / 1000, "args": args}
        with open(path, "w") as file:
            json.dump({"baseTimeNanoseconds": BASE, "traceEvents": [operator]}, file)


# The base time of the trace is the time one day ago. Times relative to that base time are so small that a double is
# precise to the nanosecond.
BASE = time.time_ns() - 86_400 * 10 ** 9


def install():
    torch = types.ModuleType("torch")
    torch.autograd = types.ModuleType("torch.autograd")
    torch.autograd.profiler = types.SimpleNamespace(profile=Profile, record_function=contextlib.nullcontext)
    torch.distributed = types.SimpleNamespace(is_available=lambda: False)
    torch.profiler = types.ModuleType("torch.profiler")
    torch.profiler.ExecutionTraceObserver = ExecutionTraceObserver
    torch.cuda = types.SimpleNamespace(is_available=lambda: True, synchronize=lambda: ORDER.append("synchronize"))
    sys.modules.update({"torch": torch, "torch.profiler": torch.profiler, "torch.autograd": torch.autograd})
