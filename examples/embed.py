"""Records a part of a Python program, which makes a hundred launches before the window, a hundred in it and a hundred
after it. In the middle of the window the program prints the results so far, without stopping the recording.

    pip install .
    python examples/embed.py

The launches are fills by the CUDA runtime, called through ctypes, so the program needs no PyTorch. Without a GPU, run
the program on the simulated CUDA stack: tests/gpusim/run python examples/embed.py
"""

import ctypes
import sys

import gpuflame

LAUNCHES, BYTES = 100, 1 << 20


def load_cuda():
    for name in ("libcudart.so.13", "libcudart.so.12", "libcudart.so"):
        try:
            return ctypes.CDLL(name)
        except OSError:
            pass
    sys.exit("embed: no libcudart.so: add the CUDA toolkit's lib64 to LD_LIBRARY_PATH")


def check(status):
    if status:
        sys.exit("embed: CUDA answers %d" % status)


cuda = load_cuda()
cuda.cudaMemsetAsync.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p]


def fill(memory, count=LAUNCHES):
    for value in range(count):
        check(cuda.cudaMemsetAsync(memory, value % 256, BYTES, None))


@gpuflame.range("second half")
def second_half(memory):
    fill(memory, LAUNCHES // 2)


@gpuflame.window()
def measure(memory):
    """The part of the program that is recorded: the launches of all threads until this function returns."""
    with gpuflame.range("first half"):
        fill(memory, LAUNCHES // 2)
    gpuflame.step()
    second_half(memory)
    check(cuda.cudaDeviceSynchronize())
    if gpuflame.is_active():
        now = gpuflame.stats()
        print("%d launches, %d ns busy and %d ns idle, %d step" % (now.launches, now.busy_ns, now.idle_ns, now.steps))


def main():
    # Launches before the first window are neither recorded nor counted, because gpuflame is not loaded yet.
    memory = ctypes.c_void_p()
    check(cuda.cudaMalloc(ctypes.byref(memory), ctypes.c_size_t(BYTES)))
    fill(memory)
    measure(memory)
    fill(memory)
    check(cuda.cudaDeviceSynchronize())


main()
