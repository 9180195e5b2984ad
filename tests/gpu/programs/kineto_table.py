"""kineto_table.py TRACE[.gz] TABLE: writes the count and nanoseconds per kernel in a trace that torch.profiler
exported.

TABLE is {"kernels": {name: [count, ns]}, "copies": count}. The script reads the trace's times exactly, as decimal
microseconds."""

import gzip
import json
import sys
from collections import defaultdict
from decimal import Decimal


def table(trace):
    kernels, copies = defaultdict(lambda: [0, 0]), 0
    for event in trace["traceEvents"]:
        category = event.get("cat")
        if category == "kernel":
            kernels[event["name"]][0] += 1
            kernels[event["name"]][1] += int(1000 * Decimal(event["dur"]))
        elif category in ("gpu_memcpy", "gpu_memset"):
            copies += 1
    return {"kernels": dict(kernels), "copies": copies}


def write(path, to):
    opened = gzip.open(path, "rt") if path.endswith(".gz") else open(path)
    with opened as file:
        trace = json.load(file, parse_float=Decimal)
    with open(to, "w") as file:
        json.dump(table(trace), file)


if __name__ == "__main__":
    write(sys.argv[1], sys.argv[2])
