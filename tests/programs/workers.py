"""Starts `multiprocessing` workers that launch; the main process does not launch.

    workers.py brief|process|pool|for_ever fork|forkserver|spawn WORKERS LAUNCHES

With `for_ever`, a worker launches LAUNCHES times and waits for the GPU, until a signal ends it; main prints how the
workers ended. With `brief`, a worker launches, and returns after half a second. With `process`, a worker launches, and
returns when a file `go` exists; multiprocessing then calls `_exit`. With `pool`, a worker launches, and main then
terminates the pool. The worker ends by SIGTERM or, if it was notified before, by `_exit`."""

import ctypes
import multiprocessing
import os
import pathlib
import sys
import time


def must(error):
    assert error == 0, error


def launch(count, is_over=lambda: True):
    cuda = ctypes.CDLL("libcuda.so.1")
    must(cuda.cuInit(0))
    device, context = ctypes.c_int(), ctypes.c_void_p()
    must(cuda.cuDeviceGet(ctypes.byref(device), 0))
    must(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
    must(cuda.cuCtxSetCurrent(context))
    module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
    must(cuda.cuModuleLoadData(ctypes.byref(module), b".version 8.0\0"))
    must(cuda.cuModuleGetFunction(ctypes.byref(kernel), module, b"work_d1000"))
    while True:
        for _ in range(count):
            must(cuda.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, None, None, None))
        must(cuda.cuCtxSynchronize())
        if is_over():
            return


def wait_for(is_so):
    deadline = time.monotonic() + 120
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def as_process(count):
    launch(count)
    wait_for(pathlib.Path("go").exists)


def brief(count):
    launch(count)
    time.sleep(0.5)


def for_ever(count):
    pathlib.Path(f"begun-{os.getpid()}").touch()
    launch(count, lambda: False)


def in_pool(workers, count):
    launch(count)
    pathlib.Path(f"launched-{os.getpid()}").touch()
    # Wait until all workers have started, so that each worker gets one task.
    wait_for(lambda: len(list(pathlib.Path(".").glob("launched-*"))) == workers)
    wait_for(pathlib.Path("go").exists)


def main():
    how, method, workers, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    context = multiprocessing.get_context(method)
    if how == "pool":
        pool = context.Pool(workers)
        pool.starmap(in_pool, [(workers, count)] * workers, chunksize=1)
        pool.terminate()
        pool.join()
        return
    target = {"for_ever": for_ever, "brief": brief}.get(how, as_process)
    processes = [context.Process(target=target, args=(count,)) for _ in range(workers)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert how == "for_ever" or process.exitcode == 0, process.exitcode
    if how == "for_ever":
        print(*(process.exitcode for process in processes))


if __name__ == "__main__":
    main()
