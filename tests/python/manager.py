"""Uses the manager of flag-file windows step by step: python manager.py FOLDER [--with-torch [--foreign]]. The launches
in each window are counted by hand. With --foreign, the execution traces are from another run."""

import ctypes
import glob
import json
import os
import sys

import stub_torch
from stub_torch import ORDER

FOLDER = os.path.abspath(sys.argv[1])
FLAG = os.path.join(FOLDER, "flag")
os.environ.update(VLLM_CHAKRA_TRACE_DIR=FOLDER, VLLM_CHAKRA_FLAG=FLAG, VLLM_CHAKRA_TRACE_MAX_STEPS="2",
                  VLLM_CHAKRA_SYNC_CUDA="YES", VLLM_CHAKRA_WITH_STACK="1")

if "--with-torch" in sys.argv:
    stub_torch.WITH_STACK = True
    if "--foreign" in sys.argv:
        stub_torch.RF_ID = 99
    stub_torch.install()
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
    """Returns the number of calls and the fills in each window, in the order of the windows."""
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


fill(1)  # before the first window opens
manager.tick_by_flag()
assert not manager.active and windows() == []

# The program makes the maximum number of steps that the window allows, so the window closes. After that, the flag file
# still exists, but no window opens again.
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

# Between two checks, the flag file is removed and created again, which opens a new window.
os.remove(FLAG)
touch()
manager.tick_by_flag()
assert manager.active
fill(4)
os.remove(FLAG)
touch()
os.utime(FLAG, ns=(1, 1))  # if the time stays equal, the manager may take it for the same file
manager.tick_by_flag()
assert manager.active and windows() == [(3, 3), (4, 4)], windows()
fill(5)
os.remove(FLAG)
manager.tick_by_flag()
assert not manager.active and windows() == [(3, 3), (4, 4), (5, 5)], windows()

# A folder does not count as a flag file. If no window is open, calls of stop and step have no effect.
os.mkdir(FLAG)
manager.tick_by_flag()
manager.stop()
manager.step()
assert not manager.active and len(windows()) == 3

# A window that the program opened by hand is still open at the exit, and its files are written during the exit. A child
# process does not write this window.
manager.start()
fill(6)
manager.step()
if os.fork() == 0:
    sys.exit(0)
assert os.wait()[1] == 0 and len(windows()) == 3
if "--with-torch" in sys.argv:
    # Each observer ends before the timeline of its window is written. A step waits for the GPU.
    one = ["start", "profile", "synchronize", "synchronize", "stop", "unregister", "profiled"]
    assert ORDER[:7] == one, ORDER
    assert len(glob.glob(os.path.join(FOLDER, "pytorch_et_pid*.json"))) == 3
print("3 windows, and one is open")
