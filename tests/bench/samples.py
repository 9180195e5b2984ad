#!/usr/bin/env python3
"""Measures what samples cost the sampled thread and the whole process. A program does the same work with and without
samples.

    cargo build --release && cargo test --no-run && tests/bench/samples.py [TARGET/debug/deps]

Prints a table. Each figure is the median of RUNS turns. The spread of the middle half of the turns is in brackets."""

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIBRARIES = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "target/debug/deps"
RUNS = int(os.environ.get("RUNS", "15"))
WAYS = {
    "without samples": {},
    "99 Hz": {"GPUFLAME_CPU_SAMPLES": "99"},
    "999 Hz": {"GPUFLAME_CPU_SAMPLES": "999"},
    "99 Hz and waits": {"GPUFLAME_CPU_SAMPLES": "99", "GPUFLAME_OFF_CPU": "1"},
    "99 Hz by a timer": {"GPUFLAME_CPU_SAMPLES": "99"},
}


def prepare(folder):
    for library, name in [("cuda", "libcuda.so.1"), ("cudart", "libcudart.so.13"), ("cudart", "libcudart.so"), ("cupti", "libcupti.so.13")]:
        (folder / name).symlink_to(LIBRARIES / f"libgpusim_{library}.so")
    program = folder / "sampled"
    flags = ["-O2", "-pthread", "-I", ROOT / "tests/gpusim/include"]
    source = ROOT / "tests/programs/sampled.c"
    subprocess.run(["gcc", *flags, source, "-o", program, "-L", folder, "-lcudart", "-lpthread"], check=True)
    return program


def turn(folder, program, way, settings):
    keep = {name: value for name, value in os.environ.items() if not name.startswith(("GPUFLAME_", "GPUSIM_", "CUDA_INJ"))}
    env = keep | {
        "LD_LIBRARY_PATH": str(folder),
        "CUDA_INJECTION64_PATH": str(LIBRARIES / "libgpuflame.so"),
        "GPUFLAME_FORMATS": "folded",
        "GPUFLAME_QUIET": "1",
    } | settings
    words = [program, "fixed"] + (["refused"] if "timer" in way else [])
    done = subprocess.run(words, env=env, cwd=folder, text=True, capture_output=True, check=True)
    return [int(word) for word in done.stdout.split()]


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = prepare(folder)
        taken = {way: [] for way in WAYS}
        for _ in range(RUNS):
            for way, settings in WAYS.items():
                taken[way].append(turn(folder, program, way, settings))
    base = [statistics.median(column) for column in zip(*taken["without samples"])]
    print("| samples | the thread | the process |\n| --- | ---: | ---: |")
    for way, rows in taken.items():
        cells = []
        for of, column in zip(base, zip(*rows)):
            low, middle, high = statistics.quantiles(column, n=4)
            cells.append(f"{100 * (middle / of - 1):+.2f} % ({100 * (low / of - 1):+.2f} to {100 * (high / of - 1):+.2f})")
        print(f"| {way} | {cells[0]} | {cells[1]} |")


main()
