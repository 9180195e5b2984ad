"""Answers the truth kit's questions from the probe's recordings. Each answer is a JSON line {"answer": number, "asked":
.., "how": .., "observed": data}. If a question's program did not run, the answer states that.

    answers.py FOLDER-OF-THE-STEP FOLDER-OF-RECORDINGS LAUNCHES-OF-THE-DROPS-RUN"""

import json
import os
import sys
from collections import Counter, defaultdict

ASKED = {
    1: ("Do a runtime call and the driver call inside it have the same correlation id?", "recordings: nested callbacks of one thread"),
    2: ("Does every ENTER have an EXIT, and is a record ever delivered before its call's EXIT?", "recordings with small buffers"),
    3: ("Which thread hands buffers back?", "recordings: thread of each buffer and of each callback"),
    4: ("Is the driver alive in our atexit handlers and destructor, and what does FlushAll(1) return there?", "probe mode exit under `tiny exit`"),
    5: ("What does each part of CUPTI cost a launch?", "step matrix"),
    6: ("What ids do graphs, nodes and instances get, and in which order do the callbacks come?", "recordings capture, explicit, update"),
    7: ("Which libcupti does PyTorch map, when, and does torch.profiler work beside gpuflame?", "torch_ask.py maps and beside"),
    8: ("What does CUDA answer in a forked child, and is the injection called again?", "program forks, plain and with the probe"),
    9: ("What happens if the first buffer asked for is NULL?", "probe mode drops with no buffer"),
    10: ("Are records that find no buffer counted, all of them, and once?", "probe mode drops with two buffers of 16 KiB"),
    11: ("Do cuptiGetContextId and cuptiGetStreamIdEx answer inside callbacks, with the record's numbers?", "recordings"),
    12: ("What does it cost to ask for the name of every callback id?", "probe mode names, four rounds, the first cold"),
    13: ("Which call's correlation id does the record of a synchronous copy or fill carry?", "recording copies"),
    14: ("Which OVERHEAD records come, lazy loading among them?", "recordings: records of kind 17"),
    15: ("Were the recordings made, and how large are they?", "step recordings"),
}


def rows(path):
    try:
        with open(path, errors="replace") as file:
            for line in file:
                try:
                    yield json.loads(line)
                except ValueError:
                    continue
    except OSError:
        return


def text(*path):
    try:
        with open(os.path.join(*path), errors="replace") as file:
            return file.read().strip()
    except OSError:
        return None


class Recording:
    """A recording by the probe: its `calls` and `buffers` in order, and its `records` as (`n` of the buffer, kind,
    bytes, name)."""

    def __init__(self, path):
        self.name = os.path.basename(path).removesuffix(".jsonl")
        self.rows = list(rows(path))
        self.calls = [row for row in self.rows if "call" in row]
        self.buffers = [row for row in self.rows if "buffer" in row]
        self.records = []
        for buffer in self.buffers:
            data = bytes.fromhex(buffer["hex"])
            for at, name in zip(buffer["at"], buffer["names"]):
                self.records.append((buffer["n"], u32(data, at), data[at:], name))

    def spans(self):
        """Yields for every API call its ENTER row, its EXIT row (or None), and the call in which it is nested."""
        stacks = defaultdict(list)
        for call in self.calls:
            stack = stacks[call["thread"]]
            if call["call"] == "enter":
                span = {"enter": call, "exit": None, "outer": stack[-1] if stack else None}
                stack.append(span)
                yield span
            elif stack:
                stack.pop()["exit"] = call


def u32(data, at):
    return int.from_bytes(data[at:at + 4], "little")


def u64(data, at):
    return int.from_bytes(data[at:at + 8], "little")


CORRELATION = {10: 92, 1: 44, 2: 44, 22: 60}
STREAM = {10: 48, 1: 40, 2: 40, 22: 40}
CONTEXT = {10: 44, 1: 36, 2: 36, 22: 36}


def nested_ids(recordings):
    found = defaultdict(Counter)
    for recording in recordings:
        for span in list(recording.spans()):
            outer = span["outer"]
            if outer:
                pair = f"{outer['enter']['name']} > {span['enter']['name']}"
                found[pair]["equal" if outer["enter"]["corr"] == span["enter"]["corr"] else "different"] += 1
            else:
                found[f"{span['enter']['name']} (outermost)"]["seen"] += 1
    return {pair: dict(counts) for pair, counts in sorted(found.items())}


def early(recordings):
    total = Counter()
    for recording in recordings:
        exits = {}
        for span in list(recording.spans()):
            total["enter"] += 1
            total["exit"] += span["exit"] is not None
            if span["exit"] and not span["outer"]:
                exits[span["enter"]["corr"]] = span["exit"]["n"]
        for n, kind, data, _ in recording.records:
            if kind in CORRELATION:
                total["records"] += 1
                exit_n = exits.get(u32(data, CORRELATION[kind]))
                total["records with no call"] += exit_n is None
                total["records before their call's EXIT"] += exit_n is not None and n < exit_n
    return dict(total)


