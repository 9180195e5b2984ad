//! Tests pairs of an execution trace and a Kineto timeline that match only in part: timelines of several processes,
//! different names, lost callers, equal times.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::pairs::{call, execution_trace, node, op, slice, work, write};
use super::{chakra, link};
use crate::support::command::{Ran, gpuflame};
use crate::support::scratch;

/// Links an execution trace with a timeline, and returns the folder and the output.
fn linked(nodes: &[Value], events: &[Value]) -> (PathBuf, Ran) {
    let folder = scratch("link-et-odd");
    write(&folder, "et.json", &execution_trace(nodes));
    write(&folder, "timeline.json", &json!({ "traceEvents": events }));
    let ran = link(&folder, &["et.json", "timeline.json", "--format", "json"]).ok();
    (folder, ran)
}

fn refused(nodes: &[Value], events: &[Value], line: &str) {
    let folder = scratch("link-et-odd");
    write(&folder, "et.json", &execution_trace(nodes));
    write(&folder, "timeline.json", &json!({ "traceEvents": events }));
    link(&folder, &["et.json", "timeline.json"]).fails(1, &["et.json", "timeline.json", line]);
}

fn row(ran: &Ran) -> Value {
    serde_json::from_str::<Value>(&ran.stdout).unwrap()["linked"][0].clone()
}

fn json_node(folder: &std::path::Path, id: u64) -> Value {
    let text = fs::read_to_string(folder.join("pytorch_et_plus_et.json")).unwrap();
    let all: Value = serde_json::from_str(&text).unwrap();
    all["nodes"].as_array().unwrap().iter().find(|node| node["id"] == id).unwrap().clone()
}

fn leaf(id: u64, name: &str, rf_id: u64) -> Value {
    node(id, name, 2, rf_id, 1, json!([]))
}

/// Changes the process id of an event. Every process has its own operator ids and correlation ids.
fn of_process(process: u64, mut event: Value) -> Value {
    event["pid"] = process.into();
    event
}

#[test]
fn ids_of_another_process_are_not_taken() {
    // Process 76 comes first in the timeline, and its events have the same ids and names as the events of process 77.
    let other = [op("aten::mm", 100, 77, 10.5, 50.0), call("cudaLaunchKernel", 5, 77, 20.5, 5.0)];
    let mut events: Vec<Value> = other.into_iter().map(|event| of_process(76, event)).collect();
    events.extend([
        work("kernel", "k76", 5, 7, 60.5, 10.0),
        op("aten::mm", 100, 77, 1010.5, 50.0),
        call("cudaLaunchKernel", 5, 77, 1020.5, 5.0),
        work("kernel", "k77", 5, 7, 1060.5, 10.0),
    ]);
    let (folder, ran) = linked(&[leaf(10, "aten::mm", 100)], &events);
    assert_eq!(json_node(&folder, 10)["ts"], 1010.5);
    let nodes = chakra(&folder.join("chakra_trace_et.et"));
    let gpu: Vec<_> = nodes.values().filter(|node| node.is_gpu()).map(|node| node.name.as_str()).collect();
    assert_eq!((gpu, nodes[&11].ctrl_deps.clone()), (vec!["k77"], vec![10]));
    assert_eq!((&row(&ran)["in_window"], &row(&ran)["linked"]), (&json!(1), &json!(1)));
    // Both processes make CUDA calls before the kernel k77 runs, so either process may have launched it.
    assert!(ran.stderr.contains("may have launched 1 pieces of GPU work"), "{}", ran.stderr);
}

#[test]
fn work_of_another_process_is_outside_and_own_work_is_not() {
    // Process 78 runs later than process 77, but comes first in the file. Process 78 has an operator that is not in the
    // execution trace.
    let other = [op("aten::add", 109, 77, 1000.5, 50.0), call("cudaLaunchKernel", 5, 77, 1010.5, 5.0)];
    let mut events: Vec<Value> = other.into_iter().map(|event| of_process(78, event)).collect();
    events.extend([
        work("kernel", "k78", 5, 7, 1060.5, 10.0),
        op("aten::mm", 100, 77, 10.5, 50.0),
        call("cudaLaunchKernel", 5, 77, 20.5, 5.0),
        work("kernel", "k77", 5, 7, 60.5, 10.0),
        // This launch call is made after the last operator. The call nevertheless belongs to the traced window, because
        // all operators of the process are in the execution trace.
        call("cudaLaunchKernel", 6, 77, 70.5, 1.0),
        work("kernel", "raw", 6, 7, 80.5, 1.0),
    ]);
    let (folder, ran) = linked(&[leaf(10, "aten::mm", 100)], &events);
    let nodes = chakra(&folder.join("chakra_trace_et.et"));
    let gpu: Vec<_> = nodes.values().filter(|node| node.is_gpu()).collect();
    let gpu: Vec<_> = gpu.iter().map(|node| (node.name.as_str(), node.ctrl_deps[0])).collect();
    assert_eq!(gpu, [("k77", 10), ("raw", 2)]);
    assert_eq!((&row(&ran)["gpu_work"], &row(&ran)["in_window"]), (&json!(3), &json!(2)));
}

