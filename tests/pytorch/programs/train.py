"""Makes training steps with autograd and scaled gradients, with each optimizer. With `nvtx`, every operator is in a range."""

import contextlib
import sys

import torch
from torch.nn import functional as F

from model import Gpt, settle, steps


def loss_of(model, tokens):
    logits = model(tokens[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def step(model, optimizer, scaler, tokens):
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = loss_of(model, tokens)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    return loss.item()


def main():
    torch.manual_seed(1)
    model = Gpt().cuda()
    tokens = torch.randint(0, 512, (4, 33)).cuda(non_blocking=True)
    for kind in ({"fused": True}, {"foreach": True}, {"foreach": False}):
        optimizer = torch.optim.AdamW(model.parameters(), **kind)
        scaler = torch.amp.GradScaler("cuda")
        in_ranges = torch.autograd.profiler.emit_nvtx if "nvtx" in sys.argv else contextlib.nullcontext
        for _ in range(steps(2)):
            with in_ranges():
                loss = step(model, optimizer, scaler, tokens)
    settle()
    print("trained", loss)


if __name__ == "__main__":
    main()
