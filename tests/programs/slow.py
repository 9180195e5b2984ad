"""Between two launches, the program uses CPU time in `spins` for a while, and then waits 20 ms in `sleeps`."""

import ctypes
import time

cudart = ctypes.CDLL("libcudart.so.13")


def launch():
    memory = ctypes.c_void_p()
    cudart.cudaMalloc(ctypes.byref(memory), 64)
    cudart.cudaMemset(memory, 0, 64)
    cudart.cudaDeviceSynchronize()


def spins():
    end = time.thread_time() + 0.02
    while time.thread_time() < end:
        pass


def sleeps():
    time.sleep(0.02)


def main():
    launch()
    for _ in range(40):
        spins()
        sleeps()
        launch()


main()
