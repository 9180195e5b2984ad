"""A program that `dist/try` records: a hundred fills of 4,096 bytes of GPU memory from nested functions, by ctypes."""

import ctypes

cuda = ctypes.CDLL("libcudart.so.13")
cuda.cudaMemsetAsync.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p]


def forward(memory, step):
    assert cuda.cudaMemsetAsync(memory, step, 4096, None) == 0


def train(memory):
    for step in range(100):
        forward(memory, step)


memory = ctypes.c_void_p()
assert cuda.cudaMalloc(ctypes.byref(memory), ctypes.c_size_t(4096)) == 0
train(memory)
assert cuda.cudaDeviceSynchronize() == 0
