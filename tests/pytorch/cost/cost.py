"""What gpuflame costs a PyTorch program, beside what people use: one table for tests/bench/performance.md.

    tests/pytorch/run tests/pytorch/cost/cost.py [--rounds 20] [--loops LOOP,..] [--ways WAY,..]
    GPUFLAME=libgpuflame.so                default: target/release/libgpuflame.so
    PYTHONPATH=$(tests/pytorch/triton)     with Triton's proton, which is left out otherwise

In a round every way is run once, in a process of its own that is forked when PyTorch is loaded and CUDA is not, in an
order that turns. A process makes many steps and tells how long the fastest tenth of them take at most, so that what else
the machine does counts little. Ways are compared within their round; shown is the median of the rounds, with the interval
that holds it in 95 of 100 cases (by order statistics). The last column is what a way adds to the null client's step, as a
part of what torch.profiler without stacks adds to it.
"""

import argparse
import contextlib
import gc
import importlib.util
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.insert(0, str(HERE.parent / "programs"))

import torch  # noqa: E402

from model import Gpt  # noqa: E402

STEPS = 300
WARM_UP = 50

# Every loop by what it sets: a launch of no cost and one of 4 us, as a traced driver's; a GPU that is waited for.
LOOPS = {
    "launch-bound": {},
    "launches of 4 us": {"GPUSIM_LAUNCH_NS": "4000"},
    "GPU-bound": {"GPUSIM_CLOCK": "real", "GPUSIM_KERNELS": "by_name"},
}


def library(name, default):
    path = pathlib.Path(os.environ.get(name, ROOT / default)).resolve()
    if not path.is_file():
        sys.exit(f"cost: {path} is missing: cargo build --release")
    return str(path)


def null_client(folder):
    path = f"{folder}/null_client.so"
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", path, HERE / "null_client.c", "-ldl"], check=True)
    return path


def torch_profiler(with_stack):
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    return torch.profiler.profile(activities=activities, with_stack=with_stack)


@contextlib.contextmanager
def proton():
    import triton.profiler

    triton.profiler.start("proton", backend="cupti")
    yield
    triton.profiler.finalize()


def cupti_for_proton(folder):
    """A folder that has the simulated CUPTI under the name that proton looks for."""
    places = os.environ["LD_LIBRARY_PATH"].split(":")
    found = (path for place in places for path in pathlib.Path(place).glob("libcupti.so.*"))
    link = pathlib.Path(folder, "cupti", "libcupti.so")
    link.parent.mkdir()
    link.symlink_to(next(found))
    return str(link.parent)


def ways(folder):
    """By name: environment, and what surrounds the steps."""
    gpuflame = library("GPUFLAME", "target/release/libgpuflame.so")
    recording = {"CUDA_INJECTION64_PATH": gpuflame, "GPUFLAME_FORMATS": "folded,svg,csv,gfr"}
    all_ways = {
        "off": ({}, contextlib.nullcontext),
        "null client": ({"CUDA_INJECTION64_PATH": null_client(folder)}, contextlib.nullcontext),
        "gpuflame": ({"CUDA_INJECTION64_PATH": gpuflame}, contextlib.nullcontext),
        "gpuflame with recording": (recording, contextlib.nullcontext),
        "torch.profiler": ({}, lambda: torch_profiler(False)),
        "torch.profiler with stacks": ({}, lambda: torch_profiler(True)),
    }
    if importlib.util.find_spec("triton") is not None:
        all_ways["proton"] = ({"TRITON_CUPTI_LIB_PATH": cupti_for_proton(folder)}, proton)
    return all_ways


def measured_steps(step):
    times = []
    for _ in range(STEPS):
        start = time.perf_counter_ns()
        step()
        times.append(time.perf_counter_ns() - start)
    return sorted(times)[len(times) // 10]


@torch.inference_mode()
def child(pipe, profiler):
    torch.set_num_threads(1)
    model = Gpt().cuda().eval()
    tokens = torch.zeros(2, 16, dtype=torch.long, device="cuda")

    def step():
        model(tokens)
        torch.cuda.synchronize()

    for _ in range(WARM_UP):
        step()
    gc.disable()
    with profiler():
        nanos = measured_steps(step)
    os.write(pipe, f"{nanos} {time.monotonic_ns()}".encode())
    sys.stdout.flush()


def run(environment, profiler, folder):
    """A fast step in ns; how long the process took to end, in ms; the most memory that it had, in MiB."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        os.chdir(folder)
        os.environ.update(environment)
        child(write, profiler)
        sys.exit(0)
    os.close(write)
    told = os.read(read, 100).decode().split()
    os.close(read)
    _, status, usage = os.wait4(pid, 0)
    ended = time.monotonic_ns()
    if status != 0 or len(told) != 2:
        sys.exit(f"cost: a child ended with {status}")
    return float(told[0]), (ended - int(told[1])) / 1e6, usage.ru_maxrss / 1024


def interval(values):
    """Median, and the values between which it is in 95 of 100 cases."""
    ordered, n = sorted(values), len(values)
    reach = int(0.98 * n**0.5)
    low, high = max(0, n // 2 - reach - (n % 2 == 0)), min(n - 1, n // 2 + reach)
    return statistics.median(ordered), ordered[low], ordered[high]


def shown(values, form):
    return "{0} ({1} to {2})".format(*(format(value, form) for value in interval(values)))


def picked(table, wanted):
    return {name: what for name, what in table.items() if wanted is None or name in wanted.split(",")}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--loops")
    parser.add_argument("--ways")
    options = parser.parse_args()
    folder = tempfile.mkdtemp()
    always = ("off", "null client")
    every = ways(folder)
    names = [way for way in every.items() if way[0] in always or way[0] in picked(every, options.ways)]
    print(f"{options.rounds} rounds, load {os.getloadavg()[0]:.1f} at the start\n", flush=True)
    for loop, settings in picked(LOOPS, options.loops).items():
        found = {name: [] for name, _ in names}
        for turn in range(options.rounds):
            for place in range(len(names)):
                name, (environment, profiler) = names[(place + turn) % len(names)]
                found[name].append(run({**settings, **environment}, profiler, folder))
        report(loop, found)


def report(loop, found):
    steps, exits, memory = ({name: [run[at] for run in runs] for name, runs in found.items()} for at in range(3))
    print(f"{loop}: a step of {statistics.median(steps['off']) / 1e3:.0f} us\n")
    witness = "torch.profiler" if "torch.profiler" in found else None
    heads = ["", "step, beside off", "step, beside the null client", "end later, ms", "memory more, MiB"]
    heads += [f"of what {witness} adds"] if witness else []
    print("| " + " | ".join(heads) + " |")
    print("|---" + "|---:" * (len(heads) - 1) + "|")
    for name in list(found)[1:]:

        def beside(other):
            return shown([100 * (a / b - 1) for a, b in zip(steps[name], steps[other])], "+.1f") + " %"

        def more(of):
            return shown([a - b for a, b in zip(of[name], of["off"])], "+.0f")

        null = beside("null client") if name != "null client" else ""
        cells = [name, beside("off"), null, more(exits), more(memory)]
        if witness:
            is_less = name not in ("null client", witness)
            cells.append(part_of_added(steps[name], steps[witness], steps["null client"]) if is_less else "")
        print("| " + " | ".join(cells) + " |", flush=True)
    print(flush=True)


def part_of_added(steps, of, null):
    """What one way adds to the null client's step, in hundredths of what another one adds."""
    return shown([100 * (a - c) / (b - c) for a, b, c in zip(steps, of, null)], ".1f") + " %"


if __name__ == "__main__":
    main()
