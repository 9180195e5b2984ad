"""Measures how well `gpuflame causal` predicts the speed of PyTorch programs, for the second table of docs/accuracy.md.

    tests/pytorch/accuracy/table causal [--rounds 7]      builds what is missing, and prints the table: some 5 minutes

One run of planted.py is recorded, and `causal` predicts how much a step gains if a function or kernel gets 10 % faster.
Then each function and each kernel is really made 10 % faster. In each round the program runs twice unchanged and once
with each change, without gpuflame.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

from accuracy import PRODUCT, recorded, run_program

PROGRAM = pathlib.Path(__file__).resolve().parent / "planted.py"
PRODUCT_US = 400
SPEED_UP = 10


def kernels(product_us):
    return {"GPUSIM_CLOCK": "real", "GPUSIM_LAUNCH_NS": "4000", "GPUSIM_KERNELS": f"by_name,{PRODUCT}={product_us}us"}


BASE = kernels(PRODUCT_US)
# Each function or kernel has a name, its name in the output of `causal`, and the environment variables and arguments
# that make it faster.
PLANTED = [("the products", PRODUCT, kernels(PRODUCT_US * (100 - SPEED_UP) // 100), [])] + [
    (f"`{name}`", f"Program.{name}", BASE, ["--faster", f"{name}={SPEED_UP}"]) for name in ("prepare", "choose", "report")
]


def promised(recording):
    """Returns the rows of `gpuflame causal`."""
    command = [os.environ["GPUFLAME_COMMAND"], "-q", "causal", recording, "-n", "0", "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"causal: {done.stderr}")
    return json.loads(done.stdout)["causal"]


def saved_percent(rows, name):
    """Returns the predicted saving in percent. A function or kernel that is not on the critical path saves 0 %."""
    return next((row["saved_percent"] for row in rows if row["name"].split(" (")[0] == name), 0.0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        rows = promised(recorded(PROGRAM, BASE, folder))
    base, again, changed = [], [], [[] for _ in PLANTED]
    for turn in range(rounds):
        base.append(run_program(PROGRAM, BASE, []))
        for times, (_, _, variables, arguments) in zip(changed, PLANTED):
            times.append(run_program(PROGRAM, variables, arguments))
        again.append(run_program(PROGRAM, BASE, []))
        print(f"\rround {turn + 1} of {rounds}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    step, spread = statistics.median(base), abs(statistics.median(again) / statistics.median(base) - 1)
    print(f"A step takes {step / 1e3:.0f} us; two medians of {rounds} unchanged runs differ by {spread:.2%}.\n")
    print("| 10 % faster | saves, predicted | measured | difference |\n|---|---:|---:|---:|")
    for (name, row, *_), times in zip(PLANTED, changed):
        said, real = saved_percent(rows, row), 100 * (1 - statistics.median(times) / step)
        print(f"| {name} | {said:.2f} % | {real:.2f} % | {abs(said - real):.2f} points |")


if __name__ == "__main__":
    main()
