"""Uses two GPUs in one process: each GPU has half of the model, and activations are copied from one GPU to the other."""

import torch
from torch import nn

from model import Block, settle, steps


class Halves(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.first, self.second = Block(width, 4).to("cuda:0"), Block(width, 4).to("cuda:1")

    def forward(self, x):
        return self.second(self.first(x).to("cuda:1"))


def main():
    torch.manual_seed(1)
    model = Halves()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(4, 16, 128, device="cuda:0")
    for _ in range(steps(6)):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    for device in range(2):
        torch.cuda.synchronize(device)
    settle()
    print("two devices")


main()