#[test]
fn operators_with_another_name_are_not_paired() {
    let nodes: Vec<Value> = (0..10).map(|at| leaf(10 + at, "aten::mm", 100 + at)).collect();
    let named = |other: u64| -> Vec<Value> {
        let name = |at| if at < other { "aten::add" } else { "aten::mm" };
        (0..10).map(|at| op(name(at), 100 + at, 77, 10.5 + 10.0 * at as f64, 5.0)).collect()
    };
    let (folder, ran) = linked(&nodes, &named(1));
    assert_eq!(row(&ran)["operators_linked"], 9);
    assert_eq!((&json_node(&folder, 10)["ts"], &json_node(&folder, 11)["ts"]), (&Value::Null, &json!(20.5)));
    assert!(ran.stderr.contains("1 operators are not paired, because"), "{}", ran.stderr);
    refused(&nodes, &named(2), "only 8 of 10 operators with the same number have the same name");
}

#[test]
fn operators_that_the_timeline_lacks_are_counted() {
    let nodes: Vec<Value> = (0..5).map(|at| leaf(10 + at, "aten::mm", 100 + at)).collect();
    let (_, ran) = linked(&nodes, &[op("aten::mm", 104, 77, 10.5, 5.0)]);
    assert!(ran.stderr.contains("4 of 5 operators have no times"), "{}", ran.stderr);
    let timed = |at: u64| op("aten::mm", 100 + at, 77, 10.5 + 10.0 * at as f64, 5.0);
    let (_, ran) = linked(&nodes, &(1..5).map(timed).collect::<Vec<_>>());
    let words = "1 of 5 operators has no times: the Kineto trace does not have it";
    assert!(ran.stderr.contains(words), "{}", ran.stderr);
}

#[test]
fn an_operator_whose_caller_is_lost_is_not_the_root() {
    let nodes = [node(10, "aten::mm", 999, 100, 1, json!([]))];
    let events = [op("aten::mm", 100, 77, 10.5, 50.0), work("kernel", "nocall", 6, 7, 70.5, 10.0)];
    let folder = scratch("link-et-odd");
    let mut trace = execution_trace(&nodes);
    // PyTorch writes the root nodes at the end of the file.
    trace["nodes"].as_array_mut().unwrap().reverse();
    write(&folder, "et.json", &trace);
    write(&folder, "timeline.json", &json!({ "traceEvents": events }));
    link(&folder, &["et.json", "timeline.json"]).ok();
    assert_eq!(chakra(&folder.join("chakra_trace_et.et"))[&11].ctrl_deps, [1]);
}

fn unnumbered(name: &str, tid: u64, ts: f64) -> Value {
    slice("cpu_op", name, tid, ts, 5.0, json!({}))
}

#[test]
fn by_names_each_thread_has_operators_of_its_own() {
    // An operator of the first thread has the same name as an operator of the second thread.
    let nodes =
        [leaf(10, "a", 100), leaf(11, "b", 101), leaf(12, "c", 102), node(20, "b", 3, 200, 2, json!([]))];
    let events = [
        unnumbered("a", 77, 10.5),
        unnumbered("b", 77, 20.5),
        unnumbered("c", 77, 30.5),
        unnumbered("b", 78, 100.5),
    ];
    let (folder, ran) = linked(&nodes, &events);
    let starts = [10, 11, 12, 20].map(|id| json_node(&folder, id)["ts"].as_f64());
    assert_eq!(starts, [10.5, 20.5, 30.5, 100.5].map(Some));
    assert!(!ran.stderr.contains("places"), "{}", ran.stderr);
    // If two threads run the same operators, the linker first matches the thread that began earlier.
    let nodes = [leaf(10, "a", 100), node(20, "a", 3, 101, 2, json!([]))];
    let (folder, ran) = linked(&nodes, &[unnumbered("a", 77, 10.5), unnumbered("a", 78, 30.5)]);
    assert_eq!([10, 20].map(|id| json_node(&folder, id)["ts"].as_f64()), [10.5, 30.5].map(Some));
    assert!(ran.stderr.contains("or threads that run the same"), "{}", ran.stderr);
}

