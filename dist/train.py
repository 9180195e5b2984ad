"""A program that `dist/try` records. With PyTorch, the program runs 100 training steps of a small model. Without
PyTorch, nested functions call CUDA with ctypes, and fill 4,096 bytes of GPU memory 100 times."""

import ctypes

try:
    import torch
except ImportError:
    torch = None


def forward(model, data):
    return model(data).sum()


def train():
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.ones(16, 64, device="cuda")
    for _ in range(100):
        optimizer.zero_grad()
        forward(model, data).backward()
        optimizer.step()
    torch.cuda.synchronize()


def fill(cuda, memory, step):
    assert cuda.cudaMemsetAsync(memory, step, 4096, None) == 0


def fill_all():
    cuda = ctypes.CDLL("libcudart.so.13")
    cuda.cudaMemsetAsync.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p]
    memory = ctypes.c_void_p()
    assert cuda.cudaMalloc(ctypes.byref(memory), ctypes.c_size_t(4096)) == 0
    for step in range(100):
        fill(cuda, memory, step)
    assert cuda.cudaDeviceSynchronize() == 0


if torch:
    train()
else:
    fill_all()
