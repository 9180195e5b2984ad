//! Tests CUDA graphs whose edges are in the trace, in the form in which PyTorch's Cuspy writes them.

use serde_json::{Value, json};

use super::output::{Trace, min_slacks, parts, read_json, tables};

/// Lane, start and end of a graph node. Times are in us.
type Place = (u32, (u32, u32));

/// Adds a graph node, which is on a separate, made-up stream. The graph was launched on stream 7.
fn node(trace: Trace, category: &str, name: &str, id: u32, (lane, (from, to)): Place) -> Trace {
    trace.add(json!({
        "ph": "X", "cat": category, "name": name, "pid": 0, "tid": lane, "ts": from, "dur": to - from,
        "args": {
            "correlation": 1, "device": 0, "context": 1, "stream": lane, "original_stream": 7, "graph id": 3,
            "graph node id": id,
        },
    }))
}

/// Adds the start or the end of a flow to the trace.
fn flow(trace: Trace, phase: &str, id: u64, (pid, tid): (u32, u32), time: u32) -> Trace {
    let flow =
        json!({ "ph": phase, "cat": "ac2g", "name": "ac2g", "id": id, "pid": pid, "tid": tid, "ts": time });
    trace.add(flow)
}

const GEMM: Place = (501, (15, 35));
const RELU: Place = (502, (15, 75));
const EVENT: Place = (503, (75, 75));
const FUNCTION: Place = (504, (35, 95));
const LAST: Place = (505, (95, 105));
const SHORT: Place = (506, (75, 85));

/// Returns the trace of a graph in which a host function waits for `gemm`, and `last` waits for the host function.
/// `short` waits for `relu` through an event record node.
fn graph() -> Trace {
    let mut trace = Trace::default().call("cudaGraphLaunch", 1, 5, (0, 10));
    trace = flow(trace, "s", 1, (1, 5), 0);
    let kernels = [("gemm", 1, GEMM), ("relu", 2, RELU), ("last", 5, LAST), ("short", 6, SHORT)];
    for (name, id, place) in kernels {
        trace = node(trace, "kernel", name, id, place);
    }
    for place in [GEMM, RELU] {
        trace = flow(trace, "f", 1, (0, place.0), place.1.0);
    }
    trace = node(trace, "graph_event_node", "EventRecord", 3, EVENT);
    trace = node(trace, "graph_host_node", "HostNode: log", 4, FUNCTION);
    let edges = [(GEMM, FUNCTION), (FUNCTION, LAST), (RELU, EVENT), (EVENT, SHORT)];
    for (id, (before, after)) in (1 << 40..).zip(edges) {
        trace = flow(trace, "s", id, (0, before.0), before.1.1);
        trace = flow(trace, "f", id, (0, after.0), after.1.0);
    }
    trace.call("cudaStreamSynchronize", 2, 5, (12, 130)).sync(2, 7, (13, 105))
}

#[test]
fn the_path_follows_the_edges_of_a_graph_and_slack_is_exact() {
    let tables = tables(graph(), "graph-edges", &[]);
    assert_eq!(
        parts(&tables),
        [
            (0, 10, "call", 10, "cudaGraphLaunch"),
            (10, 5, "launch", 5, "graph of 5 nodes"),
            // If `gemm` or the host function took no time, the graph would end with the node `short`, which ends 20 us
            // before the node `last`.
            (15, 20, "kernel", 20, "gemm"),
            (35, 60, "host_function", 20, "host function"),
            (95, 10, "kernel", 10, "last"),
            (105, 25, "return", 25, "cudaStreamSynchronize"),
        ]
    );
    assert_eq!(min_slacks(&tables, ["gemm", "relu", "last", "short"]), [0, 20_000, 0, 20_000]);
}

/// The edges of this graph are not in the trace, so the node `last` may depend on both earlier nodes.
#[test]
fn a_node_whose_edges_are_unknown_may_need_every_node_that_ended_before_it() {
    let mut trace = Trace::default().call("cudaGraphLaunch", 1, 5, (0, 10));
    let nodes = [("short", 8, 15, 25), ("long", 7, 15, 35), ("last", 7, 35, 55)];
    for (id, (name, stream, from, to)) in (1..).zip(nodes) {
        trace = trace.add(json!({
            "ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": from, "dur": to - from,
            "args": {
                "correlation": 1, "device": 0, "context": 1, "stream": stream, "graph id": 3, "graph node id": id,
            },
        }));
    }
    let tables = tables(trace, "graph-edges-unknown", &[]);
    assert_eq!(min_slacks(&tables, ["short", "long", "last"]), [10_000, 0, 0]);
}

/// Returns the edges that lead to a node, as (name of the source node, kind of edge, whether the edge is inferred).
fn edges_to(deps: &Value, name: &str) -> Vec<(String, String, bool)> {
    let nodes = deps["nodes"].as_array().unwrap();
    let id = &nodes.iter().find(|node| node["name"] == name).unwrap()["id"];
    let name_of = |id: &Value| {
        let node = nodes.iter().find(|node| node["id"] == *id).unwrap();
        node["name"].as_str().unwrap().to_owned()
    };
    let edges = deps["edges"].as_array().unwrap().iter();
    let edges = edges.filter(|edge| edge["to"] == *id && edge["to_moment"] == "begin");
    let mut all: Vec<_> = edges
        .map(|edge| {
            (name_of(&edge["from"]), edge["kind"].as_str().unwrap().to_owned(), edge["inferred"] == true)
        })
        .filter(|(_, kind, _)| kind != "graph_launch")
        .collect();
    all.sort();
    all
}

/// Cuspy draws no edge from a node that has no row in the trace, such as an empty node.
#[test]
fn the_cause_of_a_node_that_no_flow_leads_to_is_inferred() {
    let trace = node(graph(), "kernel", "other", 7, (507, (80, 90)));
    let file = trace.write("graph-edges-inferred");
    let deps = read_json(&["deps", file.to_str().unwrap()]);
    let edge = |name: &str| (name.to_owned(), "graph_edge".to_owned(), false);
    assert_eq!(edges_to(&deps, "short"), [edge("relu")]);
    assert_eq!(edges_to(&deps, "last")[..1], [edge("host function")]);
    let inferred = edges_to(&deps, "other");
    assert!(inferred.contains(&("relu".to_owned(), "graph_node".to_owned(), true)), "{inferred:?}");
}

/// Flows in the traces of other tools may have ids as large as the ids of Cuspy's graph edges. The flows lead from
/// calls to the GPU work that the calls submitted; in this trace, the GPU work has no correlation id.
#[test]
fn a_flow_with_a_large_id_that_starts_at_a_call_is_not_an_edge() {
    let mut trace = Trace::default();
    for (id, at) in [(1_u64 << 41, 0_u32), (1 << 42, 50)] {
        let call = json!({
            "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 5, "ts": at, "dur": 10,
        });
        let kernel = json!({
            "ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": at + 15, "dur": 20,
            "args": { "device": 0, "context": 1, "stream": 7 },
        });
        trace = flow(trace.add(call), "s", id, (1, 5), at);
        trace = flow(trace.add(kernel), "f", id, (0, 7), at + 15);
    }
    let tables = tables(trace, "graph-edges-other-flows", &[]);
    let classes: Vec<_> = parts(&tables).into_iter().map(|part| (part.0, part.2)).collect();
    let expected = [(0, "call"), (10, "host"), (50, "call"), (60, "launch"), (65, "kernel")];
    assert_eq!(classes, expected);
}