#[test]
fn a_pause_lasts_until_the_next_operator_of_the_execution_trace() {
    let nodes =
        [leaf(10, "aten::a", 100), leaf(11, "aten::b", 101), node(20, "aten::bw", 3, 200, 2, json!([]))];
    let events = [
        op("aten::a", 100, 77, 10.5, 5.0),
        op("aten::bw", 200, 78, 1000.5, 5.0),
        // This operator runs 5 ms after the last operator of the thread, and is not in the execution trace.
        slice("user_annotation", "step", 77, 5000.5, 50.0, json!({ "Record function id": 150 })),
        op("aten::b", 101, 77, 5001.5, 5.0),
    ];
    let (folder, _) = linked(&nodes, &events);
    assert_eq!(json_node(&folder, 11)["inter_thread_dep"], 20);
}

#[test]
fn of_operators_with_equal_times_the_one_with_the_smaller_number_is_the_caller() {
    let nodes = [leaf(10, "outer", 100), node(11, "inner", 10, 101, 1, json!([]))];
    let slice =
        |name, number: u64| slice("cpu_op", name, 77, 10.0, 50.0, json!({ "Record function id": number }));
    let events = [
        slice("inner", 101),
        slice("outer", 100),
        call("cudaLaunchKernel", 5, 77, 20.0, 5.0),
        work("kernel", "k", 5, 7, 60.0, 10.0),
    ];
    let (folder, _) = linked(&nodes, &events);
    assert_eq!(chakra(&folder.join("chakra_trace_et.et"))[&12].ctrl_deps, [11]);
    assert_eq!(
        (&json_node(&folder, 10)["exclusive_dur"], &json_node(&folder, 11)["exclusive_dur"]),
        (&json!(0), &json!(50))
    );
}

#[test]
fn work_on_an_unknown_stream_has_no_stream() {
    let mut events = vec![op("aten::mm", 100, 77, 10.5, 50.0)];
    for (id, stream) in [(5, json!(-1)), (6, json!("x")), (7, json!(0)), (8, json!(0))] {
        events.push(call("cudaLaunchKernel", id, 77, 12.0 + id as f64, 0.5));
        let mut kernel = work("kernel", "k", id, 0, 60.5 + 10.0 * id as f64, 1.0);
        kernel["args"]["stream"] = stream;
        events.push(kernel);
    }
    let (folder, _) = linked(&[leaf(10, "aten::mm", 100)], &events);
    let found = [11, 12, 13, 14]
        .map(|id| json_node(&folder, id))
        .map(|node| (node["stream"].as_u64(), node["stream_dep"].as_u64()));
    assert_eq!(found, [(None, None), (None, None), (Some(0), None), (Some(0), Some(13))]);
    assert_eq!(chakra(&folder.join("chakra_trace_et.et"))[&11].number("stream"), None);
}

#[test]
fn nodes_that_are_left_out_are_counted() {
    let mut lost = leaf(11, "aten::mm", 101);
    lost.as_object_mut().unwrap().remove("id");
    let nodes = [leaf(10, "aten::mm", 100), lost, leaf(1 << 63, "aten::mm", 102)];
    let (folder, ran) = linked(&nodes, &[op("aten::mm", 100, 77, 10.5, 5.0)]);
    assert!(ran.stderr.contains("2 nodes have no id below 2^63"), "{}", ran.stderr);
    let text = fs::read_to_string(folder.join("et.json")).unwrap();
    fs::write(folder.join("et.json"), format!("{text}\n{text}")).unwrap();
    let line = format!("expected the end of the file at byte {}", text.len() + 1);
    link(&folder, &["et.json", "timeline.json"]).fails(1, &["et.json", &line]);
}

#[test]
fn sums_of_huge_durations_and_sizes_do_not_overflow() {
    // Each kernel lasts about 2^63 ns, so that the sum of three durations exceeds 64 bits.
    let huge = 9_223_372_036_854_774_u64;
    let mut events = vec![op("aten::mm", 100, 77, 10.5, 50.0)];
    for id in 5..8_u64 {
        events.push(call("cudaLaunchKernel", id, 77, 12.0 + id as f64, 0.5));
        let mut kernel = work("kernel", "k", id, id, 1.0, 1.0);
        (kernel["ts"], kernel["dur"]) = (json!(0), json!(huge));
        events.push(kernel);
    }
    let (_, ran) = linked(&[leaf(10, "aten::mm", 100)], &events);
    assert_eq!(row(&ran)["gpu_time_ns"], u64::MAX);
    let folder = scratch("link-et-odd");
    let tensor = json!([[[5, 6, 0, 9_223_372_036_854_775_807_u64, 9, "cuda:0"]], 151, "allreduce"]);
    let collective = |id: u64| node(id, "record_param_comms", 2, id, 1, tensor.clone());
    write(&folder, "et.json", &execution_trace(&[collective(10), collective(11)]));
    let shown: Value =
        serde_json::from_str(&gpuflame(&folder, ["info", "et.json", "--format", "json"]).ok().stdout)
            .unwrap();
    assert_eq!(shown["communication"][0]["bytes"], u64::MAX);
}
