"""Runs steps of four transformer blocks with a wait for the GPU after each block. Options make the changes whose
effects `gpuflame what-if` predicts.

    tests/pytorch/run tests/pytorch/accuracy/program.py [--steps 40] [--without-waits | --side-stream | --graphs]

Prints the median duration of a step in ns.
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


class Program:
    def __init__(self, options):
        self.options = options
        self.blocks = [Block(WIDTH, 4).cuda().eval() for _ in range(4)]
        self.input = torch.zeros(2, 16, WIDTH, device="cuda")
        self.square = torch.ones(64, 64, device="cuda")
        self.side = torch.cuda.Stream()
        self.graphs = [self.captured(block) for block in self.blocks] if options.graphs else None

    def captured(self, block):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            self.block_work(block)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.block_work(block)
        return graph

    def block_work(self, block):
        # No later operation in the step needs the result of `tril`. Therefore `tril` can run on a side stream. Without
        # --side-stream, the program makes the same calls on one stream, so that the stream is the only difference.
        with torch.cuda.stream(self.side if self.options.side_stream else torch.cuda.current_stream()):
            torch.tril(self.square)
        block(self.input)

    def wait_for_block(self):
        torch.cuda.synchronize()

    def step(self):
        for at, block in enumerate(self.blocks):
            if self.graphs:
                self.graphs[at].replay()
            else:
                self.block_work(block)
            if not self.options.without_waits:
                self.wait_for_block()
        torch.cuda.current_stream().synchronize()


@torch.inference_mode()
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--without-waits", action="store_true")
    parser.add_argument("--side-stream", action="store_true")
    parser.add_argument("--graphs", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    program = Program(options)
    gc.disable()
    times = []
    for _ in range(WARM_UP + options.steps):
        torch.cuda.nvtx.range_push("step")
        start = time.perf_counter_ns()
        program.step()
        times.append(time.perf_counter_ns() - start)
        torch.cuda.nvtx.range_pop()
    print(int(statistics.median(times[WARM_UP:])))


if __name__ == "__main__":
    main()
