//! Tests verdicts that the rows of a trace do not support. `summary` must withhold such a verdict, or name what it does
//! not know.

use serde_json::{Value, json};

use crate::support::command::gpuflame;
use crate::support::scratch;
use crate::support::traces::Trace;

fn tables(trace: &Trace, verb: &str) -> Value {
    let folder = scratch("unsupported_verdicts");
    trace.write(&folder.join("a.json"));
    serde_json::from_str(&gpuflame(&folder, [verb, "a.json", "-f", "json"]).ok().stdout).unwrap()
}

/// Returns the sentences that `summary` prints, as one text.
fn answers(trace: &Trace) -> String {
    tables(trace, "summary")["answers"].to_string()
}

/// Returns the finding of `check` with this id.
fn finding(trace: &Trace, id: &str) -> Value {
    let tables = tables(trace, "check");
    tables["findings"].as_array().unwrap().iter().find(|row| row["id"] == id).unwrap().clone()
}

/// Returns a trace of 20 periods of 1 ms, each with a graph launch and, 920 us later, a kernel of 20 us. If
/// `is_recorded`, the trace contains the graph's kernel, which runs for 880 us.
fn graph_launches(is_recorded: bool) -> Trace {
    let mut trace = Trace::default();
    for period in 0..20 {
        let (at, id) = (1000 * u64::from(period), 2 * period);
        trace.python("serve.py(3): decode", 9, at + 5, at + 990);
        trace.slice("cuda_runtime", "cudaGraphLaunch", 9, at + 20, at + 30);
        trace.0.last_mut().unwrap()["args"] = json!({ "correlation": id + 1 });
        if is_recorded {
            trace.work("kernel", id + 1, "layer", 7, at + 40, at + 920);
        }
        trace.launch(id + 2, "sample", 9, at + 940, at + 950, at + 970);
        trace.slice("cuda_runtime", "cudaStreamSynchronize", 9, at + 950, at + 975);
    }
    trace
}

#[test]
fn graph_launches_without_any_activity_may_explain_the_idle_time() {
    let unknown = answers(&graph_launches(false));
    assert!(unknown.contains("20 launches without an activity may have run in "), "{unknown}");
    assert!(!unknown.contains("host-bound"), "{unknown}");
    let coverage = finding(&graph_launches(false), "launch_coverage");
    assert_eq!((&coverage["result"], &coverage["count"]), (&json!("BAD"), &json!(20)), "{coverage}");
    let known = answers(&graph_launches(true));
    assert!(!known.contains("without an activity") && known.contains("GPU 0 busy 9"), "{known}");
}

#[test]
fn empty_graphs_that_explain_little_of_the_idle_time_change_nothing() {
    // The host launches an empty graph 12 us before each kernel. Before this empty graph launch, the host is late for
    // 900 us.
    let mut trace = Trace::default();
    for period in 0..20 {
        let (at, id) = (1000 * u64::from(period), 2 * period);
        trace.python("serve.py(3): decode", 9, at + 5, at + 990);
        trace.slice("cuda_runtime", "cudaGraphLaunch", 9, at + 928, at + 930);
        trace.0.last_mut().unwrap()["args"] = json!({ "correlation": id + 1 });
        trace.launch(id + 2, "sample", 9, at + 940, at + 950, at + 970);
    }
    let answers = answers(&trace);
    assert!(answers.contains("host-bound") && !answers.contains("without an activity"), "{answers}");
}

#[test]
fn a_kernel_of_two_hours_does_not_bound_the_run() {
    let kernels = |last: u64| {
        let mut trace = Trace::default();
        for id in 0..3 {
            let at = 100 * u64::from(id);
            trace.launch(id + 1, "k", 9, at + 10, at + 30, at + 40);
        }
        trace.launch(4, "k", 9, 400, 420, 420 + last);
        trace
    };
    let long = answers(&kernels(7_200_000_000));
    assert!(long.contains("1 activity lasts for more than a minute"), "{long}");
    assert!(!long.contains("kernels ran for") && !long.contains("bound by"), "{long}");
    let short = answers(&kernels(50_000_000));
    assert!(short.contains("bound by GPU work") && !short.contains("more than a minute"), "{short}");
}

#[test]
fn busy_time_is_unknown_if_no_activity_has_a_duration() {
    let kernels = |us_of_first: u64| {
        let mut trace = Trace::default();
        for id in 0..20 {
            let at = 200 * u64::from(id);
            let length = if id == 0 { us_of_first } else { 0 };
            trace.launch(id + 1, "k", 9, at, at + 5, at + 5 + length);
        }
        trace
    };
    let none = answers(&kernels(0));
    assert!(
        none.contains("withheld: all GPU work has a duration of 0") && !none.contains("busy 0.0 %"),
        "{none}"
    );
    assert_eq!(finding(&kernels(0), "no_length")["result"], "BAD");
    assert_eq!(finding(&kernels(20), "no_length")["result"], "note", "one kernel has a duration");
}

