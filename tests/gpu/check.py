"""Compares the files that gpuflame wrote about a run with the expected values, and prints a JSON line per check.

`check.py program NAME SOURCE FOLDER [--witness FILE]` checks the EXPECT lines of SOURCE, the ledger, the truth file and
the witness.

`check.py kineto NAME FOLDER TABLE` compares with torch.profiler's table of another run.

`check.py ledger NAME FOLDER` checks the ledger, and the truth file if there is one.

`check.py witness NAME FOLDER FILE` compares with the probe's sums of another run.

`check.py expected NAME SOURCE FOLDER` checks only the counts in the EXPECT lines.

`check.py captured_by NAME FOLDER FUNCTION=COUNT..` checks the number of graph nodes that ran, per function that
captured them.

`check.py sites NAME FOLDER WORD..` checks that kernels with WORD in their names are under functions with WORD.

`check.py functions NAME FOLDER FILE FUNCTION..` checks that kernels are under Python functions in FILE.

`check.py verify NAME FOLDER` checks GPUFLAME_VERIFY's line, and reports the reasons why stacks ended.

`check.py ncu CSV FOLDER KERNEL` compares a kernel's mean time with the hardware counters.

Expected values come from the programs' sources, the probe, the simulated stack's truth file or another tool, never from
gpuflame. FOLDER contains out.csv, out.folded, stderr, stdout and, on the simulated stack, truth.json."""

import csv
import ctypes
import json
import os
import re
import sys
from collections import defaultdict

# Maximum relative difference on hardware between the GPU times of two runs of the same program. The times differ
# because the GPU's clock rate changes, and because kernels overlap with other kernels.
RUN_TO_RUN = 0.15


def say(**line):
    print(json.dumps(line))


def holds(sentence, expected, found, ok=None):
    say(check=sentence, expected=expected, found=found, ok=bool(expected == found if ok is None else ok))


def fact(name, value):
    say(fact=name, value=value)


