"""Decodes or trains with a tiny GPT on the CPU, while the preloaded hook captures stacks (see run.sh)."""

import ctypes
import sys

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(1)
torch.set_num_threads(1)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads = heads

    def attend(self, x):
        batch, length, width = x.shape
        split = lambda t: t.view(batch, length, self.heads, -1).transpose(1, 2)
        q, k, v = map(split, self.qkv(x).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x):
        x = x + self.attend(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self, words=256, width=64, heads=4, layers=6):
        super().__init__()
        self.embed, self.head = nn.Embedding(words, width), nn.Linear(width, words)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))

    def forward(self, x):
        return self.head(self.blocks(self.embed(x)))


def decode(model, steps):
    tokens = torch.zeros(1, 1, dtype=torch.long)
    with torch.no_grad():
        for _ in range(steps):
            tokens = torch.cat([tokens, model(tokens[:, -32:])[:, -1:].argmax(-1)], dim=1)


def train(model, steps):
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        tokens = torch.randint(0, 256, (2, 33))
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


mode = {"decode": decode, "train": train}[sys.argv[1]]
model = Gpt()
mode(model, 3)
steps = int(sys.argv[2])
hook = ctypes.CDLL(None)
hook.hook_begin.restype = ctypes.c_bool
print("all in turn on every stack: each finds the caches as the others leave them", flush=True)
hook.hook_begin(-1)
mode(model, steps)
hook.hook_end()
print("each alone, as in use", flush=True)
for alone in range(100):
    if not hook.hook_begin(alone):
        break
    mode(model, steps)
    hook.hook_end()
