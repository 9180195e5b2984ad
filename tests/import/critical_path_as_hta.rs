//! Compares `gpuflame critical-path --as-hta` with the graphs that Holistic Trace Analysis (HTA) computed. The test
//! compares every edge (type, weight and attribution), each node of the critical path, and the classes of limiting
//! resources.
//!
//! `critical_path_with_hta.py` wrote the expected values in `tests/golden/hta`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use gpuflame_offline::analysis::{HtaEvents, HtaPathOptions, hta_path};
use gpuflame_traces::import::json::JsonOptions;
use serde_json::{Value, json};

use crate::real_traces::traces;
use crate::support::command::gpuflame;
use crate::support::{root, scratch};

fn golden(name: &str) -> Value {
    let text = fs::read_to_string(root().join(format!("tests/golden/hta/{name}.json"))).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// Runs `critical-path --as-hta` on the instance of the annotation that the golden file names.
fn path(folder: &Path, trace: &str, golden: &Value, more: &[&str]) -> Value {
    let annotation = golden["annotation"].as_str().unwrap();
    let args = ["critical-path", trace, "--as-hta", "--format", "json", "--annotation", annotation];
    serde_json::from_str(&gpuflame(folder, args.iter().chain(more)).ok().stdout).unwrap()
}

fn side(value: &Value) -> u64 {
    u64::from(value == "end")
}

/// Returns the edges in gpuflame's output, keyed by their nodes. The values of each edge are converted to HTA's form.
fn our_edges(path: &Value) -> BTreeMap<[u64; 4], Value> {
    let edges = path["edges"].as_array().unwrap().iter();
    let number = |value: &Value| value.as_u64().unwrap();
    let entry = |edge: &Value| {
        let nodes = [
            number(&edge["from_event"]),
            side(&edge["from_side"]),
            number(&edge["to_event"]),
            side(&edge["to_side"]),
        ];
        let kind = edge["type"].as_str().unwrap().strip_prefix("critical_path_").unwrap();
        let weight = edge["weight_ns"].as_i64().unwrap() / 1_000;
        let critical = u64::from(edge["critical"] == "yes");
        (nodes, json!([kind, weight, edge["attributed_event"], critical]))
    };
    edges.map(entry).collect()
}

/// Returns the edges that HTA computed, each with its nodes.
fn their_edges(edges: &Value) -> impl Iterator<Item = ([u64; 4], Value)> {
    let entry = |edge: &Value| {
        let nodes = [0, 1, 2, 3].map(|at| edge[at].as_u64().unwrap());
        (nodes, json!([edge[4], edge[5], edge[6], edge[7]]))
    };
    edges.as_array().unwrap().iter().map(entry)
}

fn our_nodes(path: &Value) -> Vec<Value> {
    let nodes = path["critical_nodes"].as_array().unwrap().iter();
    nodes.map(|node| json!([node["event"], side(&node["side"])])).collect()
}

/// Compares the edges and the critical path of gpuflame with those of HTA. Returns gpuflame's output.
fn compare(folder: &Path, trace: &str, name: &str, instance: &str) -> Value {
    let golden = golden(name);
    let instance = ["--instance", instance];
    let path_plain = path(folder, trace, &golden, &instance);
    let theirs: BTreeMap<_, _> = their_edges(&golden["edges"]).collect();
    assert_eq!(our_edges(&path_plain), theirs, "{name}");
    assert_eq!(json!(our_nodes(&path_plain)), golden["critical_nodes"], "{name}");
    let of_path = &path_plain["path"][0];
    assert_eq!(of_path["critical_events"], golden["events"], "{name}");
    assert_eq!(of_path["critical_nodes"].as_u64().unwrap(), of_path["critical_edges"].as_u64().unwrap() + 1);
    let bounds = path_plain["bound_by"].as_array().unwrap().iter();
    let ours: BTreeMap<&str, Value> = bounds
        .map(|row| {
            let micros = row["time_ns"].as_i64().unwrap() / 1_000;
            (row["bound_by"].as_str().unwrap_or(""), json!([row["edges"], micros]))
        })
        .collect();
    assert_eq!(json!(ours), golden["bound_by"], "{name}");
    // With `--zero-launch-edges`, which adds an edge per launch, weights and attributions stay the same. However, if
    // several paths have the same length, gpuflame may choose another path than HTA.
    let path_zero = path(folder, trace, &golden, &[instance[0], instance[1], "--zero-launch-edges"]);
    let further: Vec<_> = their_edges(&golden["zero_launch_edges"]).collect();
    let without_critical = |mut edge: Value| {
        edge[3] = 0.into();
        edge
    };
    let theirs: BTreeMap<_, _> =
        theirs.into_iter().chain(further).map(|(nodes, edge)| (nodes, without_critical(edge))).collect();
    let ours: BTreeMap<_, _> =
        our_edges(&path_zero).into_iter().map(|(nodes, edge)| (nodes, without_critical(edge))).collect();
    assert_eq!(ours, theirs, "{name}");
    assert_eq!(json!(our_nodes(&path_zero)), golden["critical_nodes_with_zero_launch_edges"], "{name}");
    path_plain
}

/// Compares gpuflame with HTA on a trace from HTA's own tests.
fn compare_real(file: &str, instance: &str) -> Option<Value> {
    let folder = traces()?.join("hta-critical");
    Some(compare(&folder, &format!("{file}.json.gz"), file, instance))
}

#[test]
fn every_edge_of_a_small_trace_equals_that_of_hta() {
    let folder = root().join("tests/golden/hta");
    let path = compare(&folder, "small.trace.json", "small", "0");
    // The expected values below are worked out by hand. `late` begins at 2,400 us, 1,650 us after `slow`. `node_a` has
    // the same correlation id as `node_b`, so HTA drops it. The two calls that wait for the device take 1,800 and 40
    // us. The call that waits for the event takes 265 us, and the call that waits for the stream takes 5 us.
    let rule = |name: &str, key: &str| {
        let rules = path["rules"].as_array().unwrap().iter();
        rules.clone().find(|row| row["rule"] == name).unwrap()[key].as_u64().unwrap()
    };
    assert_eq!((rule("long_gap", "edges"), rule("long_gap", "time_ns")), (1, 1_650_000));
    assert_eq!((rule("blocking_exit", "edges"), rule("blocking_exit", "time_ns")), (4, 2_110_000));
    let names: Vec<_> = path["critical_nodes"].as_array().unwrap().iter().map(|node| &node["name"]).collect();
    assert!(names.contains(&&json!("ncclDevKernel_AllReduce(ncclArgs<4096ul>)")), "{names:?}");
    assert!(!names.contains(&&json!("node_a")));
}

#[test]
fn every_edge_of_a_pass_with_one_stream_equals_that_of_hta() {
    let Some(path) = compare_real("simple_add", "1") else { return };
    // HTA's own tests expect these counts too.
    let keys = ["critical_edges", "critical_nodes", "critical_events"];
    assert_eq!(keys.map(|key| path["path"][0][key].as_u64().unwrap()), [314, 315, 159]);
}

#[test]
fn every_edge_of_a_pass_with_waits_between_streams_equals_that_of_hta() {
    let Some(path) = compare_real("alexnet", "1") else { return };
    assert_eq!(path["bound_by"].as_array().unwrap().len(), 5, "the classes that HTA's own tests expect");
}

#[test]
fn every_edge_of_waits_for_events_equals_that_of_hta() {
    compare_real("event_sync", "0");
    compare_real("event_sync_multi_stream", "0");
}

/// Writes a trace with these events, and returns its folder.
fn written(name: &str, events: &[Value]) -> PathBuf {
    let folder = scratch(name);
    fs::write(folder.join("t.json"), json!({ "traceEvents": events }).to_string()).unwrap();
    folder
}

fn slice(category: &str, name: &str, lane: (u64, u64), times: (u64, u64), args: Value) -> Value {
    let (pid, tid) = lane;
    json!({ "ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": times.0, "dur": times.1, "args": args })
}

/// Returns a launch call and its kernel on stream 7.
fn launched(id: u64, call: u64, kernel: u64) -> [Value; 2] {
    let args = json!({ "correlation": id, "stream": 7, "device": 0 });
    [
        slice("cuda_runtime", "cudaLaunchKernel", (1, 2), (call, 2), json!({ "correlation": id })),
        slice("kernel", "gemm", (0, 7), (kernel, 10), args),
    ]
}

#[test]
fn a_window_that_does_not_exist_is_named() {
    let mut events = vec![slice("user_annotation", "step", (1, 2), (1, 100), json!({}))];
    events.extend(launched(1, 5, 9));
    let folder = written("hta_window", &events);
    let run = |more: &[&str]| gpuflame(&folder, ["critical-path", "t.json", "--as-hta"].iter().chain(more));
    run(&[]).fails(1, &["t.json", "`ProfilerStep`", "--annotation"]);
    run(&["--annotation", "step", "--instance", "1"]).fails(1, &["t.json", "1 instances", "at most 0"]);
    let reversed = run(&["--annotation", "step", "--instance", "2-1"]);
    assert!(reversed.code == 2 && reversed.stderr.contains("such as 2-4"), "{reversed:?}");
    run(&["--annotation", "step", "--instance", "0-5"]).ok();
    // No other event begins during the annotation of this trace, so there is no path.
    let alone = written("hta_alone", &events[..1]);
    gpuflame(&alone, ["critical-path", "t.json", "--as-hta", "--annotation", ""]).fails(1, &["no operators"]);
}

#[test]
fn graphs_that_hta_refuses_are_refused_with_the_events() {
    // A stream waits for a CUDA event that was recorded on the same stream.
    let mut events = launched(1, 5, 9).to_vec();
    let wait = json!({
        "correlation": 3, "stream": 7, "device": 0, "wait_on_stream": 7, "wait_on_cuda_event_record_corr_id": 2
    });
    events.push(slice("cuda_runtime", "cudaEventRecord", (1, 2), (10, 2), json!({ "correlation": 2 })));
    events.push(slice("cuda_runtime", "cudaStreamWaitEvent", (1, 2), (14, 2), json!({ "correlation": 3 })));
    events.push(slice("cuda_sync", "Stream Wait Event", (0, 7), (15, 4), wait));
    events.extend(launched(4, 20, 24));
    let folder = written("hta_refused", &events);
    gpuflame(&folder, ["critical-path", "t.json", "--as-hta", "--annotation", ""])
        .fails(1, &["event 6 (`gemm`)", "event 1 (`gemm`)", "stream 7"]);
}

/// A generator of random numbers (linear congruential).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % bound
    }
}

