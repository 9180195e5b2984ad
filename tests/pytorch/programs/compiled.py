"""Runs the training step and the decode loop of train.py and decode.py with torch.compile: compiled.py MODE. Inductor makes
kernels with Triton; with `reduce-overhead` it captures them into graphs."""

import sys

import torch

from decode import Decoder
from model import Gpt, settle, steps
from train import step


def train(mode):
    """Trains under autocast with scaled gradients. Forward and backward pass are compiled; the optimizer is a fused one."""
    model = torch.compile(Gpt(layers=1).cuda(), mode=mode)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    scaler = torch.amp.GradScaler("cuda")
    tokens = torch.zeros(2, 17, dtype=torch.long, device="cuda")
    for _ in range(steps(8)):
        loss = step(model, optimizer, scaler, tokens)
    print("trained", loss)


@torch.inference_mode()
def decode(mode):
    """Decodes with a cache of keys and values, which the compiled model writes in place."""
    decoder = Decoder(torch.compile(Gpt(layers=1).cuda().eval(), mode=mode), 2)
    for cache in decoder.caches:
        # Inductor captures code that writes to its arguments only if these are always at the same addresses.
        for tensor in (cache.keys, cache.values, cache.place):
            torch._dynamo.mark_static_address(tensor)
    print("decoded", decoder.decode(steps(12)).shape)


def main():
    train(sys.argv[1])
    decode(sys.argv[1])
    settle()


main()
