"""Measures the costs of gpuflame and of other profilers for PyTorch programs, for the table of tests/bench/performance.md.

    tests/pytorch/cost/table [--rounds 20]          builds what is missing, and prints the table: some 20 minutes on two cores
    tests/pytorch/run tests/pytorch/cost/cost.py [--rounds 20] [--loops LOOP,..] [--ways WAY,..] [--kept FILE] [--limits]
    GPUFLAME=libgpuflame.so                         default: target/release/libgpuflame.so
    PYTHONPATH=$(tests/pytorch/triton)              with Triton's proton, which cannot be measured otherwise

A way is a profiler, or no profiler. In each round, every loop runs once in every way. Each run has its own process,
which is forked after PyTorch was loaded and before CUDA starts. The order of the ways rotates. A process makes many
steps and reports the tenth percentile of their durations, so that other load on the machine matters little. Ways are
compared within their round. The table shows the median of the rounds, with the interval that contains it in 95 of 100
cases (by order statistics). The last column is a share: the time that the way adds to a step with the null client,
divided by the time that torch.profiler without stacks adds to it. With --limits the exit code is 1 if gpuflame exceeds
its limits (`LIMITS`), or if the loop that should wait for the GPU does not wait.

Each result is written to FILE immediately, so the same command continues an interrupted measurement. Results from
another build of the library, or from other versions of the files in this folder, are not used.
"""

import argparse
import contextlib
import gc
import hashlib
import importlib.util
import json
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

# Kernel of the matrix products in the linear layers of the model. A step has 17 matrix products.
PRODUCT = "sm90_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x64x32_warpgroupsize1x1x1_execute_kernel__5x_cublas"

# Environment variables that each loop sets. In the first loop a launch costs nothing; in the second loop a launch takes
# 4 us, as with a traced driver. The third and the fourth loop are the same as the first two, but the CPU waits for the
# GPU. If a launch takes 4 us, the launches of a step take longer than its kernels usually do. Therefore the kernels of
# the products are longer in the last loop.
LOOPS = {
    "launch-bound": {},
    "launches of 4 us": {"GPUSIM_LAUNCH_NS": "4000"},
    "GPU-bound": {"GPUSIM_CLOCK": "real", "GPUSIM_KERNELS": "by_name"},
    "GPU-bound, launches of 4 us": {
        "GPUSIM_CLOCK": "real",
        "GPUSIM_KERNELS": f"by_name,{PRODUCT}=150us",
        "GPUSIM_LAUNCH_NS": "4000",
    },
}

# Maximum costs of gpuflame with its default settings; the median costs are compared with them. The first two limits
# apply if a launch costs nothing: the time that gpuflame adds to the null client's step, and this time as a share of
# the time that torch.profiler adds. The last two limits apply to every loop: how much later the process ends, and how
# much more memory it uses.
LIMITS = {"beside the null client, %": 8, "of what torch.profiler adds, %": 5, "end later, ms": 500, "memory more, MiB": 40}
# Minimum share of a step for which the CPU waits for the GPU, in loops whose duration depends on the GPU.
LEAST_WAIT = 0.05


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
    """Returns a folder that contains the simulated CUPTI under the file name that proton looks for."""
    places = os.environ["LD_LIBRARY_PATH"].split(":")
    found = (path for place in places for path in pathlib.Path(place).glob("libcupti.so.*"))
    link = pathlib.Path(folder, "cupti", "libcupti.so")
    link.parent.mkdir()
    link.symlink_to(next(found))
    return str(link.parent)


def ways(folder):
    """Returns the environment variables of each way and the context manager around its steps, keyed by the way's
    name."""
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


ALWAYS = ("off", "null client")
PROFILER = "torch.profiler"


def picked(table, wanted):
    """Returns the requested entries of the table, or all if none are requested, in the order of the table. The entries
    in ALWAYS are included in any case."""
    names = wanted.split(",") if wanted is not None else list(table)
    unknown = [name for name in names if name not in table]
    if unknown:
        sys.exit(f"cost: {unknown[0]!r} is none of: {', '.join(table)}")
    return {name: what for name, what in table.items() if name in names or name in ALWAYS}


