"""Runs out of GPU memory and frees it, throws exceptions through launches, and forks."""

import os

import torch
from torch.nn import functional as F

from model import Gpt, settle


class Refuses(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        gradient.mul(2)
        raise RuntimeError("refused")


def out_of_memory():
    held = []
    try:
        while True:
            held.append(torch.zeros(1 << 30, dtype=torch.float32, device="cuda"))
    except torch.OutOfMemoryError:
        print("full after", len(held))
    held.clear()
    torch.cuda.empty_cache()
    print("left", torch.cuda.memory_reserved())


def refused(model, tokens):
    try:
        Refuses.apply(model(tokens)).sum().backward()
    except RuntimeError as error:
        print(error)
    try:
        torch.zeros(3, device="cuda") @ torch.zeros(4, device="cuda")
    except RuntimeError:
        print("no such product")


def fork(code):
    child = os.fork()
    if child == 0:
        torch.zeros(3).sum()
        try:
            torch.zeros(3, device="cuda")
        except RuntimeError:
            os._exit(code)
    print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def main():
    torch.manual_seed(1)
    model = Gpt(layers=2).cuda()
    tokens = torch.zeros(2, 16, dtype=torch.long, device="cuda")
    for turn in range(4):
        refused(model, tokens)
        out_of_memory()
        fork(turn)
        F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
    settle()


main()
