"""Measures how well `gpuflame what-if` predicts PyTorch, for the table of docs/accuracy.md.

    tests/pytorch/accuracy/table [--rounds 7]      builds what is missing, and prints the table: some 5 minutes

One run of the eager program is recorded. Each change is predicted from this recording, and then really made: in each round the
program runs once unchanged and once with each change, without gpuflame. A change counts if it is at least five times as large
as the spread of the unchanged program (A/A: half of its rounds compared with the other half).
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
# Kernel of the matrix products in the model's linear layers. A block has four of them.
PRODUCT = "sm90_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x64x32_warpgroupsize1x1x1_execute_kernel__5x_cublas"
WARM_UP = 10


def kernels(product_us):
    return f"by_name,{PRODUCT}={product_us}us,triu_tril_kernel=150us"


BASE = {"GPUSIM_CLOCK": "real", "GPUSIM_LAUNCH_NS": "4000", "GPUSIM_KERNELS": kernels(50)}

# For each change: its name, the options of what-if that predict it, and the variables and arguments of the program that make it.
CHANGES = [
    ("products twice as slow", ["--scale", "xmma_gemm=2"], {"GPUSIM_KERNELS": kernels(100)}, []),
    ("a launch costs 1 us instead of 4", ["--launch-ns", "1000"], {"GPUSIM_LAUNCH_NS": "1000"}, []),
    ("no wait after each block", ["--no-sync=wait_for_block"], {}, ["--without-waits"]),
    ("a second stream", ["--streams", "+1:tril"], {}, ["--side-stream"]),
    ("a graph for each block", ["--graphs"], {}, ["--graphs"]),
]


def run_program(program, variables, arguments, **extra):
    """Runs a program, and returns the time that it prints, in ns."""
    environment = {**os.environ, **variables, **extra}
    done = subprocess.run([sys.executable, program, *arguments], env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"accuracy: {arguments or 'the program'} failed: {done.stderr[-500:]}")
    return int(done.stdout.split()[-1])


def run(variables, arguments):
    return run_program(PROGRAM, {**BASE, **variables}, arguments)


def recorded(program, variables, folder):
    """Records a run of a program. Returns the path of the recording."""
    library, output = os.environ["GPUFLAME"], f"{folder}/base"
    settings = {
        "CUDA_INJECTION64_PATH": library,
        "NVTX_INJECTION64_PATH": library,
        "GPUFLAME_OUTPUT": output,
        "GPUFLAME_FORMATS": "gfr",
        "GPUFLAME_DEPS": "1",
        "GPUFLAME_STEP_RANGE": "step",
    }
    run_program(program, variables, [], **settings)
    return next(pathlib.Path(folder).glob("base*.gfr"))


def predicted(recording, options):
    """Returns the predicted duration of a step with the change, divided by the duration without it."""
    command = [os.environ["GPUFLAME_COMMAND"], "-q", "what-if", recording, *options, "-n", "0", "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"accuracy: {done.stderr}")
    steps = json.loads(done.stdout)["steps"][WARM_UP:-1]
    middle = lambda key: statistics.median(step[key] for step in steps)
    return middle("after_ns") / middle("before_ns")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        recording = recorded(PROGRAM, BASE, folder)
        promised = [predicted(recording, options) for _, options, _, _ in CHANGES]
    base, again, changed = [], [], [[] for _ in CHANGES]
    for turn in range(rounds):
        base.append(run({}, []))
        for at, (_, _, variables, arguments) in enumerate(CHANGES):
            changed[at].append(run(variables, arguments))
        again.append(run({}, []))
        print(f"\rround {turn + 1} of {rounds}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    step, spread = statistics.median(base), abs(statistics.median(again) / statistics.median(base) - 1)
    print(f"A step takes {step / 1e3:.0f} us; two medians of {rounds} unchanged runs differ by {spread:.2%}.\n")
    print("| change | predicted | measured | error |\n|---|---:|---:|---:|")
    errors = []
    for (name, *_), part, times in zip(CHANGES, promised, changed):
        measured = statistics.median(times) / step
        error = abs(part / measured - 1)
        counts = abs(measured - 1) >= 5 * spread
        errors += [error] if counts else []
        print(f"| {name} | {part - 1:+.1%} | {measured - 1:+.1%} | {error:.1%}{'' if counts else ' (too small to count)'} |")
    print(f"\nMedian error {statistics.median(errors):.1%}, worst {max(errors):.1%}.")


if __name__ == "__main__":
    main()