def measured_steps(launch, wait):
    """Returns the tenth percentile of the steps' durations in ns, and the median share of a step that is spent waiting
    for the GPU."""
    times, waits = [], []
    for _ in range(STEPS):
        start = time.perf_counter_ns()
        launch()
        launched = time.perf_counter_ns()
        wait()
        end = time.perf_counter_ns()
        times.append(end - start)
        waits.append((end - launched) / (end - start))
    return sorted(times)[len(times) // 10], statistics.median(waits)


@torch.inference_mode()
def child(pipe, profiler):
    torch.set_num_threads(1)
    model = Gpt().cuda().eval()
    tokens = torch.zeros(2, 16, dtype=torch.long, device="cuda")

    for _ in range(WARM_UP):
        model(tokens)
        torch.cuda.synchronize()
    gc.disable()
    with profiler():
        nanos, waited = measured_steps(lambda: model(tokens), torch.cuda.synchronize)
    os.write(pipe, f"{nanos} {waited} {time.monotonic_ns()}".encode())
    sys.stdout.flush()


def run(environment, profiler, folder):
    """Returns the duration of a fast step in ns, the time that the process takes to exit in ms, its peak memory in MiB,
    and the share of a step for which it waits for the GPU."""
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
    if status != 0 or len(told) != 3:
        return None
    return float(told[0]), (ended - int(told[2])) / 1e6, usage.ru_maxrss / 1024, float(told[1])


class Kept:
    """The results so far, keyed by loop, way and round. Each result is a line of JSON in a file, to which this program
    only appends lines."""

    def __init__(self, path):
        of = hashlib.sha256()
        for file in (library("GPUFLAME", "target/release/libgpuflame.so"), *sorted(HERE.iterdir()), sys.modules[Gpt.__module__].__file__):
            if os.path.isfile(file):
                of.update(pathlib.Path(file).read_bytes())
        self.of, self.found = of.hexdigest(), {}
        self.file = open(path, "a+") if path else None
        if self.file:
            self.file.seek(0)
            # A line that was truncated by an interruption is not valid JSON, so it is skipped.
            for line in self.file:
                with contextlib.suppress(ValueError):
                    line = json.loads(line)
                    if line["of"] == self.of:
                        self.found[tuple(line["key"])] = line["told"]

    def add(self, key, told):
        self.found[key] = told
        if self.file:
            self.file.write("\n" + json.dumps({"of": self.of, "key": key, "told": told}))
            self.file.flush()


def interval(values):
    """Returns the median of the values, and the interval that contains it in 95 of 100 cases."""
    ordered, n = sorted(values), len(values)
    reach = int(0.98 * n**0.5)
    low, high = max(0, n // 2 - reach - (n % 2 == 0)), min(n - 1, n // 2 + reach)
    return statistics.median(ordered), ordered[low], ordered[high]


def shown(values, form):
    return "{0} ({1} to {2})".format(*(format(value, form) for value in interval(values)))


def measure(loops, every, rounds, kept, folder):
    """Measures all missing results, one round after the other. So after an interruption, every loop has equally many
    results."""
    names = list(every)
    wanted = [
        (loop, names[(place + turn) % len(names)], turn)
        for turn in range(rounds)
        for loop in loops
        for place in range(len(names))
    ]
    missing = [key for key in wanted if key not in kept.found]
    started = time.monotonic()
    for done, key in enumerate(missing, 1):
        loop, name, turn = key
        environment, profiler = every[name]
        for attempt in range(3):
            told = run({**LOOPS[loop], **environment}, profiler, folder)
            if told:
                break
            print(f"cost: a run failed ({loop}, {name}, round {turn + 1})", file=sys.stderr)
        else:
            sys.exit("cost: three times; the same command goes on from there")
        kept.add(key, told)
        left = (time.monotonic() - started) / done * (len(missing) - done)
        said = f"round {turn + 1} of {rounds}, {len(wanted) - len(missing) + done} of {len(wanted)} runs, {left / 60:.0f} minutes to go"
        print(f"\r{said}   ", end="", file=sys.stderr, flush=True)
    if missing:
        print(file=sys.stderr)


def report(loop, found):
    """Prints the table rows of one loop. `found` maps each way to its runs."""
    steps, exits, memory = ({name: [run[at] for run in runs] for name, runs in found.items()} for at in range(3))
    for name in found:

        def beside(other):
            if name in (other, "off"):
                return ""
            return shown([100 * (a / b - 1) for a, b in zip(steps[name], steps[other])], "+.1f") + " %"

        def more(of):
            return shown([a - b for a, b in zip(of[name], of["off"])], "+.0f") if name != "off" else ""

        part = ""
        if PROFILER in found and name not in (*ALWAYS, PROFILER):
            part = part_of_added(steps[name], steps[PROFILER], steps["null client"])
        own = shown([step / 1e3 for step in steps[name]], ".0f")
        null = beside("null client")
        print("| " + " | ".join([loop, name, own, beside("off"), null, part, more(exits), more(memory)]) + " |")
        loop = ""


def part_of_added(steps, of, null):
    """Returns the time that one way adds to a step with the null client, in percent of the time that another way
    adds."""
    return shown([100 * (a - c) / (b - c) for a, b, c in zip(steps, of, null)], ".1f") + " %"


def missed(loop, found):
    """Returns a sentence for each limit that is exceeded in the runs of one loop. `found` maps each way to its runs."""
    middle = lambda values: statistics.median(values)
    steps, exits, memory, waits = ({name: [run[at] for run in runs] for name, runs in found.items()} for at in range(4))
    figures = {}
    if "gpuflame" in found:
        if loop == "launch-bound":
            beside = [100 * (a / b - 1) for a, b in zip(steps["gpuflame"], steps["null client"])]
            figures["beside the null client, %"] = middle(beside)
            if PROFILER in found:
                both = zip(steps["gpuflame"], steps[PROFILER], steps["null client"])
                figures["of what torch.profiler adds, %"] = middle([100 * (a - c) / (b - c) for a, b, c in both])
        for name, of in (("end later, ms", exits), ("memory more, MiB", memory)):
            figures[name] = middle([a - b for a, b in zip(of["gpuflame"], of["off"])])
    for name, figure in figures.items():
        if figure > LIMITS[name]:
            yield f"{loop}: {name}: {figure:.1f}, and not {LIMITS[name]} at most"
    if loop.startswith("GPU-bound"):
        for name in ("off", "null client", "gpuflame"):
            if name in found and middle(waits[name]) < LEAST_WAIT:
                yield f"{loop}: {name}: {middle(waits[name]):.1%} of a step are waited for the GPU, and not {LEAST_WAIT:.0%} at least"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--loops")
    parser.add_argument("--ways")
    parser.add_argument("--kept")
    parser.add_argument("--limits", action="store_true")
    options = parser.parse_args()
    folder = tempfile.mkdtemp()
    every, loops = picked(ways(folder), options.ways), picked(LOOPS, options.loops)
    kept = Kept(options.kept)
    before = os.getloadavg()[0]
    try:
        measure(loops, every, options.rounds, kept, folder)
    except KeyboardInterrupt:
        sys.exit("\ncost: the same command goes on from there" if options.kept else "\ncost: nothing is kept")
    print(f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores, CPython {sys.version.split()[0]}, PyTorch {torch.__version__}; {options.rounds} rounds", end="")
    print(f", load {before:.1f} before the first\n")
    heads = ["loop", "way", "step, us", "beside off", "beside the null client", f"of what {PROFILER} adds", "end later, ms", "memory more, MiB"]
    print("| " + " | ".join(heads) + " |")
    print("|---|---|" + "---:|" * (len(heads) - 2))
    found = {loop: {name: [kept.found[loop, name, turn] for turn in range(options.rounds)] for name in every} for loop in loops}
    for loop in loops:
        report(loop, found[loop])
    said = [sentence for loop in loops for sentence in missed(loop, found[loop])]
    for sentence in said:
        print(f"cost: {sentence}", file=sys.stderr)
    if options.limits and said:
        sys.exit(1)


if __name__ == "__main__":
    main()
