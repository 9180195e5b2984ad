//! Tests recording windows that a flag file opens in worker processes (with `chakra_trace.manager`). For each window,
//! each process writes one set of files. In these files, every GPU operation is linked to the operator that started it,
//! and this operator is linked to the execution trace. With `VLLM_CHAKRA_AUTO_CONVERT=1`, the manager itself links
//! timelines and execution traces. These linked traces must contain the same links.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::chakra_decoder::{assert_acyclic, decode};
use crate::installed::{folder, run};
use crate::support::{Done, Way, gpuflame, root, scratch};

/// Returns the gpuflame Python package, with the library and the command that the tests built.
fn package() -> PathBuf {
    let packages = scratch("package");
    let sources = root().join("capi/python/src");
    symlink(sources.join("chakra_trace"), packages.join("chakra_trace")).unwrap();
    // The package looks for gpuflame's library in its own folder.
    fs::create_dir_all(packages.join("gpuflame/_bin")).unwrap();
    for file in fs::read_dir(sources.join("gpuflame")).unwrap() {
        let path = file.unwrap().path();
        symlink(&path, packages.join("gpuflame").join(path.file_name().unwrap())).unwrap();
    }
    symlink(gpuflame(), packages.join("gpuflame/_bin/libgpuflame.so")).unwrap();
    symlink(env!("CARGO_BIN_EXE_gpuflame"), packages.join("gpuflame/_bin/gpuflame")).unwrap();
    packages
}

/// Runs two worker processes, one of each kind in `kinds`.
fn record(python: &Path, kinds: [&str; 2]) -> Done {
    let run = run(python, "flag_window.py", Way::None).arg(".").args(kinds).env("GPUSIM_NDEV", "2");
    let run = run.env("PYTHONPATH", package()).env("PYTHONDONTWRITEBYTECODE", "1");
    run.env("GPUSIM_TRUTH", "truth-%p.json").env("VLLM_CHAKRA_AUTO_CONVERT", "1").ok()
}

fn json(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// Returns the files whose names begin with `start`, in the order of their windows.
fn files(done: &Done, start: &str) -> Vec<PathBuf> {
    let all = fs::read_dir(&done.folder).unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<_> =
        all.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with(start)).collect();
    found.sort();
    found
}

/// For each window, returns the times of those calls of a worker that were recorded.
fn recorded_calls(worker: &Value) -> [Vec<(u64, u64)>; 2] {
    let calls = worker["calls"].as_array().unwrap().iter().filter(|call| call["recorded"] == true);
    let times = calls.map(|call| (call["began"].as_u64().unwrap(), call["ended"].as_u64().unwrap()));
    let mut first: Vec<_> = times.collect();
    assert_eq!(first.len(), 5, "{worker}");
    let second = first.split_off(3);
    [first, second]
}

/// Returns the durations of the GPU work that began during the time ranges `times`, according to the simulation.
fn truth(done: &Done, process: u64, times: &[(u64, u64)]) -> Vec<u64> {
    let rows = done.file(&format!("truth-{process}.json"));
    let rows = rows.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let spans = rows.filter_map(|row| Some((row["start"].as_u64()?, row["end"].as_u64()?)));
    let inside = spans.filter(|(start, _)| times.iter().any(|(from, to)| (from..=to).contains(&start)));
    let mut nanos: Vec<_> = inside.map(|(start, end)| end - start).collect();
    nanos.sort_unstable();
    nanos
}

/// Returns the start and the end of a slice, in ns. In the trace, times are decimal numbers of microseconds with three
/// places.
fn span(event: &Value) -> (i64, i64) {
    let nanos = |key: &str| (event[key].as_f64().unwrap() * 1000.0).round() as i64;
    (nanos("ts"), nanos("ts") + nanos("dur"))
}

