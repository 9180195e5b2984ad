"""Writes the figures that HolisticTraceAnalysis 0.5.0 computes for some of the test cases: analyse_with_hta.py FOLDER
>tests/golden/findings/hta.json

FOLDER contains the traces that the ignored test `write_all_cases` writes. HolisticTraceAnalysis is on PyPI, and only
this script needs it.
"""

import contextlib
import io
import json
import math
import os
import sys
import warnings

# If this variable is not set, HolisticTraceAnalysis rounds starts and ends to whole microseconds.
os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"
warnings.filterwarnings("ignore")

from hta.trace_analysis import TraceAnalysis  # noqa: E402

CASES = [
    "sync_read-middle",
    "tiny_kernels-middle",
    "pageable_copies-middle",
    "default_stream-middle",
    "exposed_communication-middle",
    "healthy-two-ranks",
    "healthy-two-gpus",
    "healthy-graphs",
]


def figures(path):
    # By default, HolisticTraceAnalysis omits the last step.
    analysis = TraceAnalysis(trace_files={0: path}, include_last_profiler_step=True)
    time = analysis.get_temporal_breakdown(visualize=False).iloc[0]
    _, kernels = analysis.get_gpu_kernel_breakdown(visualize=False, num_kernels=10_000)
    overlap = analysis.get_comm_comp_overlap(visualize=False).iloc[0]["comp_comm_overlap_pctg"]
    launches = analysis.get_cuda_kernel_launch_stats(visualize=False)[0]
    return {
        "window_us": time["kernel_time(us)"],
        "idle_us": time["idle_time(us)"],
        "compute_us": time["compute_time(us)"],
        "other_us": time["non_compute_time(us)"],
        "overlap_percent": None if math.isnan(overlap) else overlap,
        "kernels": {row["name"]: [row["sum (us)"], row["mean (us)"]] for _, row in kernels.iterrows()},
        "launches": [len(launches), launches["gpu_duration"].sum(), launches["launch_delay"].sum()],
    }


def main():
    with contextlib.redirect_stdout(io.StringIO()):
        found = {case: figures(os.path.join(sys.argv[1], case, "rank0.json")) for case in CASES}
    json.dump(found, sys.stdout, indent=1)
    print()


main()
