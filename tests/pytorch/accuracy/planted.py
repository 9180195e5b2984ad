"""Runs steps whose functions each compute for a known time. The program is a test case for `gpuflame causal`.

    tests/pytorch/run tests/pytorch/accuracy/planted.py [--steps 40] [--faster NAME=PERCENT]

Prints the median duration of a step in ns. With `--faster prepare=10`, the function `prepare` computes for 90 % of its
usual time.
"""

import argparse
import gc
import pathlib
import statistics
import sys
import time

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "programs"))

from model import Block  # noqa: E402

WARM_UP = 10
WIDTH = 128
# Time for which each function computes, in us.
WORK = {"prepare": 4000, "report": 1500, "choose": 2500}


def work(us):
    end = time.perf_counter_ns() + round(1000 * us)
    while time.perf_counter_ns() < end:
        pass


class Program:
    def __init__(self, work_us):
        self.work_us = work_us
        self.blocks = [Block(WIDTH, 4).cuda().eval() for _ in range(4)]
        self.input = torch.zeros(2, 16, WIDTH, device="cuda")
        self.scores = torch.ones(64, 64, device="cuda")
        self.done = torch.cuda.Event()

    def prepare(self):
        work(self.work_us["prepare"])
        self.input.zero_()

    def forward(self):
        x = self.input
        for block in self.blocks:
            x = block(x)

    def report(self):
        """Computes on the host while the GPU computes as well."""
        work(self.work_us["report"])
        self.done.record()

    def choose(self):
        work(self.work_us["choose"])
        self.scores.add_(1)

    def step(self):
        self.prepare()
        self.forward()
        self.report()
        torch.cuda.synchronize()
        self.choose()
        torch.cuda.synchronize()


@torch.inference_mode()
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--faster", metavar="NAME=PERCENT")
    options = parser.parse_args()
    torch.set_num_threads(1)
    work_us = dict(WORK)
    if options.faster:
        name, percent = options.faster.split("=")
        work_us[name] *= 1 - int(percent) / 100
    program = Program(work_us)
    gc.disable()
    for _ in range(WARM_UP):
        program.step()
    times = []
    for _ in range(options.steps):
        torch.cuda.nvtx.range_push("step")
        start = time.perf_counter_ns()
        program.step()
        times.append(time.perf_counter_ns() - start)
        torch.cuda.nvtx.range_pop()
    print(int(statistics.median(times)))


if __name__ == "__main__":
    main()
