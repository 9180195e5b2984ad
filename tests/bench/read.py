#!/usr/bin/env python3
"""Measures how long `gpuflame.read` takes to make the complete tables of a recording with a million launches (wall
time).

    cargo build --release && PYTHON tests/bench/read.py [LAUNCHES] [RUNS]        PYTHON has pyarrow

The program tests/programs/load.c is recorded on the simulated CUDA stack, in a temporary folder. Every run is a
separate process. The time in which it imports the package is not counted."""

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LAUNCHES = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
RUNS = int(sys.argv[2]) if len(sys.argv) > 2 else 5

READ = """
import sys, time
import gpuflame, pyarrow.compute, pyarrow.ipc
start = time.perf_counter()
run = gpuflame.read(sys.argv[1])
activities = run.activities
tables = time.perf_counter()
launches = run.launches
print(activities.num_rows, launches.num_rows, tables - start, time.perf_counter() - tables)
"""


def record(folder):
    staged = subprocess.run([ROOT / "tests/gpusim/run", "--stage"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    source, program = ROOT / "tests/programs/load.c", folder / "load"
    flags = ["-O2", "-I", ROOT / "tests/gpusim/include", "-L", staged, "-lcudart", "-lpthread", "-ldl"]
    subprocess.run(["gcc", source, "-o", program, *flags], check=True)
    environment = os.environ | {
        "LD_LIBRARY_PATH": staged,
        "CUDA_INJECTION64_PATH": str(ROOT / "target/release/libgpuflame.so"),
        "GPUFLAME_FORMATS": "gfr",
        "GPUFLAME_OUTPUT": str(folder / "run"),
        "GPUFLAME_QUIET": "1",
    }
    # The program waits for the GPU after every 2,000 launches, so that no launch is dropped on a small machine.
    subprocess.run([program, "--launches", str(LAUNCHES), "--flush", "2000"], env=environment, stdout=subprocess.DEVNULL, check=True)
    return folder / "run.gfr"


def main():
    with tempfile.TemporaryDirectory() as folder:
        recording = record(Path(folder))
        environment = os.environ | {"PYTHONPATH": str(ROOT / "capi/python/src")}
        command = [sys.executable, "-c", READ, recording]
        told = [subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout.split() for _ in range(RUNS)]
        size = recording.stat().st_size / 1e6
    print(f"{int(told[0][0]):,} activities, {int(told[0][1]):,} launches, {size:.1f} MB")
    for at, what in ((2, "read().activities"), (3, "then .launches")):
        times = sorted(float(one[at]) for one in told)
        print(f"{what}: {statistics.median(times):.2f} s (median of {RUNS}, {times[0]:.2f} to {times[-1]:.2f})")


if __name__ == "__main__":
    main()