/// Returns the "Record function" ids in an execution trace.
fn record_functions(trace: &Value) -> BTreeSet<u64> {
    let nodes = trace["nodes"].as_array().unwrap().iter();
    let attributes = nodes.flat_map(|node| node["attrs"].as_array().unwrap());
    attributes.filter(|it| it["name"] == "rf_id").filter_map(|it| it["value"].as_u64()).collect()
}

/// Asserts that an execution trace contains the parent of each of its nodes.
fn assert_has_all_parents(trace: &Value) {
    let nodes = trace["nodes"].as_array().unwrap();
    let ids: BTreeSet<u64> = nodes.iter().filter_map(|node| node["id"].as_u64()).collect();
    let orphans: Vec<_> =
        nodes.iter().filter(|node| !ids.contains(&node["ctrl_deps"].as_u64().unwrap())).collect();
    assert!(orphans.is_empty(), "{} of {} nodes, such as {}", orphans.len(), nodes.len(), orphans[0]);
}

fn is_work(event: &Value) -> bool {
    ["kernel", "gpu_memcpy", "gpu_memset"].iter().any(|kind| event["cat"] == *kind)
}

/// Asserts that a window's timeline contains exactly the GPU work of the window, all of it linked to the execution
/// trace.
fn assert_window(timeline: &Path, mut expected: Vec<u64>) {
    let trace = json(timeline);
    let name = timeline.to_str().unwrap();
    let execution = json(Path::new(&name.replace("kineto_", "pytorch_et_")));
    assert_has_all_parents(&execution);
    let known = record_functions(&execution);
    let events: Vec<&Value> =
        trace["traceEvents"].as_array().unwrap().iter().filter(|event| event["ph"] == "X").collect();
    let by = |key: &str, kinds: &[&str]| -> HashMap<u64, &Value> {
        let of_kind = events.iter().filter(|event| kinds.iter().any(|kind| event["cat"] == *kind));
        of_kind.filter_map(|event| Some((event["args"][key].as_u64()?, *event))).collect()
    };
    let operators = by("External id", &["cpu_op", "user_annotation"]);
    let calls = by("correlation", &["cuda_runtime", "cuda_driver"]);
    let mut ran = Vec::new();
    for work in events.iter().filter(|event| is_work(event)) {
        let (start, end) = span(work);
        ran.push((end - start) as u64);
        let call = calls[&work["args"]["correlation"].as_u64().unwrap()];
        assert_eq!(work["args"]["External id"], call["args"]["External id"], "{work} {call}");
        let id = work["args"]["External id"].as_u64();
        let operator = operators[&id.unwrap_or_else(|| panic!("no operator: {work} {call}"))];
        assert_eq!((&operator["pid"], &operator["tid"]), (&call["pid"], &call["tid"]), "{operator} {call}");
        let (inner, outer) = (span(call), span(operator));
        assert!(outer.0 <= inner.0 && inner.1 <= outer.1, "{call} is not inside {operator}");
        let function = operator["args"]["Record function id"].as_u64().unwrap();
        assert!(known.contains(&function), "{operator} is not in the execution trace");
    }
    ran.sort_unstable();
    expected.sort_unstable();
    assert!(!ran.is_empty());
    assert_eq!(ran, expected, "{name}");
    assert!(events.iter().any(|event| event["args"]["Input Dims"].is_array()), "operators have shapes");
    let steps = events.iter().filter(|event| event["name"].as_str().unwrap().starts_with("ProfilerStep#"));
    assert!((2..=3).contains(&steps.count()), "a step per call");
}

