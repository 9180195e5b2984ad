"""Runs one step of a transformer in five variants, so that a test can predict one variant from another and check the
prediction.

    variants.py time  [--rounds N] [--steps N]          times every variant, interleaved: one JSON line per size
    variants.py run SIZE VARIANT [--steps N]            runs one variant, to be recorded; prints its own times too

Sizes: The speed of `small` is limited by launches, and that of `large` by the GPU. In each layer a kernel of fixed
length (`spin`) runs next to the attention. Variants: `eager`; `double` (spin takes twice as long); `stream` (spin runs
on a second stream, between two CUDA events); `sync` (the host waits for the GPU after each layer); `graph` (the step is
captured once and replayed). Each step is an NVTX range, and the host waits for the GPU after each step. Times are in
nanoseconds per step, measured with the host's clock. Exit code 75: this PyTorch cannot run the program."""

import argparse
import json
import statistics
import sys
import time

import model as kit

try:
    import torch
except ImportError as error:
    print(error, file=sys.stderr)
    sys.exit(75)

# For each size: the model's width, the sequence length, and the clock cycles of one spin kernel.
SIZES = {"small": (512, 64, 20_000), "large": (1024, 1024, 200_000)}
VARIANTS = ["eager", "double", "stream", "sync", "graph"]


def step_of(size, variant):
    """Returns a function that runs one step of the variant."""
    kit.WIDTH, kit.LENGTH, cycles = SIZES[size]
    layers, x = kit.make("cuda")
    side = torch.cuda.Stream()
    if variant == "double":
        cycles *= 2

    def spin():
        torch.cuda._sleep(cycles)

    def forward():
        y = x
        for layer in layers:
            if variant == "stream":
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    spin()
                y = layer.attend(y)
                torch.cuda.current_stream().wait_stream(side)
            else:
                spin()
                y = layer.attend(y)
            y = layer.feed(y)
            if variant == "sync":
                torch.cuda.synchronize()
        return y

    return kit.capture(lambda _: forward(), x) if variant == "graph" else forward


def timed(step, steps):
    """Runs `steps` steps and returns the nanoseconds of each step, including the wait for the GPU."""
    taken = []
    for _ in range(steps):
        begin = time.perf_counter_ns()
        torch.cuda.nvtx.range_push("step")
        step()
        torch.cuda.synchronize()
        torch.cuda.nvtx.range_pop()
        taken.append(time.perf_counter_ns() - begin)
    return taken


def say(**line):
    print(json.dumps(line), flush=True)


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["time", "run"])
    parser.add_argument("size", nargs="?", choices=SIZES)
    parser.add_argument("variant", nargs="?", choices=VARIANTS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:  # no driver, an old driver, or a CPU build
        print("PyTorch sees no GPU:", str(error).partition("\n")[0], file=sys.stderr)
        sys.exit(75)
    if options.what == "run":
        step = step_of(options.size, options.variant)
        timed(step, 5)
        taken = timed(step, options.steps)
        say(size=options.size, variant=options.variant, steps=options.steps, median_ns=statistics.median(taken), all_ns=taken)
        return
    for size in SIZES:
        # `eager again` is measured to show how much two measurements of the same variant differ.
        names = [*VARIANTS, "eager again"]
        steps = {name: step_of(size, name.removesuffix(" again")) for name in names}
        rounds = {name: [] for name in names}
        for step in steps.values():
            timed(step, 5)
        for _ in range(options.rounds):
            for name, step in steps.items():
                rounds[name].append(statistics.median(timed(step, options.steps)))
        say(size=size, steps=options.steps, rounds_ns=rounds, median_ns={name: statistics.median(all) for name, all in rounds.items()})


if __name__ == "__main__":
    main()