def threads(recordings):
    found = Counter()
    for recording in recordings:
        callers = {call["thread"] for call in recording.calls}
        for buffer in recording.buffers:
            found[f"{buffer['thread_name']}, {'a calling' if buffer['thread'] in callers else 'another'} thread"] += 1
    return dict(found)


def graphs(recordings):
    """Returns the callbacks in order (nested callbacks begin with dots), and the ids in the activity records."""
    observed = {}
    for recording in recordings:
        if recording.name not in ("capture", "explicit", "update"):
            continue
        order, depth = [], Counter()
        for row in recording.rows:
            if "call" in row:
                if row["call"] == "exit":
                    depth[row["thread"]] -= 1
                    continue
                order.append("." * depth[row["thread"]] + f"{row['name']}#{row['corr']}")
                depth[row["thread"]] += 1
            elif "resource" in row:
                order.append("." * depth[row["thread"]] + "resource {resource} graph {graph} node {node} from {original} exec {exec}".format(**row))
        records = [{"corr": u32(data, 92), "graph": u32(data, 156), "node": u64(data, 144), "name": name}
                   for _, kind, data, name in recording.records if kind == 10]
        observed[recording.name] = {"order": order[:80], "records": records}
    return observed


def ids_in_callbacks(recordings):
    total = Counter()
    for recording in recordings:
        records = {u32(data, CORRELATION[kind]): (u32(data, CONTEXT[kind]), u32(data, STREAM[kind]))
                   for _, kind, data, _ in recording.records if kind in CORRELATION}
        for call in recording.calls:
            total["callbacks"] += 1
            total["context answered"] += call["context_result"] == 0
            if call["stream"] >= 0:
                total["stream answered"] += 1
                if call["corr"] in records:
                    context, stream = records[call["corr"]]
                    total["stream is the record's"] += stream == call["stream"]
                    total["stream is not the record's"] += stream != call["stream"]
                    total["context is not the record's"] += context != call["context"]
    return dict(total)


def copies(recordings):
    observed = []
    for recording in recordings:
        if recording.name != "copies":
            continue
        calls = defaultdict(list)
        for call in recording.calls:
            if call["call"] == "enter":
                calls[call["corr"]].append(call["name"])
        for _, kind, data, _ in recording.records:
            if kind in (1, 2):
                observed.append({"kind": kind, "copy": data[4] if kind == 1 else None, "calls": calls.get(u32(data, 44), [])})
    return observed


def overheads(recordings):
    found = defaultdict(list)
    for recording in recordings:
        for _, kind, data, _ in recording.records:
            if kind == 17:
                found[f"{recording.name}: {u32(data, 4):#x}"].append(u64(data, 32) - u64(data, 24))
    return {where: {"count": len(nanos), "ns": sum(nanos)} for where, nanos in found.items()}


def of_run(step, name):
    """Returns the results of a probe run, or the information that the probe did not run."""
    rc = text(step, name, "rc")
    if rc is None:
        return None
    return {"exit": int(rc), "probe": list(rows(os.path.join(step, name, "probe.jsonl"))),
            "stdout": list(rows(os.path.join(step, name, "stdout"))), "stderr": (text(step, name, "stderr") or "")[-300:]}


def dropped(run, launched):
    if run is None:
        return None
    last = next((row for row in run["probe"] if "dropped" in row), {})
    return {**run, "launched": launched, "delivered and dropped": last.get("kernels", 0) + last.get("dropped", 0)}


def main(step, golden, launched):
    recordings = [Recording(os.path.join(golden, name)) for name in sorted(os.listdir(golden)) if name.endswith(".jsonl")] \
        if os.path.isdir(golden) else []
    torch = [Recording(path) for path in [os.path.join(step, "torch", "probe.jsonl")] if os.path.exists(path)]
    small = [Recording(path) for path in [os.path.join(step, "early", "probe.jsonl")] if os.path.exists(path)]
    forks = {name: of_run(step, name) for name in ("fork_plain", "fork")}
    pytorch = {name: of_run(step, name) for name in ("maps", "beside")}
    observed = {
        1: (recordings or torch) and {"kit": nested_ids(recordings), "pytorch": nested_ids(torch)},
        2: (recordings or small) and early(recordings + small),
        3: (recordings or small) and threads(recordings + small),
        4: of_run(step, "exit"),
        5: {"see": "the costs of step matrix"},
        6: graphs(recordings),
        7: pytorch if any(pytorch.values()) else None,
        8: forks if any(forks.values()) else None,
        9: dropped(of_run(step, "null"), 1100),
        10: dropped(of_run(step, "drops"), launched),
        11: recordings and ids_in_callbacks(recordings),
        12: of_run(step, "names"),
        13: copies(recordings),
        14: recordings and {"records": overheads(recordings)},
        15: {recording.name: {"rows": len(recording.rows), "bytes": os.path.getsize(os.path.join(golden, recording.name + ".jsonl"))}
             for recording in recordings},
    }
    for number, (asked, how) in ASKED.items():
        answer = observed[number]
        print(json.dumps({"answer": number, "asked": asked, "how": how, "answered": bool(answer),
                          "observed": answer or "not answered: what it needs did not run here"}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
