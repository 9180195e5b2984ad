#!/usr/bin/env python3
"""Writes the graph and the critical path that Holistic Trace Analysis (HTA) computes. The tests use them as expected
values.

    python3 critical_path_with_hta.py TRACE ANNOTATION INSTANCE > tests/golden/hta/NAME.json

HTA 0.6.1 must be on PYTHONPATH (a checkout of commit f4d0062 of its repository; version 0.5.0 from PyPI lacks the rules
for locks, for backward threads and for gaps of 1,500 us). INSTANCE is a number, two numbers such as 0-2, or `none`. An
edge is [from event, 0 start or 1 end, to event, 0 or 1, type, weight in us, attributed event or null, critical or not].
The number of an event is its position in `traceEvents`. `zero_launch_edges` are the edges that HTA adds with
CRITICAL_PATH_ADD_ZERO_WEIGHT_LAUNCH_EDGE=1.
"""

import json
import logging
import os
import sys
import tempfile

logging.disable(logging.ERROR)
VARIABLE = "CRITICAL_PATH_ADD_ZERO_WEIGHT_LAUNCH_EDGE"


def graph_of(analysis, annotation, instance, zero_launch_edges):
    from hta.configs.env_options import HTAEnvOptions

    os.environ[VARIABLE] = "1" if zero_launch_edges else "0"
    HTAEnvOptions.instance()._initialize_options()  # HTA reads its variables once
    graph, succeeded = analysis.critical_path_analysis(rank=0, annotation=annotation, instance_id=instance)
    if not succeeded:
        sys.exit("HTA refuses the graph")
    return graph


def edges_of(graph):
    critical = {(edge.begin, edge.end) for edge in graph.critical_path_edges_set}
    edges = []
    for begin, end in graph.edges:
        edge = graph.edges[begin, end]["object"]
        source, target = graph.node_list[begin], graph.node_list[end]
        attributed = graph.get_event_attribution_for_edge(edge)
        edges.append([
            int(source.ev_idx), int(not source.is_start), int(target.ev_idx), int(not target.is_start),
            edge.type.value.removeprefix("critical_path_"), int(edge.weight),
            None if attributed is None else int(attributed), int((begin, end) in critical),
        ])
    return sorted(edges, key=lambda edge: edge[:4])


def nodes_of(graph):
    nodes = (graph.node_list[node] for node in graph.critical_path_nodes)
    return [[int(node.ev_idx), int(not node.is_start)] for node in nodes]


def main():
    trace, annotation, instance = sys.argv[1:]
    if instance == "none":
        instance = None
    elif "-" in instance:
        instance = tuple(int(number) for number in instance.split("-"))
    else:
        instance = int(instance)
    from hta.trace_analysis import TraceAnalysis

    with tempfile.TemporaryDirectory() as folder:
        stdout, sys.stdout = sys.stdout, sys.stderr
        analysis = TraceAnalysis(trace_files={0: os.path.abspath(trace)}, trace_dir=folder)
        graph = graph_of(analysis, annotation, instance, False)
        with_zero = graph_of(analysis, annotation, instance, True)
        breakdown = graph.get_critical_path_breakdown()
        sys.stdout = stdout
    plain = edges_of(graph)
    known = {tuple(edge[:4]) for edge in plain}
    bounds = breakdown.groupby("bound_by").duration.agg(["count", "sum"])
    result = {
        "annotation": annotation,
        "nodes": len(graph.node_list),
        "events": len(graph.critical_path_events_set),
        "bound_by": {name: [int(row["count"]), int(row["sum"])] for name, row in bounds.iterrows()},
        "critical_nodes": nodes_of(graph),
        "critical_nodes_with_zero_launch_edges": nodes_of(with_zero),
        "edges": plain,
        "zero_launch_edges": [edge for edge in edges_of(with_zero) if tuple(edge[:4]) not in known],
    }
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in result.items())
    print("{\n" + lines.replace("], [", "],\n[") + "\n}")


if __name__ == "__main__":
    main()
