"""Measures how long a PyTorch program takes to end after SIGTERM. During this time gpuflame draws the flame graph, for
which it must look up function names in libraries of hundreds of MB.

    tests/pytorch/run tests/pytorch/cost/ending.py [--rounds 7]
    GPUFLAME=libgpuflame.so                 default: target/release/libgpuflame.so

`warm`: all files are in the page cache. `cold`: before the signal, the pages of mapped files that no process uses are
dropped from the page cache. Prints the minimum and the median of the time until the process is dead. The program makes
training steps of a small model on the simulated CUDA stack."""

import argparse
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
PROGRAM = """
import signal
import torch
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)).cuda()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(20):
    optimizer.zero_grad()
    model(torch.ones(16, 64, device="cuda")).sum().backward()
    optimizer.step()
torch.cuda.synchronize()
print("ready", flush=True)
signal.pause()
"""


def forget(process):
    """Drops from the page cache the pages of the process's mapped files that no process uses."""
    lines = pathlib.Path(f"/proc/{process}/maps").read_text().splitlines()
    for path in {line.split(maxsplit=5)[5] for line in lines if " /" in line}:
        try:
            file = os.open(path, os.O_RDONLY)
        except OSError:
            continue
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def seconds_until_death(is_cold):
    default = HERE.parents[2] / "target/release/libgpuflame.so"
    library = pathlib.Path(os.environ.get("GPUFLAME", default)).resolve()
    with tempfile.TemporaryDirectory() as folder:
        environment = dict(os.environ, CUDA_INJECTION64_PATH=str(library), GPUFLAME_OUTPUT=f"{folder}/out")
        child = subprocess.Popen(
            [sys.executable, "-c", PROGRAM], env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert child.stdout.readline() == "ready\n"
        # The program gets time to write a checkpoint, like a program that has run for some time.
        time.sleep(2.5)
        if is_cold:
            forget(child.pid)
        began = time.monotonic()
        child.send_signal(signal.SIGTERM)
        assert child.wait() == -signal.SIGTERM
        took = time.monotonic() - began
        assert pathlib.Path(folder, "out.svg").exists()
        return took


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--rounds", type=int, default=7)
    rounds = arguments.parse_args().rounds
    for name in ("warm", "cold"):
        took = [seconds_until_death(name == "cold") for _ in range(rounds)]
        print(f"{name}: {min(took):.2f} s until death, {statistics.median(took):.2f} the median of {rounds}")


main()
