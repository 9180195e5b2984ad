"""Measures how well `gpuflame what-if` predicts the speed of PyTorch programs, for the table of docs/accuracy.md.

    tests/pytorch/accuracy/table [--rounds 7]      builds what is missing, and prints the table: some 5 minutes

One run of the eager program is recorded. `what-if` predicts the effect of each change from this recording, and then the
program is really changed. In each round the program runs unchanged and with each change, both with and without
gpuflame. The runs with gpuflame show how good the prediction is. The runs without gpuflame show what else recording
changes, because it slows the host. A change counts if it is at least five times as large as the spread of the unchanged
program. (The spread is an A/A comparison: the first run of each round with the last run of the round.)
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
PROGRAM = HERE / "program.py"
# Kernel of the matrix products in the linear layers of the model. A transformer block has four matrix products.
PRODUCT = "sm90_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x64x32_warpgroupsize1x1x1_execute_kernel__5x_cublas"
WARM_UP = 10


def kernels(product_us):
    return f"by_name,{PRODUCT}={product_us}us,triu_tril_kernel=150us"


BASE = {"GPUSIM_CLOCK": "real", "GPUSIM_LAUNCH_NS": "4000", "GPUSIM_KERNELS": kernels(50)}

# Each change has a name, the options of `what-if` that predict it, and the environment variables and arguments with
# which the program makes it.
CHANGES = [
    ("products twice as slow", ["--scale", "xmma_gemm=2"], {"GPUSIM_KERNELS": kernels(100)}, []),
    ("a launch costs 1 us instead of 4", ["--launch-ns", "1000"], {"GPUSIM_LAUNCH_NS": "1000"}, []),
    ("no wait after each block", ["--no-sync=wait_for_block"], {}, ["--without-waits"]),
    ("a second stream", ["--streams", "+1:tril"], {}, ["--side-stream"]),
    ("a graph for each block", ["--graphs"], {}, ["--graphs"]),
]


def run_program(program, variables, arguments, **extra):
    """Runs a program, and returns the step time that it prints, in ns."""
    environment = {**os.environ, **variables, **extra}
    done = subprocess.run([sys.executable, program, *arguments], env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"accuracy: {arguments or 'the program'} failed: {done.stderr[-500:]}")
    return int(done.stdout.split()[-1])


def run(variables, arguments):
    return run_program(PROGRAM, {**BASE, **variables}, arguments)


def run_recorded(program, variables, arguments, folder):
    """Records a run of a program into a folder. Returns the step time that the program prints, in ns."""
    library = os.environ["GPUFLAME"]
    settings = {
        "CUDA_INJECTION64_PATH": library,
        "NVTX_INJECTION64_PATH": library,
        "GPUFLAME_OUTPUT": f"{folder}/base",
        "GPUFLAME_FORMATS": "gfr",
        "GPUFLAME_DEPS": "1",
        "GPUFLAME_STEP_RANGE": "step",
    }
    return run_program(program, variables, arguments, **settings)


def recorded(program, variables, folder):
    """Records a run of a program. Returns the path of the recording."""
    run_recorded(program, variables, [], folder)
    return next(pathlib.Path(folder).glob("base*.gfr"))


def run_and_discard(variables, arguments):
    """Records a run, deletes the recording, and returns the duration of a step in ns."""
    with tempfile.TemporaryDirectory() as folder:
        return run_recorded(PROGRAM, {**BASE, **variables}, arguments, folder)


def predicted(recording, options):
    """Returns the predicted duration of a step with the change, divided by the duration of a step without it."""
    command = [os.environ["GPUFLAME_COMMAND"], "-q", "what-if", recording, *options, "-n", "0", "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"accuracy: {done.stderr}")
    steps = json.loads(done.stdout)["steps"][WARM_UP:-1]
    middle = lambda key: statistics.median(step[key] for step in steps)
    return middle("after_ns") / middle("before_ns")


class Series:
    """Durations of a step in ns, for the unchanged program and for each change. Each round adds one duration per change
    and two for the unchanged program."""

    def __init__(self, run):
        self.run = run
        self.first, self.last, self.changed = [], [], [[] for _ in CHANGES]

    def turn(self):
        self.first.append(self.run({}, []))
        for times, (_, _, variables, arguments) in zip(self.changed, CHANGES):
            times.append(self.run(variables, arguments))
        self.last.append(self.run({}, []))

    def step(self):
        return statistics.median(self.first)

    def spread(self):
        return abs(statistics.median(self.last) / self.step() - 1)

    def effects(self):
        return [statistics.median(times) / self.step() for times in self.changed]


def cells(series, promised):
    """Returns the cells of the table, each with the measured effect and the error of the prediction, and the errors of
    the changes that count."""
    texts, errors = [], []
    for measured, part in zip(series.effects(), promised):
        error = abs(part / measured - 1)
        counts = abs(measured - 1) >= 5 * series.spread()
        errors += [error] if counts else []
        texts.append(f"{measured - 1:+.1%} | {error:.1%}{'' if counts else ' (too small to count)'}")
    return texts, errors


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        recording = recorded(PROGRAM, BASE, folder)
        promised = [predicted(recording, options) for _, options, _, _ in CHANGES]
    all_series = {"recorded": Series(run_and_discard), "without gpuflame": Series(run)}
    for turn in range(rounds):
        for series in all_series.values():
            series.turn()
        print(f"\rround {turn + 1} of {rounds}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    columns, summary = [], []
    for name, series in all_series.items():
        texts, errors = cells(series, promised)
        columns.append(texts)
        print(f"A step takes {series.step() / 1e3:.0f} us {name}; two medians of {rounds} unchanged runs differ by {series.spread():.2%}.")
        summary.append(f"{name}: median error {statistics.median(errors):.1%}, worst {max(errors):.1%}.")
    print("\n| change | predicted | recorded | error | without gpuflame | error |\n|---|---:|---:|---:|---:|---:|")
    for (change, *_), part, *texts in zip(CHANGES, promised, *columns):
        print(f"| {change} | {part - 1:+.1%} | {' | '.join(texts)} |")
    print("", *summary, sep="\n")


if __name__ == "__main__":
    main()