/// Asserts that all GPU work of a window is below an operator in the linked traces.
fn assert_linked(timeline: &Path, mut expected: Vec<u64>) {
    let tag = timeline.file_stem().unwrap().to_str().unwrap().replace("kineto_", "");
    let (_, nodes) = decode(&fs::read(timeline.with_file_name(format!("chakra_trace_{tag}.et"))).unwrap());
    assert_acyclic(&nodes);
    let is_root = |name: &str| name.starts_with("[pytorch|profiler|execution_trace|");
    let operators: BTreeSet<u64> =
        nodes.iter().filter(|node| !node.is_gpu() && !is_root(&node.name)).map(|node| node.id).collect();
    let mut ran = Vec::new();
    for work in nodes.iter().filter(|node| node.is_gpu()) {
        assert!(work.ctrl_deps.iter().all(|id| operators.contains(id)), "{work:?} is not below an operator");
        ran.push(work.number("duration_ns").unwrap());
    }
    ran.sort_unstable();
    expected.sort_unstable();
    assert_eq!(ran, expected, "{tag}");
    let linked = json(&timeline.with_file_name(format!("pytorch_et_plus_{tag}.json")));
    assert_has_all_parents(&linked);
    let kinds = ["kernel", "gpu_memcpy", "gpu_memset"];
    let work = linked["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|node| kinds.iter().any(|kind| node["cat"] == *kind));
    assert_eq!(work.count(), ran.len(), "{tag}");
}

fn check(kinds: [&str; 2]) {
    let Some(python) = folder() else { return };
    let done = record(python, kinds);
    assert_eq!(done.stdout, "2 workers\n", "{}", done.stderr);
    assert!(!done.stderr.contains("chakra_trace["), "{}", done.stderr);
    for number in 0..2 {
        let worker = json(&done.folder.join(format!("calls-{number}.json")));
        let process = worker["process"].as_u64().unwrap();
        let timelines = files(&done, &format!("kineto_pid{process}_"));
        assert_eq!(timelines.len(), 2, "one file per window");
        for (timeline, times) in timelines.iter().zip(recorded_calls(&worker)) {
            let expected = truth(&done, process, &times);
            assert_window(timeline, expected.clone());
            assert_linked(timeline, expected);
        }
        for start in ["pytorch_et_pid", "pytorch_et_plus_pid", "chakra_trace_pid"] {
            assert_eq!(files(&done, &format!("{start}{process}_")).len(), 2, "{start}");
        }
        assert_eq!(
            files(&done, &format!("gpuflame_pid{process}")).len(),
            1,
            "the recording has its own name"
        );
    }
    assert!(files(&done, ".operators").is_empty(), "intermediate files are removed");
}

#[test]
fn all_gpu_work_of_a_flag_window_leads_to_an_operator_of_the_execution_trace() {
    check(["decode", "train"]);
}

#[test]
#[ignore = "takes half a minute; .ci/long runs it"]
fn all_gpu_work_of_a_flag_window_of_two_ranks_leads_to_an_operator() {
    check(["ddp", "ddp"]);
}

/// A worker that is killed leaves only its recording. The files of the second worker are complete.
#[test]
#[ignore = "takes half a minute; .ci/long runs it"]
fn a_worker_killed_in_a_window_leaves_its_recording_and_no_timeline() {
    let Some(python) = folder() else { return };
    let run = run(python, "flag_window.py", Way::None).args([".", "decode", "decode", "kill"]);
    let done = run.env("PYTHONPATH", package()).env("GPUSIM_TRUTH", "").ok();
    assert_eq!(done.stdout, "1 workers\n", "{}", done.stderr);
    let survivor = json(&done.folder.join("calls-1.json"))["process"].as_u64().unwrap();
    let timelines = files(&done, "kineto_pid");
    assert_eq!(timelines.len(), 2);
    assert!(timelines.iter().all(|path| path.to_str().unwrap().contains(&format!("pid{survivor}_"))));
    let recordings = files(&done, "gpuflame_pid");
    let killed = recordings.iter().find(|path| !path.ends_with(format!("gpuflame_pid{survivor}"))).unwrap();
    let recording = format!("{}/flag_window.gfr", killed.to_str().unwrap());
    let flags = ["convert", "--accept-cut", "--to", "chrome", "--no-stacks", "-o", "killed.json", &recording];
    crate::support::command::gpuflame(&done.folder, flags).ok();
    let trace = json(&done.folder.join("killed.json"));
    assert!(trace["traceEvents"].as_array().unwrap().iter().filter(|event| is_work(event)).count() > 200);
}