#[test]
fn a_culprit_names_each_operator_that_has_a_large_share() {
    // In each of 20 steps, the function `step` reads one value in `aten::nonzero` and another value in `aten::item`.
    let mut trace = Trace::default();
    for step in 0..20 {
        let (at, id) = (400 * u64::from(step), 4 * step);
        trace.slice("user_annotation", &format!("ProfilerStep#{step}"), 9, at, at + 400);
        trace.python("t.py(1): step", 9, at, at + 399);
        for (number, (name, start, busy)) in
            [("aten::nonzero", 0, 100), ("aten::item", 200, 30)].into_iter().enumerate()
        {
            let (at, id) = (at + start, id + 2 * number as u32);
            trace.slice("cpu_op", name, 9, at, at + busy + 40);
            trace.launch(id + 1, "k", 9, at + 2, at + 10, at + 10 + busy);
            trace.slice("cuda_runtime", "cudaMemcpyAsync", 9, at + 6, at + 8);
            trace.0.last_mut().unwrap()["args"] = json!({ "correlation": id + 2 });
            trace.work(
                "gpu_memcpy",
                id + 2,
                "Memcpy DtoH (Device -> Pinned)",
                7,
                at + 11 + busy,
                at + 13 + busy,
            );
            trace.slice("cuda_runtime", "cudaStreamSynchronize", 9, at + 9, at + 20 + busy);
        }
    }
    let read = finding(&trace, "sync_read");
    let culprit = read["culprit"].as_str().unwrap();
    assert!(culprit.contains("aten::nonzero (") && culprit.contains("aten::item ("), "{read}");
}

#[test]
fn waiting_is_unknown_if_ranks_are_missing() {
    // Every rank computes for 500 us and communicates for 300 us. Only the files of ranks 0 and 1 exist.
    let folder = scratch("unsupported_verdicts");
    let job = |world_size: u32| {
        for rank in 0..2 {
            let mut trace = Trace::default();
            for step in 0..12 {
                let (at, id) = (1000 * u64::from(step) + 1000, 2 * step);
                trace.slice("user_annotation", &format!("ProfilerStep#{step}"), 9, at, at + 990);
                trace.launch(id + 1, "gemm", 9, at, at + 10, at + 510);
                trace.launch(
                    id + 2,
                    "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
                    9,
                    at + 4,
                    at + 520,
                    at + 820,
                );
                trace.0.last_mut().unwrap()["args"]["stream"] = json!(20);
            }
            let file = json!({
                "distributedInfo": { "backend": "nccl", "rank": rank, "world_size": world_size },
                "traceEvents": trace.0,
            });
            std::fs::write(folder.join(format!("rank{rank}.json")), file.to_string()).unwrap();
        }
        gpuflame(&folder, ["summary", "rank0.json", "rank1.json", "-f", "json"]).ok().stdout
    };
    let incomplete = job(4);
    assert!(incomplete.contains("which may include waiting for the missing ranks"), "{incomplete}");
    assert!(!job(2).contains("missing ranks"), "both ranks have a file");
    // The profiler of rank 2 recorded the calls but not the GPU.
    let calls = json!({
        "distributedInfo": { "backend": "nccl", "rank": 2, "world_size": 3 },
        "traceEvents": [{
            "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 9, "tid": 9, "ts": 1000, "dur": 4,
            "args": { "correlation": 1 },
        }],
    });
    let _ = job(3);
    std::fs::write(folder.join("rank2.json"), calls.to_string()).unwrap();
    let ran = gpuflame(&folder, ["summary", "."]).ok();
    for line in [
        "rank 0: GPU 0 busy",
        "rank 1: GPU 0 busy",
        "rank 2: no GPU work was recorded; the rest may have waited for it",
        "may include waiting for the missing ranks",
    ] {
        assert!(ran.stdout.replace("\n  ", " ").contains(line), "{line}: {}", ran.stdout);
    }
    assert!(ran.stderr.contains("rank2.json: contains no GPU work"), "{}", ran.stderr);
    let page = gpuflame(&folder, ["report", ".", "-o", "page.html"]).ok();
    assert!(page.stderr.contains("rank2.json: contains no GPU work"), "{}", page.stderr);
    let page = std::fs::read_to_string(folder.join("page.html")).unwrap();
    assert!(page.contains("rank 2: no GPU work was recorded"));
    // A single rank does not make a job.
    let ran = gpuflame(&folder, ["summary", "rank0.json", "rank2.json"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (1, ""), "{}", ran.stderr);
    assert!(ran.stderr.contains("rank2.json: contains no GPU work"), "{}", ran.stderr);
}
