"""The small GPT through torch.compile, trained and decoded: compiled.py MODE. Inductor makes kernels by Triton; with
`reduce-overhead` it captures them into graphs."""

import sys

import torch
from torch.nn import functional as F

from model import Gpt, settle, steps


def train(mode):
    """Forward and backward, both compiled; the optimiser is eager."""
    model = Gpt(layers=1).cuda()
    compiled = torch.compile(model, mode=mode)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tokens = torch.zeros(2, 16, dtype=torch.long, device="cuda")
    for _ in range(steps(8)):
        loss = F.cross_entropy(compiled(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print("trained", loss.shape)


@torch.inference_mode()
def decode(mode):
    model = torch.compile(Gpt(layers=1).cuda().eval(), mode=mode)
    tokens = torch.zeros(2, 1, dtype=torch.long, device="cuda")
    for _ in range(steps(12)):
        logits = model(tokens)
        tokens.copy_(logits[:, -1:].argmax(-1))
    print("decoded", logits.shape)


def main():
    train(sys.argv[1])
    decode(sys.argv[1])
    settle()


main()
