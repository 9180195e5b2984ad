"""Runs a server whose workers record while a file exists. The driver process creates and removes the file. Each worker
checks the file at the start of each step (a tick).

    pip install .
    python examples/vllm_window.py traces

The two workers decode. Twice, the driver lets them record three steps, so each worker writes two windows to `traces`.
In vLLM, call the tick in the first line of the worker's `execute_model`. The driver is the process that calls
`llm.generate()`.
"""

import ctypes
import os
import subprocess
import sys

WORKERS, STEPS, BYTES = 2, 3, 1 << 20


def worker():
    from chakra_trace.manager import get_global_manager

    manager = get_global_manager()
    manager.tick_by_flag()  # initialises gpuflame before the first CUDA call
    cuda = load_cuda()
    memory = ctypes.c_void_p()
    check(cuda.cudaMalloc(ctypes.byref(memory), ctypes.c_size_t(BYTES)))
    tell("ready")
    while True:
        manager.tick_by_flag()
        for value in range(10):
            check(cuda.cudaMemsetAsync(memory, value, ctypes.c_size_t(BYTES), None))
        check(cuda.cudaDeviceSynchronize())
        tell("on" if manager.active else "off")
        if not sys.stdin.readline():
            break


def driver(folder):
    flag = os.path.join(folder, "record")
    environment = dict(os.environ, VLLM_CHAKRA_TRACE_DIR=folder, VLLM_CHAKRA_FLAG=flag)
    command = [sys.executable, os.path.abspath(__file__), "--worker"]
    workers = [subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
               for _ in range(WORKERS)]
    for one in workers:
        wait_for(one, "ready")
        wait_for(one, "off")
    for window in range(2):
        with open(flag, "w"):
            pass
        for _ in range(STEPS):
            step(workers, "on")
        os.remove(flag)
        step(workers, "off")
    for one in workers:
        one.stdin.close()
        if one.wait():
            sys.exit("vllm_window: a worker ended with %d" % one.returncode)
    for name in sorted(os.listdir(folder)):
        print(name)


def step(workers, expected):
    for one in workers:
        one.stdin.write("go on\n")
        one.stdin.flush()
    for one in workers:
        wait_for(one, expected)


def wait_for(one, expected):
    line = one.stdout.readline().strip()
    if line != expected:
        sys.exit("vllm_window: a worker says %r, not %r" % (line, expected))


def tell(word):
    print(word, flush=True)


def load_cuda():
    for name in ("libcudart.so.13", "libcudart.so.12", "libcudart.so"):
        try:
            cuda = ctypes.CDLL(name)
        except OSError:
            continue
        cuda.cudaMemsetAsync.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p]
        return cuda
    sys.exit("vllm_window: no libcudart.so: add the CUDA toolkit's lib64 to LD_LIBRARY_PATH")


def check(status):
    if status:
        sys.exit("vllm_window: CUDA answers %d" % status)


if __name__ == "__main__":
    if sys.argv[1:] == ["--worker"]:
        worker()
    elif len(sys.argv) == 2:
        os.makedirs(sys.argv[1], exist_ok=True)
        driver(os.path.abspath(sys.argv[1]))
    else:
        sys.exit("usage: python examples/vllm_window.py FOLDER")