def read(folder, name):
    try:
        with open(os.path.join(folder, name), errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def json_lines(text):
    for line in text.splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            continue


def table(folder):
    """Reads out.csv. Returns (what, name) -> [count, ns, symbol]; `what` is kernel, copy or set, as in the CSV file."""
    sums = defaultdict(lambda: [0, 0, ""])
    for row in csv.DictReader(read(folder, "out.csv").splitlines()):
        entry = sums[row["kind"], row["name"]]
        entry[0] += int(row["count"])
        entry[1] += int(row["total_ns"])
        entry[2] = row.get("symbol") or ""
    return sums


def leaf_of(what, name):
    return {"kernel": f"[GPU_Kernel]{name}", "copy": f"[GPU_Memcpy {name}]", "set": "[GPU_Memset]"}[what]


def stacks(folder):
    for line in read(folder, "out.folded").splitlines():
        if line and not line.startswith("# "):
            stack, _, weight = line.rpartition(" ")
            yield stack.split(";"), int(weight)


def has_in_order(frames, wanted):
    rest = iter(frames)
    return all(any(frame == function for frame in rest) for function in wanted)


def ledger_of(folder):
    """Reads gpuflame's ledger from stderr. Returns its sums, word -> (total, {part: count}), and its other lines."""
    sums, lines = {}, []
    for line in read(folder, "stderr").splitlines():
        if not line.startswith("gpuflame: "):
            continue
        line = line[len("gpuflame: "):]
        match = re.fullmatch(r"([\w ]+?) (\d+) = ((?:[\w ]+ \d+)(?: \+ [\w ]+ \d+)*)", line)
        if match:
            parts = dict((part.rpartition(" ")[0], int(part.rpartition(" ")[2])) for part in match[3].split(" + "))
            sums[match[1]] = (int(match[2]), parts)
        else:
            lines.append(line)
    return sums, lines


def check_ledger(name, folder, everything_matched=True):
    sums, lines = ledger_of(folder)
    for word in ("launches", "activities"):
        if word not in sums:
            holds(f"{name}: the ledger has a line of {word}", True, False)
            fact(f"{name}: the end of stderr", read(folder, "stderr")[-800:])
        elif everything_matched:
            holds(f"{name}: all {word} are matched", sums[word][0], sums[word][1].get("matched"))
    # In each line with a total and its parts, the parts must add up to the total. The ledger has such lines for each
    # kind of GPU work, for graph nodes, and for the time of each GPU.
    for word, (total, parts) in sums.items():
        holds(f"{name}: the ledger's {word} add up", total, sum(parts.values()))
    for line in lines:
        if line.startswith(("lost:", "own cost:", "graph launches:", "stops:", "stacks ")):
            fact(f"{name}: ledger", line)
    return sums


def expectations(source):
    """Yields the EXPECT and CAPTURED lines of a program's source as (word, what, name, count or None, functions)."""
    with open(source) as file:
        for line in file:
            match = re.match(r"[ /*]*(EXPECT|CAPTURED) (kernel|copy|set) (\S+) (?:(\d+) )?(\S+)", line)
            if match:
                yield match[1], match[2], match[3], int(match[4] or 0), match[5].split(";")


def check_expectations(name, source, folder):
    expected = list(expectations(source))
    if not expected:
        holds(f"{name}: {os.path.basename(source)} says what is expected", True, False)
    found, sites, counts = table(folder), defaultdict(list), defaultdict(int)
    for word, what, kernel, count, functions in expected:
        if word == "EXPECT":
            counts[what, kernel] += count
            sites[what, kernel].append(functions)
    for (what, kernel), count in counts.items():
        holds(f"{name}: {what} {kernel} ran as often as its source says", count, found[what, kernel][0])
        leaf = leaf_of(what, kernel)
        strays = [frames for frames, _ in stacks(folder)
                  if frames[-1] == leaf and not any(has_in_order(frames, site) for site in sites[what, kernel])]
        holds(f"{name}: every {what} {kernel} stands under the functions that start it", [], [";".join(f) for f in strays[:5]])
        for site in sites[what, kernel]:
            under = any(frames[-1] == leaf and has_in_order(frames, site) for frames, _ in stacks(folder))
            holds(f"{name}: there is a {what} {kernel} under {';'.join(site)}", True, under)
        duration = re.search(r"_d(\d+)$", kernel)
        if duration:
            least = int(duration[1]) * count
            total = found[what, kernel][1]
            # The kernel waits by the GPU's clock, which advances in steps of up to 1,024 ns.
            least -= 1024 * count
            holds(f"{name}: {kernel} took at least the time it waits for", f">= {least}", total, total >= least)
    check_captured(name, expected, folder)
    known = {what_name for what_name in counts}
    strange = {f"{what} {kernel}": row[0] for (what, kernel), row in found.items()
               if (what, kernel) not in known and what == "kernel"}
    holds(f"{name}: no other kernel ran", {}, strange)


def check_captured(name, expected, folder):
    captured = [(kernel, functions[0]) for word, what, kernel, _, functions in expected if word == "CAPTURED"]
    if not captured:
        return
    for kernel, function in captured:
        wrong = [";".join(frames) for frames, _ in stacks(folder)
                 if frames[-1] == leaf_of("kernel", kernel)
                 and (function not in frames or any(other in frames for k, other in captured if other != function))]
        holds(f"{name}: every {kernel} shows {function} as where it was captured", [], wrong[:5])


def check_truth(name, folder):
    """Compares gpuflame's table with the simulated stack's truth file, exactly to the nanosecond."""
    ran = defaultdict(lambda: [0, 0])
    totals = None
    for row in json_lines(read(folder, "truth.json")):
        if "totals" in row:
            totals = row["totals"]
        elif row["kind"] == "kernel":
            add(ran["kernel", row["name"]], row)
        else:
            kind = "set" if row["kind"] == "memset" else "copy"
            add(ran[kind, "memset" if kind == "set" else row["copy"] or "PtoP"], row)
    if totals is None:
        return
    # If a row of the table has a symbol, compare the row by this symbol, because the truth file contains symbols.
    found = {(what, row[2] or kernel): row[:2] for (what, kernel), row in table(folder).items()}
    holds(f"{name}: counts and times are those of the truth file",
          {f"{w} {k}": v for (w, k), v in sorted(ran.items())}, {f"{w} {k}": v for (w, k), v in sorted(found.items())})
    sums, _ = ledger_of(folder)
    holds(f"{name}: the ledger counts what the truth file counts", totals["count"], sums.get("activities", (None,))[0])


def add(entry, row):
    entry[0] += row["count"]
    entry[1] += row["total_ns"]


def check_witness(name, folder, path):
    rows = {row["name"]: row for row in json_lines(read("", path)) if "name" in row}
    if not rows:
        say(missing=f"{name}: the probe wrote nothing ({path})")
        return
    ours = {}
    for (what, kernel), (count, nanos, symbol) in table(folder).items():
        ours[symbol or kernel if what == "kernel" else f"{what} {kernel}"] = (count, nanos)
    theirs = {key: (row["count"], row["nanos"]) for key, row in rows.items()}
    compare(name, "the probe", ours, theirs)


def compare(name, witness, ours, theirs):
    """Checks that the counts of two runs are equal, and that their GPU times differ by at most RUN_TO_RUN."""
    differing = {key: [ours.get(key, (0, 0))[0], theirs.get(key, (0, 0))[0]] for key in sorted(set(ours) | set(theirs))
                 if ours.get(key, (0, 0))[0] != theirs.get(key, (0, 0))[0]}
    holds(f"{name}: counts per kernel, copy and fill are those of {witness} (differing: [gpuflame, {witness}])", {}, differing)
    ours_ns, theirs_ns = (sum(nanos for _, nanos in side.values()) for side in (ours, theirs))
    ratio = ours_ns / theirs_ns if theirs_ns else 0
    holds(f"{name}: GPU time is that of {witness} in another run, {RUN_TO_RUN:.0%} more or less",
          theirs_ns, ours_ns, abs(ratio - 1) <= RUN_TO_RUN)
    apart = {key: [ours[key][1], theirs[key][1]] for key in sorted(set(ours) & set(theirs))
             if theirs[key][1] and abs(ours[key][1] / theirs[key][1] - 1) > RUN_TO_RUN}
    fact(f"{name}: works whose time differs by more than that, [gpuflame, {witness}] ns", apart)


def check_events(name, folder):
    """Checks that the GPU time of the kernels between two CUDA events is at most the time between the events."""
    for row in json_lines(read(folder, "stdout")):
        if "event_ns" in row:
            kernels = sum(nanos for (what, _), (_, nanos, _) in table(folder).items() if what == "kernel")
            holds(f"{name}: the kernels of one stream took no longer than the CUDA events around them",
                  f"<= {row['event_ns']:.0f}", kernels, kernels <= row["event_ns"] * 1.01)


def program(name, source, folder, _flag=None, path=None):
    check_expectations(name, source, folder)
    check_ledger(name, folder)
    check_events(name, folder)
    check_truth(name, folder)
    if path:
        check_witness(name, folder, path)


def ledger(name, folder):
    check_ledger(name, folder)
    check_truth(name, folder)


def witness(name, folder, path):
    check_ledger(name, folder, everything_matched=False)
    check_witness(name, folder, path)


def expected(name, source, folder):
    for _, what, kernel, count, _ in expectations(source):
        holds(f"{name}: {what} {kernel} ran as often as its source says", count, table(folder)[what, kernel][0])


def verify(name, folder):
    _, lines = ledger_of(folder)
    for line in lines:
        if line.startswith("lost:"):
            stops = {word: int(count) for word, count in re.findall(r"(stacks_\w+) (\d+)", line)}
            fact(f"{name}: why stacks ended early", stops)
    line = next((line for line in lines if line.startswith("verified:")), None)
    if line is None:
        say(missing=f"{name}: this libgpuflame.so took no stack twice under GPUFLAME_VERIFY=1")
        return
    fact(f"{name}: {line}", "GPUFLAME_VERIFY=1")
    taken = re.search(r"(\d+) stacks", line)
    holds(f"{name}: stacks were taken a second time", True, bool(taken and int(taken[1])))
    for count, other in re.findall(r"(\d+) differ from ([^,]+)", line):
        holds(f"{name}: stacks that differ from {other}", 0, int(count))


def demangle(symbol):
    try:
        function = ctypes.CDLL("libstdc++.so.6").__cxa_demangle
    except OSError:
        return symbol
    function.restype = ctypes.c_void_p
    status = ctypes.c_int()
    text = function(symbol.encode(), None, None, ctypes.byref(status))
    return ctypes.string_at(text).decode() if text and status.value == 0 else symbol


def kineto(name, folder, path):
    """Compares gpuflame's files with the file `path`, which a run under torch.profiler wrote: {"kernels": {name:
    [count, ns]}, "copies": ..}."""
    check_ledger(name, folder, everything_matched=False)
    check_hanging(name, folder)
    try:
        with open(path) as file:
            theirs = json.load(file)
    except (OSError, ValueError) as error:
        say(missing=f"{name}: torch.profiler's table: {error}")
        return
    ours = {demangle(symbol or kernel): (count, nanos)
            for (what, kernel), (count, nanos, symbol) in table(folder).items() if what == "kernel"}
    compare(name, "torch.profiler", ours, {key: tuple(value) for key, value in theirs["kernels"].items()})
    copies = sum(row[0] for (what, _), row in table(folder).items() if what != "kernel")
    holds(f"{name}: as many copies and fills as torch.profiler saw", theirs["copies"], copies)


def captured_by(name, folder, *expected):
    """Checks a run with GPUFLAME_UNIT=count whose graph nodes are each captured by exactly one of the functions."""
    check_ledger(name, folder)
    check_truth(name, folder)
    for function, count in (word.split("=") for word in expected):
        nodes = sum(weight for frames, weight in stacks(folder)
                    if "[graph]" in frames and function in frames[frames.index("[graph]"):])
        holds(f"{name}: graph kernels that {function} captured", int(count), nodes)


def sites(name, folder, *words):
    """Checks that a kernel named after a PyTorch operation is under functions with the operation's name. For a kernel
    in a graph, these are the functions that captured it. WORDs are compared without case and underscores."""
    def plain(text):
        return text.lower().replace("_", "")

    for word in words:
        count, wrong = 0, []
        for frames, _ in stacks(folder):
            if plain(word) in plain(frames[-1]):
                count += 1
                above = frames[frames.index("[graph]"):-1] if "[graph]" in frames else frames[:-1]
                if not any(plain(word) in plain(frame) for frame in above):
                    wrong.append(";".join(frames)[-600:])
        fact(f"{name}: stacks that end in a kernel called like {word}", count)
        holds(f"{name}: those of {word} stand under functions called so", [], wrong[:3])


def functions_of_python(name, folder, file, *functions):
    """Checks that every kernel is under Python functions in `file`, and that each of FUNCTIONS has kernels under it.
    For a kernel in a graph, these are the functions that captured it."""
    own = re.compile(rf"(?:.*\.)?(.+) \({re.escape(file)}:\d+\)")
    without, under = [], defaultdict(int)
    for frames, nanos in stacks(folder):
        if "_Kernel]" not in frames[-1]:
            continue
        if not any(own.fullmatch(frame) for frame in frames):
            without.append(";".join(frames)[-600:])
        captured = frames[frames.index("[graph]"):] if "[graph]" in frames else frames
        for function in {match[1] for match in map(own.fullmatch, captured) if match}:
            under[function] += nanos
    holds(f"{name}: every kernel stands under functions of {file}", [], without[:3])
    for function in functions:
        holds(f"{name}: there are kernels under {function} of {file}", True, under[function] > 0)


def check_hanging(name, folder):
    """Adds two facts to the report: the total GPU time, and the GPU time of work without a stack."""
    total = hanging = 0
    for frames, weight in stacks(folder):
        total += weight
        hanging += weight if frames[0].startswith("[") else 0
    fact(f"{name}: GPU ns in all, and of them with no stack", [total, hanging])


def ncu(path, folder, kernel):
    values, unit = [], "ns"
    for row in csv.DictReader(line for line in read("", path).splitlines() if line.startswith('"')):
        if row.get("Metric Name") == "gpu__time_duration.sum":
            unit = row["Metric Unit"]
            values.append(float(row["Metric Value"].replace(",", "")))
    if not values:
        say(missing="ncu read no time: " + read("", path)[-300:])
        return
    scale = {"ns": 1, "nsecond": 1, "us": 1e3, "usecond": 1e3, "ms": 1e6, "msecond": 1e6}.get(unit, 1)
    theirs = scale * sum(values) / len(values)
    count, nanos, _ = table(folder)["kernel", kernel]
    holds(f"{kernel}: mean ns as ncu's, {RUN_TO_RUN:.0%} more or less", round(theirs), round(nanos / max(count, 1)),
          abs(nanos / max(count, 1) / theirs - 1) <= RUN_TO_RUN)


if __name__ == "__main__":
    {"program": program, "ledger": ledger, "kineto": kineto, "captured_by": captured_by, "sites": sites,
     "functions": functions_of_python, "witness": witness, "expected": expected, "verify": verify, "ncu": ncu}[sys.argv[1]](*sys.argv[2:])
