"""Runs two workers of a server and their driver process, as in vLLM: workers.py FOLDER. Each call of the driver makes
five steps on both workers. At the start of each step, a worker checks the flag file. Step N fills 1000 + N bytes ten
times, so that a timeline shows which steps it contains. In the last window the driver kills worker 0. The driver prints
the process ids of both workers."""

import ctypes
import os
import subprocess
import sys
import time

STEPS, FILLS = 5, 10


def worker():
    from chakra_trace.manager import get_global_manager

    sys.modules["torch"] = None  # even if PyTorch is installed
    manager = get_global_manager()
    manager.tick_by_flag()  # sets gpuflame up, before the first CUDA call
    cuda = ctypes.CDLL("libcudart.so")
    cuda.cudaMemsetAsync.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p]
    memory = ctypes.c_void_p()
    assert cuda.cudaMalloc(ctypes.byref(memory), ctypes.c_size_t(4096)) == 0
    step = 0
    while sys.stdin.readline():
        manager.tick_by_flag()
        for _ in range(FILLS):
            assert cuda.cudaMemsetAsync(memory, 0, 1000 + step, None) == 0
        step += 1
        print("done", flush=True)


def generate(workers):
    """Makes one call of the driver, such as `llm.generate()` in vLLM."""
    for _ in range(STEPS):
        for one in workers:
            one.stdin.write("step\n")
            one.stdin.flush()
        for one in workers:
            assert one.stdout.readline() == "done\n"


def driver(folder):
    flag = os.path.join(folder, "flag")
    environment = dict(os.environ, VLLM_CHAKRA_TRACE_DIR=folder, VLLM_CHAKRA_FLAG=flag)
    environment.pop("GPUFLAME_OUTPUT", None)  # the manager chooses the name of its recording
    command = [sys.executable, os.path.abspath(__file__)]
    workers = [subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
               for _ in range(2)]

    def touch():
        with open(flag, "w"):
            pass

    generate(workers)  # steps 0 to 4, not recorded
    touch()
    generate(workers)  # steps 5 to 9, the first window
    os.remove(flag)
    generate(workers)
    touch()
    generate(workers)  # steps 15 to 19, the second window
    os.remove(flag)
    touch()  # no worker checks the flag file in between
    generate(workers)  # steps 20 to 24, the third window
    os.remove(flag)
    generate(workers)
    touch()
    generate(workers)  # steps 30 to 34, the fourth window
    kill(workers[0], folder)
    os.remove(flag)
    generate(workers[1:])
    workers[1].stdin.close()
    assert workers[1].wait() == 0
    print(workers[0].pid, workers[1].pid)


def kill(victim, folder):
    """Waits until the worker's recording on disk contains all of its work, which takes about a second. Then kills the
    worker."""
    from gpuflame import _read

    recording = os.path.join(folder, "gpuflame_pid%d" % victim.pid, "workers.gfr")
    fills, deadline = 4 * STEPS * FILLS, time.monotonic() + 60
    while fills_in(_read.command("convert", "--quiet", "--accept-cut", "--to", "chrome", recording)) < fills:
        assert time.monotonic() < deadline, "the recording has no checkpoint"
        time.sleep(0.1)
    victim.kill()
    victim.wait()


def fills_in(trace):
    return trace.count(b'"gpu_memset"')


if __name__ == "__main__":
    worker() if len(sys.argv) == 1 else driver(os.path.abspath(sys.argv[1]))
