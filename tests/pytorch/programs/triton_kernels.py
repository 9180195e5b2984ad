"""Runs kernels that Triton and its assembler compile. A launcher that Triton builds with the C compiler launches them."""

import torch
import triton
import triton.language as tl

torch.cuda.init()


@triton.jit
def add(a, b, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    tl.store(out + at, tl.load(a + at, mask=inside) + tl.load(b + at, mask=inside), mask=inside)


@triton.jit
def scale(a, out, by, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(a + at, mask=at < count) * by, mask=at < count)


class Block:
    def __init__(self, size):
        self.size = size
        self.a, self.out = (torch.empty(size, device="cuda") for _ in range(2))

    def forward(self):
        add[(4,)](self.a, self.a, self.out, self.size, BLOCK=256)

    def backward(self):
        scale[(8,)](self.out, self.a, 2.0, self.size, BLOCK=128)


def main():
    block = Block(1024)
    for _ in range(100):
        block.forward()
        block.backward()
    torch.cuda.synchronize()


main()
