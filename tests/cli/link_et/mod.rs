//! Tests `gpuflame link-et`, which links PyTorch execution traces with Kineto traces. The expected dependencies are
//! worked out by hand.

#[path = "../../support/chakra_decoder.rs"]
mod chakra_decoder;
mod odd_pairs;
pub(crate) mod pairs;
mod refused;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::support::command::{Ran, gpuflame};
use crate::support::{scratch, skip};

use chakra_decoder::{Node, assert_acyclic, decode};
use pairs::{call, execution_trace, node, op, slice, training_step, work, write};

fn link(folder: &Path, words: &[&str]) -> Ran {
    gpuflame(folder, [&["link-et"][..], words].concat())
}

fn chakra(path: &Path) -> BTreeMap<u64, Node> {
    let (_, nodes) = decode(&fs::read(path).unwrap());
    assert_acyclic(&nodes);
    nodes.into_iter().map(|node| (node.id, node)).collect()
}

fn linked_step() -> (PathBuf, Ran) {
    let folder = scratch("link-et");
    training_step(&folder);
    let ran =
        link(&folder, &["pytorch_et_step.json", "kineto_step.json", "-o", "out", "--format", "json"]).ok();
    (folder.join("out"), ran)
}

#[test]
fn gpu_work_is_below_the_operator_that_launched_it() {
    let (out, _) = linked_step();
    let nodes = chakra(&out.join("chakra_trace_step.et"));
    let gpu: Vec<_> = nodes.values().filter(|node| node.is_gpu()).collect();
    let found: Vec<_> = gpu
        .iter()
        .map(|node| (node.id, node.name.as_str(), node.ctrl_deps[0], node.number("duration_ns").unwrap()))
        .collect();
    assert_eq!(
        found,
        [
            (21, "gemm", 11, 30_500),
            (22, "relu", 12, 4_501),
            (23, "Memset (Device)", 12, 300),
            (24, "mm_backward", 20, 10_000),
            (25, "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 14, 70_000),
            // No operator launched this kernel, so the kernel's parent is the root node of the thread.
            (26, "raw", 2, 1_000),
        ]
    );
    assert_eq!((nodes[&21].start_micros, nodes[&21].micros), (130, 31));
    assert_eq!((nodes[&21].number("start_ns"), nodes[&21].number("stream")), (Some(130_250), Some(7)));
    assert_eq!(nodes[&21].inputs, r#"[[5,6,0,8,4,"cuda:0"]]"#);
}

#[test]
fn nodes_depend_on_earlier_work_of_their_thread_stream_and_waits() {
    let (out, _) = linked_step();
    let nodes = chakra(&out.join("chakra_trace_step.et"));
    let data = |id: u64| nodes[&id].data_deps.clone();
    for (id, expected) in [
        // The operators of a thread are sorted by time. The first operator depends on the thread's root node, and every
        // later operator depends on the operator before it.
        (10, &[2][..]),
        (11, &[10]),
        (12, &[11]),
        (13, &[12]),
        (14, &[13]),
        // The first operator of the second thread also depends on an operator of another thread: the last one that
        // began before it.
        (20, &[3, 12]),
        // Before this operator, the host waited for the collective (node 25).
        (15, &[14, 25]),
        // A kernel, copy or fill depends on the operator that launched it, and on the earlier work on its stream.
        (21, &[11]),
        (22, &[12, 21]),
        (23, &[12, 22]),
        (24, &[20, 23]),
        (26, &[2, 24]),
        // Stream 20 waited for the compute stream before it ran the collective.
        (25, &[14, 24]),
    ] {
        assert_eq!(data(id), expected, "node {id}");
    }
}

#[test]
fn collectives_have_their_kind_size_and_group() {
    let (out, _) = linked_step();
    let (metadata, nodes) = decode(&fs::read(out.join("chakra_trace_step.et")).unwrap());
    assert_eq!(metadata["schema"], "string 1.1.0-chakra.0.0.4");
    assert_eq!((metadata["pid"].as_str(), metadata["finish_ts"].as_str()), ("uint64 77", "uint64 9"));
    let collective = nodes.iter().find(|node| node.id == 25).unwrap();
    // The node of the collective is a COMM_COLL_NODE of type ALL_REDUCE with 1,000 elements of 4 bytes.
    assert_eq!((collective.kind, collective.number("comm_type")), (7, Some(0)));
    assert_eq!(collective.number("comm_size"), Some(4000));
    assert_eq!(collective.attributes["pg_name"], "string default_pg");
    // If a reader streams the file, it needs each node before all nodes that depend on this node.
    let at = |id: u64| nodes.iter().position(|node| node.id == id).unwrap();
    for node in &nodes {
        assert!(
            node.ctrl_deps.iter().chain(&node.data_deps).all(|id| at(*id) < at(node.id)),
            "node {}",
            node.id
        );
    }
}

#[test]
fn the_linked_json_has_times_and_dependencies() {
    let (out, _) = linked_step();
    let text = fs::read_to_string(out.join("pytorch_et_plus_step.json")).unwrap();
    let linked: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(linked["schema"], "1.1.0-chakra.0.0.4");
    let nodes = linked["nodes"].as_array().unwrap();
    let node = |id: u64| nodes.iter().find(|node| node["id"] == id).unwrap();
    // The operator aten::mm runs for 30 us of the 50 us of its parent aten::linear.
    let times = |id: u64| {
        [&node(id)["ts"], &node(id)["inclusive_dur"], &node(id)["exclusive_dur"]].map(Value::as_f64)
    };
    assert_eq!(times(10), [100.0, 50.0, 20.0].map(Some));
    assert_eq!(times(11), [110.0, 30.0, 30.0].map(Some));
    assert_eq!(times(21), [130.25, 30.5, 30.5].map(Some));
    assert_eq!((&node(20)["inter_thread_dep"], &node(10)["inter_thread_dep"]), (&json!(12), &Value::Null));
    assert_eq!(node(15)["sync_dep"], json!([25]));
    assert_eq!((&node(22)["stream_dep"], &node(25)["stream_wait_dep"]), (&json!(21), &json!([24])));
    assert_eq!((&node(23)["cat"], &node(25)["pg_name"]), (&json!("gpu_memset"), &json!("default_pg")));
    assert_eq!((&node(1)["ctrl_deps"], &node(26)["ctrl_deps"]), (&json!(1), &json!(2)));
    assert!(node(2).get("ts").is_none(), "roots have no times");
}

#[test]
fn the_table_shows_the_share_of_linked_work() {
    let (_, ran) = linked_step();
    let table: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(
        table["linked"],
        json!([{
            "rank": null, "operators": 7, "operators_linked": 7, "gpu_work": 6, "in_window": 6, "linked": 5,
            "share_percent": 83.3333, "gpu_time_ns": 115_301, "tag": "step"
        }])
    );
    assert_eq!(
        table["not_linked"],
        json!([{ "count": 1, "reason": "launched in no operator", "tag": "step" }])
    );
}

/// The Kineto timeline has a loop of three steps, and the execution trace has one of these steps. The files have the
/// format of PyTorch before 2.1: version 1.0.1, whole microseconds, and no "Record function id" fields.
#[test]
fn operators_without_ids_are_paired_by_the_order_of_their_names() {
    let folder = scratch("link-et");
    let old = |id: u64, name: &str, parent: u64, rf_id: u64| json!({ "name": name, "id": id, "rf_id": rf_id, "parent": parent, "tid": 1, "inputs": [], "input_shapes": [] });
    let trace = json!({ "schema": "1.0.1", "pid": 77, "time": "", "start_ts": 1, "nodes": [
        old(2, "thread", 1, 0), old(5, "aten::mm", 4, 11), old(4, "aten::linear", 2, 10), old(1, "process", 0, 0),
    ]});
    let mut events = vec![slice("cpu_op", "aten::ones", 77, 1.0, 2.0, json!({ "External id": 1 }))];
    for step in 0..3_u64 {
        let (at, id) = (10.0 + 100.0 * step as f64, 2 + 2 * step);
        events.extend([
            slice("cpu_op", "aten::linear", 77, at, 50.0, json!({ "External id": id })),
            slice("cpu_op", "aten::mm", 77, at, 30.0, json!({ "External id": id + 1 })),
            call("cudaLaunchKernel", 50 + step, 77, at + 5.0, 2.0),
            work("kernel", "gemm", 50 + step, 7, at + 20.0, 7.0),
        ]);
    }
    write(&folder, "old.json", &trace);
    write(&folder, "timeline.json", &json!({ "traceEvents": events }));
    let ran = link(&folder, &["old.json", "timeline.json", "--format", "json"]).ok();
    assert!(ran.stderr.contains("paired by the order of their names"), "{}", ran.stderr);
    assert!(ran.stderr.contains("fit 3 places"), "{}", ran.stderr);
    let table: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(
        table["not_linked"][0],
        json!({
            "count": 2, "reason": "launched outside of the execution trace", "tag": "old"
        })
    );
    let nodes = chakra(&folder.join("chakra_trace_old.et"));
    assert_eq!((nodes[&6].ctrl_deps.clone(), nodes[&6].start_micros), (vec![5], 30), "the first step");
    assert_eq!((nodes[&4].micros, nodes[&5].micros), (20, 30), "the caller has the smaller External id");
    let linked: Value =
        serde_json::from_str(&fs::read_to_string(folder.join("pytorch_et_plus_old.json")).unwrap()).unwrap();
    assert_eq!(
        (&linked["schema"], &linked["nodes"][1]["ctrl_deps"]),
        (&json!("1.0.2-chakra.0.0.4"), &json!(4))
    );
}

#[test]
fn waits_are_found_without_wait_records() {
    let folder = scratch("link-et");
    let nodes =
        [node(10, "aten::add", 2, 100, 1, json!([])), node(11, "nccl:all_reduce", 2, 101, 1, json!([]))];
    let events = [
        op("aten::add", 100, 77, 10.0, 10.5),
        call("cudaLaunchKernel", 1, 77, 12.0, 1.0),
        op("nccl:all_reduce", 101, 77, 30.0, 10.0),
        call("cudaStreamWaitEvent", 2, 77, 31.0, 1.0),
        call("cudaLaunchKernel", 3, 77, 33.0, 1.0),
        work("kernel", "add", 1, 7, 14.0, 30.0),
        work("kernel", "ncclKernel_AllReduce", 3, 20, 45.0, 5.0),
    ];
    write(&folder, "et.json", &execution_trace(&nodes));
    write(&folder, "timeline.json", &json!({ "traceEvents": events }));
    link(&folder, &["et.json", "timeline.json"]).ok();
    let nodes = chakra(&folder.join("chakra_trace_et.et"));
    assert_eq!(nodes[&13].data_deps, [11, 12], "the next launch after the wait waits for the other stream");
}

#[test]
fn info_shows_both_kinds_of_execution_traces() {
    let (out, _) = linked_step();
    let folder = out.parent().unwrap();
    let shown = |file: &str| -> Value {
        serde_json::from_str(&gpuflame(folder, ["info", file, "--format", "json"]).ok().stdout).unwrap()
    };
    let fact = |shown: &Value, what: &str| {
        shown["facts"].as_array().unwrap().iter().find(|row| row["what"] == what).unwrap()["value"].clone()
    };
    let pytorch = shown("pytorch_et_step.json");
    assert_eq!(fact(&pytorch, "schema version"), "1.1.0-chakra.0.0.4");
    assert_eq!((fact(&pytorch, "nodes"), fact(&pytorch, "operators and ranges")), (json!(10), json!(7)));
    let allreduce = json!([{ "total_ns": null, "count": 1, "bytes": 4000, "name": "allreduce" }]);
    assert_eq!(pytorch["communication"], allreduce);
    let chakra = shown("out/chakra_trace_step.et");
    assert_eq!((fact(&chakra, "nodes"), fact(&chakra, "GPU nodes")), (json!(16), json!(6)));
    assert_eq!(fact(&chakra, "GPU time"), 116_301);
    assert_eq!(fact(&chakra, "dependencies on missing nodes"), 0);
    assert_eq!(chakra["communication"][0]["bytes"], 4000);
    assert_eq!(chakra["operators"][0]["name"], "ncclDevKernel_AllReduce_Sum_f32_RING_LL");
}

/// PyTorch writes infinite and undefined numbers as `inf` and `nan`, and copies the program's strings even if they are
/// not UTF-8. Such numbers and such strings are not valid JSON.
#[test]
fn the_linked_json_is_json_whatever_the_values_are() {
    let folder = scratch("link-et");
    let nodes =
        [node(10, "aten::add", 2, 100, 1, json!(["VALUES"])), node(11, "aten::mm", 2, 101, 1, json!([7]))];
    let text = execution_trace(&nodes).to_string();
    let (before, after) = text.split_once("\"VALUES\"").unwrap();
    let values = b"[5,6,0,8,4,\"cuda:0\"],inf,-inf,nan,\"\x1b[1m\",\"caf\xe9\",2.5e-3";
    fs::write(folder.join("et.json"), [before.as_bytes(), values, after.as_bytes()].concat()).unwrap();
    let events = [op("aten::add", 100, 77, 1.0, 2.0), op("aten::mm", 101, 77, 4.0, 2.0)];
    write(&folder, "timeline.json", &json!({ "traceEvents": events }));
    link(&folder, &["et.json", "timeline.json"]).ok();
    let linked = fs::read(folder.join("pytorch_et_plus_et.json")).unwrap();
    let linked: Value = serde_json::from_slice(&linked).unwrap();
    let node = linked["nodes"].as_array().unwrap().iter().find(|node| node["id"] == 10).unwrap().clone();
    let expected = json!([[5, 6, 0, 8, 4, "cuda:0"], "inf", "-inf", "nan", "\u{1b}[1m", "caf\\xe9", 2.5e-3]);
    assert_eq!(node["inputs"]["values"], expected);
}

fn real_traces() -> Option<PathBuf> {
    let beside = crate::support::root().join("../shared/traces");
    let folder = std::env::var_os("GPUFLAME_TRACES").map_or(beside, PathBuf::from);
    if folder.join("et-pairs").is_dir() {
        return Some(folder);
    }
    skip("there is no folder of real traces (GPUFLAME_TRACES names one)");
    None
}

/// Returns the total duration of the GPU nodes of a linked trace, in ns.
fn gpu_nanos(folder: &Path, tag: &str) -> u64 {
    let nodes = chakra(&folder.join(format!("chakra_trace_{tag}.et")));
    nodes.values().filter(|node| node.is_gpu()).map(|node| node.number("duration_ns").unwrap()).sum()
}

/// Returns the total duration, in ns, of the GPU work in a Kineto trace whose times are whole microseconds.
fn kineto_nanos(path: &Path) -> u64 {
    let trace: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap().iter();
    let work =
        events.filter(|event| matches!(event["cat"].as_str(), Some("kernel" | "gpu_memcpy" | "gpu_memset")));
    work.map(|event| event["dur"].as_u64().unwrap() * 1000).sum()
}

#[test]
fn a_step_of_a_real_loop_is_linked() {
    let Some(traces) = real_traces() else { return };
    let folder = scratch("link-et");
    let pair = ["linear_et.json.gz", "linear_kineto.json.gz"].map(|name| traces.join("et-pairs").join(name));
    let words =
        ["link-et".as_ref(), pair[0].as_os_str(), pair[1].as_os_str(), "--format".as_ref(), "json".as_ref()];
    let ran = gpuflame(&folder, words).ok();
    let table: Value = serde_json::from_str(&ran.stdout).unwrap();
    let row = &table["linked"][0];
    // The execution trace has 928 operators. The execution trace covers one of 40 steps; a script in another language
    // counted the kernels, copies and fills of this step.
    assert_eq!(
        (&row["operators"], &row["operators_linked"], &row["gpu_work"]),
        (&json!(928), &json!(928), &json!(10_356))
    );
    assert_eq!(row["linked"], row["in_window"]);
    assert_eq!(gpu_nanos(&folder, "linear_et"), row["gpu_time_ns"].as_u64().unwrap());
}

#[test]
fn eight_real_ranks_are_linked_in_one_call() {
    let Some(traces) = real_traces() else { return };
    let folder = scratch("link-et");
    for archive in ["dlrm_kineto", "dlrm_pytorch_et"] {
        let path = traces.join(format!("dlrm-8-ranks/{archive}.tar.gz"));
        assert!(Command::new("tar").arg("xzf").arg(path).current_dir(&folder).status().unwrap().success());
    }
    let mut words = vec!["link-et".to_owned()];
    let timelines: Vec<String> = fs::read_dir(folder.join("dlrm_kineto"))
        .unwrap()
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    for rank in 0..8 {
        let timeline = timelines.iter().find(|name| name.starts_with(&format!("worker{rank}_"))).unwrap();
        words.extend([format!("dlrm_pytorch_et/dlrm_eg_{rank}.json"), format!("dlrm_kineto/{timeline}")]);
    }
    words.extend(["--format".to_owned(), "json".to_owned()]);
    let ran = gpuflame(&folder, &words).ok();
    let table: Value = serde_json::from_str(&ran.stdout).unwrap();
    for (rank, row) in table["linked"].as_array().unwrap().iter().enumerate() {
        assert_eq!(
            (&row["rank"], &row["operators"], &row["operators_linked"]),
            (&json!(rank), &json!(1672), &json!(1672))
        );
        // On two ranks, 64 kernels have no launch call in the Kineto trace. A script in another language counted these
        // kernels.
        let lost = if rank == 1 || rank == 3 { 64 } else { 0 };
        assert_eq!(row["linked"].as_u64().unwrap() + lost, row["gpu_work"].as_u64().unwrap(), "rank {rank}");
        let timeline = timelines.iter().find(|name| name.starts_with(&format!("worker{rank}_"))).unwrap();
        let expected = kineto_nanos(&folder.join("dlrm_kineto").join(timeline));
        assert_eq!(gpu_nanos(&folder, &format!("dlrm_eg_{rank}")), expected, "rank {rank}");
    }
    assert_eq!(table["linked"].as_array().unwrap().len(), 8);
}
