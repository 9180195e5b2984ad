"""The manager of windows by a flag, step by step: python manager.py FOLDER. What is launched in each window is counted by hand."""

import contextlib
import ctypes
import glob
import json
import os
import sys
import threading
import time
import types

FOLDER = os.path.abspath(sys.argv[1])
FLAG = os.path.join(FOLDER, "flag")
os.environ.update(VLLM_CHAKRA_TRACE_DIR=FOLDER, VLLM_CHAKRA_FLAG=FLAG, VLLM_CHAKRA_TRACE_MAX_STEPS="2",
                  VLLM_CHAKRA_SYNC_CUDA="YES", VLLM_CHAKRA_WITH_STACK="1")

# Stands for PyTorch, and notes the order of the calls.
ORDER = []


class ExecutionTraceObserver:
    def register_callback(self, path):
        self.path = path

    def start(self):
        ORDER.append("start")

    def stop(self):
        ORDER.append("stop")
        with open(self.path, "w") as file:
            json.dump({"schema": "1.1.1"}, file)

    def unregister_callback(self):
        ORDER.append("unregister")


class Profile:
    """Stands for PyTorch's profiler: one operator, which lasts from the start to the end of the profile."""

    def __init__(self, **options):
        # Shapes are on by default.
        assert (options["use_kineto"], options["record_shapes"], options["with_stack"]) == (True, True, True), options

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


# A day ago, so that a double has the nanoseconds.
BASE = time.time_ns() - 86_400 * 10 ** 9

if "--with-torch" in sys.argv:
    torch = types.ModuleType("torch")
    torch.autograd = types.ModuleType("torch.autograd")
    torch.autograd.profiler = types.SimpleNamespace(profile=Profile, record_function=contextlib.nullcontext)
    torch.distributed = types.SimpleNamespace(is_available=lambda: False)
    torch.profiler = types.ModuleType("torch.profiler")
    torch.profiler.ExecutionTraceObserver = ExecutionTraceObserver
    torch.cuda = types.SimpleNamespace(is_available=lambda: True, synchronize=lambda: ORDER.append("synchronize"))
    sys.modules.update({"torch": torch, "torch.profiler": torch.profiler, "torch.autograd": torch.autograd})
else:
    sys.modules["torch"] = None  # even if PyTorch is installed

from chakra_trace.manager import ChakraTraceManager, get_global_manager  # noqa: E402

manager = get_global_manager()
assert manager is get_global_manager() and isinstance(manager, ChakraTraceManager)
manager.tick_by_flag()
cuda = ctypes.CDLL("libcudart.so")
cuda.cudaMemsetAsync.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p]
memory = ctypes.c_void_p()
assert cuda.cudaMalloc(ctypes.byref(memory), ctypes.c_size_t(4096)) == 0


def fill(count):
    for _ in range(count):
        assert cuda.cudaMemsetAsync(memory, 0, 4096, None) == 0


def touch():
    with open(FLAG, "w"):
        pass


def windows():
    """Calls and fills of each window, in their order."""
    found = []
    for path in sorted(glob.glob(os.path.join(FOLDER, "kineto_*.json")), key=lambda path: int(path[:-5].rsplit("_")[-1])):
        with open(path) as file:
            events = json.load(file)["traceEvents"]
        calls = [event for event in events if event.get("cat") == "cuda_runtime"]
        assert all("cudaMemsetAsync" in event["args"]["stack"] for event in calls), calls[:1]
        if "--with-torch" in sys.argv:
            started = [event for event in events if event["ph"] == "X" and "correlation" in event["args"]]
            assert {event["args"]["External id"] for event in started} == {7}, started[:3]
        found.append((len(calls), sum(event.get("cat") == "gpu_memset" for event in events)))
    return found


fill(1)  # before every window
manager.tick_by_flag()
assert not manager.active and windows() == []

# The program makes as many steps as are allowed; then the flag file still exists, and the window stays closed.
touch()
manager.tick_by_flag()
assert manager.active
fill(3)
manager.tick_by_flag()
assert not manager.active
for _ in range(5):
    fill(1)
    manager.tick_by_flag()
assert not manager.active and windows() == [(3, 3)], windows()

# The flag file is created anew between two checks, which opens a new window.
os.remove(FLAG)
touch()
manager.tick_by_flag()
assert manager.active
fill(4)
os.remove(FLAG)
touch()
os.utime(FLAG, ns=(1, 1))  # the same moment may be the same file
manager.tick_by_flag()
assert manager.active and windows() == [(3, 3), (4, 4)], windows()
fill(5)
os.remove(FLAG)
manager.tick_by_flag()
assert not manager.active and windows() == [(3, 3), (4, 4), (5, 5)], windows()

# A folder does not count as a flag file, and without a window neither stop nor step has an effect.
os.mkdir(FLAG)
manager.tick_by_flag()
manager.stop()
manager.step()
assert not manager.active and len(windows()) == 3

# A window that was opened by hand is still open at the exit, which writes it. A child process does not write it.
manager.start()
fill(6)
manager.step()
if os.fork() == 0:
    sys.exit(0)
assert os.wait()[1] == 0 and len(windows()) == 3
if "--with-torch" in sys.argv:
    # Each observer ends before its timeline is made; steps wait for the GPU.
    one = ["start", "profile", "synchronize", "synchronize", "stop", "unregister", "profiled"]
    assert ORDER[:7] == one, ORDER
    assert len(glob.glob(os.path.join(FOLDER, "pytorch_et_*.json"))) == 3
print("3 windows, and one is open")
