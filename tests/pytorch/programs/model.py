"""A small GPT, and functions that the programs in this folder share."""

import contextlib
import ctypes
import os
import time

import torch
from torch import nn
from torch.nn import functional as F

# PyTorch would use cuDNN for attention if it could. But the stand-in for cuDNN has no functions.
torch.backends.cuda.enable_cudnn_sdp(False)


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x, cache=None):
        batch, length, width = x.shape
        q, k, v = (
            t.view(batch, length, self.heads, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1)
        )
        if cache is not None:
            k, v = cache.update(k, v)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=cache is None)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, cache=None):
        x = x + self.attention(self.norm1(x), cache)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self, words=512, width=128, heads=4, layers=4):
        super().__init__()
        self.width, self.heads = width, heads
        self.embed, self.head = nn.Embedding(words, width), nn.Linear(width, words)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))

    def forward(self, tokens, caches=None):
        x = self.embed(tokens)
        for place, block in enumerate(self.blocks):
            x = block(x, caches[place] if caches else None)
        return self.head(x)


class Cache:
    """Keys and values of one layer. Their size is fixed and they are written in place, as a captured graph requires."""

    def __init__(self, batch, heads, length, width):
        self.keys = torch.zeros(batch, heads, length, width, device="cuda")
        self.values = torch.zeros(batch, heads, length, width, device="cuda")
        self.place = torch.zeros(1, dtype=torch.long, device="cuda")

    def update(self, k, v):
        self.keys.index_copy_(2, self.place, k)
        self.values.index_copy_(2, self.place, v)
        return self.keys, self.values


def caches(model, batch, length=64):
    width = model.width // model.heads
    return [Cache(batch, model.heads, length, width) for _ in model.blocks]


def steps(otherwise):
    """Returns the number of steps that a program makes: the variable STEPS, or else `otherwise`."""
    return int(os.environ.get("STEPS", otherwise))


@contextlib.contextmanager
def site(name):
    """Reports the thread's place in the program to the simulated driver, which writes it to the truth file. A real driver has no
    such function."""
    say = getattr(ctypes.CDLL("libcuda.so.1"), "gpusim_site", lambda name: None)
    say(name.encode())
    yield
    say(None)


def settle():
    """Waits until autograd's threads are idle. If they still need the interpreter when it ends, they are ended inside
    C++ functions, which aborts the process. On a busy machine this happens in one of 30 runs, even without gpuflame."""
    torch.cuda.synchronize()
    time.sleep(0.5)
