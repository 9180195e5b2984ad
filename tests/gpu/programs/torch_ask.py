"""torch_ask.py launches | maps | beside: runs a small PyTorch program for one of the kit's questions, and prints JSON
lines."""

import json
import sys

import torch


def mapped():
    """Returns the paths of the CUPTI, CUDA runtime and driver libraries that this process has mapped."""
    with open("/proc/self/maps") as file:
        paths = {line.split()[-1] for line in file if "/" in line}
    return sorted(path for path in paths if any(name in path for name in ("libcupti", "libcudart", "libcuda.so")))


def launches():
    """Launches kernels in three ways: an elementwise kernel, cuBLAS, and Triton if it is installed."""
    x = torch.randn(256, 256, device="cuda")
    y = x + 1
    y = x @ y
    try:
        import triton
        import triton.language as tl

        @triton.jit
        def triton_add(out, a, count, BLOCK: tl.constexpr):
            at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
            tl.store(out + at, tl.load(a + at, mask=at < count) + 1, mask=at < count)

        triton_add[(256,)](y, x, x.numel(), BLOCK=256)
    except Exception as error:  # no compiler or no Triton; continue without it
        print(json.dumps({"triton": str(error)[:300]}))
    torch.cuda.synchronize()


def maps():
    print(json.dumps({"when": "torch is imported", "mapped": mapped()}))
    torch.zeros(1, device="cuda")
    print(json.dumps({"when": "CUDA is in use", "mapped": mapped()}))
    profiled()
    print(json.dumps({"when": "torch.profiler has run", "mapped": mapped()}))


def profiled():
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        torch.ones(1000, device="cuda").mul_(2)
        torch.cuda.synchronize()
    kernels = sum(event.device_type == torch.autograd.DeviceType.CUDA for event in profiler.events())
    print(json.dumps({"torch": torch.__version__, "torch.profiler saw GPU events": kernels}))


def beside():
    """Uses torch.profiler while gpuflame is injected, to see which of the two gets the activity records and whether
    both still work."""
    torch.zeros(1, device="cuda").add_(1)
    profiled()
    torch.zeros(1, device="cuda").add_(1)
    torch.cuda.synchronize()
    print(json.dumps({"mapped": mapped()}))


{"launches": launches, "maps": maps, "beside": beside}[sys.argv[1]]()
