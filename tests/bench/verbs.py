#!/usr/bin/env python3
"""Measures the verbs that read large traces: time, speed compared with Python's json.load of the same file, and peak memory.

    cargo build --release -p gpuflame-cli && tests/bench/verbs.py [--megabytes N] [--rounds N] [--trace FILE] [VERB ...]

Without --trace, the script writes a trace like those of torch.profiler to the temporary folder. This trace has steps,
operators, launches with correlation ids and flows, and a kernel for each launch. Each command runs in a separate
process. Each round runs every command once, and the best round of a command counts. `cpu` is the CPU time of all
threads together, which other load affects least. On a busy machine, only speeds by CPU time can be compared. Verbs with
two inputs read the trace twice, so their speed is per input."""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KERNELS = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, at::detail::Array<char*, 3> >(int)",
    "ampere_sgemm_128x64_tn",
    "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x128_16x4_nn_align4>(Params)",
    "void at::native::reduce_kernel<512, 1, float>(float)",
)
OPERATORS = ("aten::add", "aten::linear", "aten::mm", "aten::sum", "aten::relu", "aten::layer_norm")
BEGIN_US = 1_700_000_000_000_000
LAUNCHES_PER_STEP = 1000
CONVERTED = ("parquet", "arrow", "csv", "sbt", "perfetto", "chrome")


def complete(category, name, process, thread, start, duration, args):
    return (
        f'{{"ph":"X","cat":"{category}","name":"{name}","pid":{process},"tid":{thread},'
        f'"ts":{start},"dur":{duration},"args":{{{args}}}}}'
    )


def events_of_launch(at):
    begin, number = BEGIN_US + 10 * at, at + 1
    if at % LAUNCHES_PER_STEP == 0:
        step, length = at // LAUNCHES_PER_STEP, 10 * LAUNCHES_PER_STEP - 20
        yield complete("user_annotation", f"ProfilerStep#{step}", 100, 100, f"{begin}.000", f"{length}.500", "")
    if at % 8 == 0:
        args = f'"External id":{number},"Ev Idx":{at}'
        yield complete("cpu_op", OPERATORS[at // 8 % 6], 100, 100, f"{begin}.125", "70.250", args)
    args = f'"External id":{number},"cbid":211,"correlation":{number}'
    yield complete("cuda_runtime", "cudaLaunchKernel", 100, 100, f"{begin + 1}.500", "4.750", args)
    flow = f'"id":{number},"cat":"ac2g","name":"ac2g"'
    yield f'{{"ph":"s",{flow},"pid":100,"tid":100,"ts":{begin + 1}.500}}'
    args = (
        f'"External id":{number},"queued":0,"device":0,"context":1,"stream":7,"correlation":{number},'
        '"registers per thread":32,"shared memory":0,"grid":[486,1,1],"block":[256,1,1]'
    )
    name = KERNELS[at * 7 % 4 if at % 3 else 1]
    yield complete("kernel", name, 0, 7, f"{begin + 6}.125", "8.375", args)
    yield f'{{"ph":"f",{flow},"pid":0,"tid":7,"ts":{begin + 6}.125,"bp":"e"}}'


def write_trace(path, size):
    """Writes a trace of at least `size` bytes, unless the file exists already."""
    if path.exists():
        return
    part = path.with_suffix(".part")
    with open(part, "w", buffering=1 << 20) as out:
        written = out.write('{"schemaVersion": 1, "traceEvents": [\n')
        at = 0
        while written < size:
            events = (event for launch in range(at, at + 1000) for event in events_of_launch(launch))
            written += out.write((",\n" if at else "") + ",\n".join(events))
            at += 1000
        out.write("\n]}\n")
    part.rename(path)


def measure(command):
    """Runs a command. Returns its wall time and its CPU time in seconds, and its peak memory in MB."""
    begin = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    wall = time.perf_counter() - begin
    if status != 0:
        sys.exit(f"failed: {' '.join(map(str, command))}")
    return wall, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def commands(gpuflame, trace, folder):
    """Returns the command line of each verb, with the number of inputs that the command reads."""
    reading = {
        "stats": (["stats", trace, folder / "steps.csv", "none", "1000000"], 1),
        "info": (["info", trace], 1),
        "top": (["top", trace], 1),
        "flamegraph": (["flamegraph", trace, "-o", folder / "trace.svg"], 1),
        "summary": (["summary", trace], 1),
        "check": (["check", trace], 1),
        "merge-ranks": (["merge-ranks", trace], 1),
        "diff": (["diff", trace, trace], 2),
    }
    for form in CONVERTED:
        output = folder / ("activities.parquet" if form == "parquet" else f"trace.{form}")
        reading[form] = (["convert", trace, "--format", form, "-o", output], 1)
    return {verb: ([gpuflame, *arguments], inputs) for verb, (arguments, inputs) in reading.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=531)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--gpuflame", type=Path, default=ROOT / "target/release/gpuflame")
    parser.add_argument("verbs", nargs="*", metavar="VERB")
    options = parser.parse_args()
    trace = options.trace or Path(tempfile.gettempdir()) / f"gpuflame-verbs-{options.megabytes}.json"
    if options.trace is None:
        write_trace(trace, options.megabytes * 1_000_000)
    load = [sys.executable, "-c", "import json, sys; json.load(open(sys.argv[1]))", trace]
    with tempfile.TemporaryDirectory() as folder:
        known = commands(options.gpuflame, trace, Path(folder))
        unknown = [verb for verb in options.verbs if verb not in known]
        if unknown:
            parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(known)}")
        chosen = {"json.load": (load, 1)} | {verb: known[verb] for verb in options.verbs or known}
        best = {name: (float("inf"), float("inf"), 0.0) for name in chosen}
        for _ in range(options.rounds):
            for name, (command, _) in chosen.items():
                (wall, cpu, peak), (least, least_cpu, most) = measure(command), best[name]
                best[name] = (min(wall, least), min(cpu, least_cpu), max(peak, most))
    size = trace.stat().st_size / 1e6
    print(f"{trace}: {size:.0f} MB, best of {options.rounds}\n")
    print("| verb | wall s | cpu s | MB/s | times json.load | the same by cpu | peak MB |\n|---|---:|---:|---:|---:|---:|---:|")
    for name, (_, inputs) in chosen.items():
        wall, cpu, peak = best[name]
        by_wall, by_cpu = (best["json.load"][at] * inputs / time for at, time in enumerate((wall, cpu)))
        speed = size * inputs / wall
        print(f"| {name} | {wall:.2f} | {cpu:.2f} | {speed:.0f} | {by_wall:.1f} | {by_cpu:.1f} | {peak:.0f} |")


if __name__ == "__main__":
    main()