#[test]
fn changed_traces_have_a_path_or_an_error() {
    let trace = fs::read(root().join("tests/golden/hta/small.trace.json")).unwrap();
    let digits: Vec<usize> = (0..trace.len()).filter(|at| trace[*at].is_ascii_digit()).collect();
    let (mut random, mut paths, mut errors) = (Random(7), 0, 0);
    for _ in 0..10_000 {
        let mut changed = trace.clone();
        for _ in 0..=random.below(8) {
            let at = digits[random.below(digits.len())];
            match random.below(6) {
                // In cases 0 and 1, the damage makes a time huge or negative.
                0 => drop(changed.splice(at..=at, b"9000000000000000".iter().copied())),
                1 => drop(changed.splice(at..at, b"-".iter().copied())),
                _ => changed[at] = b'0' + random.below(10) as u8,
            }
        }
        let mut events = HtaEvents::default();
        let options = JsonOptions { buffer: 1 << 16, accept_cut: true };
        let read = gpuflame_traces::import::json::read(&changed[..], options, &mut events);
        let annotation = ["", "step"][random.below(2)].to_owned();
        let options =
            HtaPathOptions { annotation, instances: (0, 0), zero_launch_edges: random.below(2) == 0 };
        match read.and_then(|_| hta_path(&events, &options)) {
            Ok(path) => {
                paths += 1;
                let critical = path.edges.iter().filter(|edge| edge.is_critical).count();
                assert_eq!(critical + 1, path.critical_nodes.len());
            }
            Err(error) => {
                errors += 1;
                assert!(!error.to_string().contains('\n'), "{error}");
            }
        }
    }
    assert!(paths > 1_000 && errors > 100, "{paths} {errors}");
}
