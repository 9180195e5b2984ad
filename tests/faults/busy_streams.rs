//! If a stream is always busy, a faster host saves nothing. The findings must name the copies on the busy stream, and
//! not the host code that runs during the copies.

use std::collections::BTreeMap;
use std::fs;

use serde_json::{Value, json};

use crate::support::command::gpuflame;
use crate::support::scratch;

const STEPS: u64 = 20;

/// Returns a trace event of the host or of the GPU. Times are in us.
fn event(category: &str, name: &str, (from, to): (u64, u64), args: Value) -> Value {
    let thread = if category == "kernel" || category == "gpu_memcpy" { 7 } else { 100 };
    let process = if thread == 7 { 0 } else { 100 };
    json!({
        "ph": "X", "cat": category, "name": name, "pid": process, "tid": thread, "ts": from, "dur": to - from,
        "args": args,
    })
}

/// Returns a trace with steps of a millisecond. `host` adds the host's trace events to a step that begins at the given
/// time, and returns the times of the calls that launch the copy and the kernel. The copy takes 800 us and the kernel
/// 180 us, on one stream.
fn trace(
    copying_call: &str,
    memory: &str,
    host: impl Fn(u64, &mut Vec<Value>) -> ((u64, u64), (u64, u64)),
) -> Value {
    let mut events = Vec::new();
    for step in 0..STEPS {
        let at = 1_000 * step;
        let work = |id: u64| json!({"correlation": id, "stream": 7, "device": 0, "bytes": 8_000_000});
        let (copies, launches) = host(at, &mut events);
        let (first, second) = (2 * step + 1, 2 * step + 2);
        events.push(event("cuda_runtime", copying_call, copies, json!({"correlation": first})));
        events.push(event("cuda_runtime", "cudaLaunchKernel", launches, json!({"correlation": second})));
        events.push(event("gpu_memcpy", memory, (at + 10, at + 810), work(first)));
        events.push(event("kernel", "k", (at + 815, at + 995), work(second)));
        events.push(event("user_annotation", &format!("ProfilerStep#{step}"), (at, at + 999), json!({})));
        events.push(event("python_function", "train.py(1): step", (at + 1, at + 998), json!({})));
    }
    json!({"traceEvents": events})
}

/// Returns the costs that `gpuflame check` reports, in us, keyed by the id of the finding.
fn costs(trace: &Value) -> BTreeMap<String, u64> {
    let folder = scratch("busy-stream");
    fs::write(folder.join("trace.json"), trace.to_string()).unwrap();
    let checked = gpuflame(&folder, ["check", "trace.json", "--format", "json"]).ok();
    let checked: Value = serde_json::from_str(&checked.stdout).unwrap();
    let rows = checked["findings"].as_array().unwrap().iter().filter(|row| row["result"] == "cost");
    let cost =
        |row: &Value| (row["id"].as_str().unwrap().to_owned(), row["cost_ns"].as_u64().unwrap() / 1_000);
    let costs = rows.map(cost).collect();
    fs::remove_dir_all(folder).unwrap();
    costs
}

/// Each step has a gap of 820 us without kernels, and copies run for 800 us of this gap. Before the first kernel, there
/// is no gap.
const COPIES_US: u64 = (STEPS - 1) * 800;

#[test]
fn host_code_that_runs_during_copies_costs_nothing() {
    for (memory, id) in [("Pageable", "pageable_copies"), ("Pinned", "copies_not_overlapped")] {
        let trace = trace("cudaMemcpyAsync", &format!("Memcpy HtoD ({memory} -> Device)"), |at, events| {
            events.push(event("python_function", "log.py(8): write_log", (at + 40, at + 940), json!({})));
            ((at + 5, at + 9), (at + 12, at + 17))
        });
        assert_eq!(costs(&trace), BTreeMap::from([(id.to_owned(), COPIES_US)]), "{memory}");
    }
}

#[test]
fn a_wait_for_copies_costs_at_most_the_time_in_which_the_stream_is_free() {
    let trace = trace("cudaMemcpyAsync", "Memcpy HtoD (Pinned -> Device)", |at, events| {
        let waits = (at + 20, at + 996);
        events.push(event(
            "cuda_runtime",
            "cudaDeviceSynchronize",
            waits,
            json!({"correlation": 1_000 + at}),
        ));
        ((at + 5, at + 9), (at + 12, at + 17))
    });
    // The stream is idle for 20 us of each step. A finding that costs less than 2 % of the run is not reported, so
    // there is no finding about this idle time.
    assert_eq!(costs(&trace), BTreeMap::from([("copies_not_overlapped".to_owned(), COPIES_US)]));
}

#[test]
fn synchronous_copies_are_the_cost_if_kernels_only_wait_for_them() {
    let trace = trace("cudaMemcpy", "Memcpy HtoD (Pageable -> Device)", |at, _| {
        ((at + 5, at + 811), (at + 811, at + 813))
    });
    assert_eq!(costs(&trace), BTreeMap::from([("sync_copies".to_owned(), COPIES_US)]));
}
