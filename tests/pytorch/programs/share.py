"""Shares a tensor on the GPU between two processes: torch.multiprocessing sends its address, and both processes work on it."""

import torch
import torch.multiprocessing as mp

from model import settle


def work(x, times):
    for _ in range(times):
        x.mul_(2).add_(1)
    settle()


def other(tensors, done):
    x = tensors.get()
    work(x, 30)
    del x
    done.put("the other is done")


if __name__ == "__main__":
    context = mp.get_context("spawn")
    tensors, done = context.Queue(), context.Queue()
    process = context.Process(target=other, args=(tensors, done))
    process.start()
    x = torch.zeros(1 << 20, device="cuda")
    tensors.put(x)
    work(x, 50)
    print(done.get())
    process.join()
    print("exit code", process.exitcode)
