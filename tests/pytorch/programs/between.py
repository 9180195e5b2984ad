"""Uses PyTorch's own profiler for part of a run: `warm` runs before it, `profiled` under it, and `cool` after it."""

import time

import torch
from torch.profiler import ProfilerActivity, profile


def warm(x):
    for _ in range(20):
        x.sin_()
    torch.cuda.synchronize()


def profiled(x):
    for _ in range(30):
        x.exp_()
    torch.cuda.synchronize()


def rest(x):
    until = time.monotonic() + 3
    while time.monotonic() < until:
        x.neg_()
        torch.cuda.synchronize()
        time.sleep(0.01)


def cool(x):
    for _ in range(40):
        x.cos_()
    torch.cuda.synchronize()


x = torch.zeros(1024, device="cuda")
warm(x)
for _ in range(2):
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        profiled(x)
    kernels = [event for event in profiler.events() if event.device_type == torch.autograd.DeviceType.CUDA and "exp" in event.name]
    print("profiled", len(kernels))
    rest(x)
    cool(x)
