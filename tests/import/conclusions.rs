//! Tests conclusions that would be wrong if they were drawn from only one thread, one process or one step.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::support::command::gpuflame;
use crate::support::scratch;
use crate::support::traces::Trace;

/// Writes a trace, and returns the folder that contains it.
fn written(name: &str, trace: &Trace) -> PathBuf {
    let folder = scratch(name);
    trace.write(&folder.join("a.json"));
    folder
}

fn read_json(name: &str, trace: &Trace, args: &[&str]) -> Value {
    let ran = gpuflame(&written(name, trace), args.iter().copied().chain(["a.json", "-f", "json"])).ok();
    serde_json::from_str(&ran.stdout).unwrap()
}

/// Returns all findings about a trace.
fn findings(name: &str, trace: &Trace) -> Vec<Value> {
    read_json(name, trace, &["check"])["findings"].as_array().unwrap().clone()
}

/// Returns the cost, in us, of the finding whose culprit begins with the text `culprit`, or 0 if there is no such
/// finding.
fn cost(findings: &[Value], id: &str, culprit: &str) -> u64 {
    let is_it = |found: &&Value| found["id"] == id && found["culprit"].as_str().unwrap().starts_with(culprit);
    findings.iter().find(is_it).map_or(0, |found| found["cost_ns"].as_u64().unwrap_or(0) / 1000)
}

fn result<'a>(findings: &'a [Value], id: &str) -> &'a str {
    findings.iter().find(|found| found["id"] == id).unwrap()["result"].as_str().unwrap()
}

/// Returns a trace of ten training steps of 3 ms. Thread 10 makes the launches of the backward pass, while the function
/// `backward` on thread 9 waits for it. After that, thread 9 loads data for 1.8 ms.
fn training() -> Trace {
    let mut trace = Trace::default();
    for step in 0..10 {
        let (at, id) = (3000 * u64::from(step), 3 * step);
        trace
            .slice("user_annotation", &format!("ProfilerStep#{step}"), 9, at, at + 3000)
            .python("train.py(1): train", 9, at, at + 2990)
            .slice("cpu_op", "aten::mm", 9, at + 95, at + 115)
            .launch(id + 1, "forward", 9, at + 100, at + 110, at + 200)
            .python("torch/autograd: backward", 9, at + 300, at + 1000)
            .python("data.py(9): load_batch", 9, at + 1100, at + 2900);
        for (at, id) in [(at + 400, id + 2), (at + 600, id + 3)] {
            trace
                .slice("cpu_op", "autograd::engine::evaluate_function: MmBackward0", 10, at, at + 100)
                .launch(id, "backward", 10, at + 20, at + 30, at + 100);
        }
    }
    trace
}

#[test]
fn the_time_of_a_backward_pass_on_another_thread_does_not_make_the_next_launch_late() {
    let found = findings("backward", &training());
    assert_eq!(cost(&found, "data_loader_late", "in data.py(9): load_batch"), 9 * 1800);
    // The last launch of thread 10 ends at 622 us, and the next launch of thread 9 is at 3100 us. In this time,
    // `backward` takes 378 us, and `train` takes 100, 90 and 95 us.
    let other = cost(&found, "host_work", "in train.py(1): train");
    assert_eq!(other, 9 * (378 + 100 + 90 + 95));
}

/// Returns a trace of twenty steps of 2 ms. In each step, the host launches a kernel of 900 us, reads a value (which
/// takes until the kernel ends), and computes for 1 ms. If `has_prefetch`, another thread launches a small copy during
/// the step.
fn reads_values(has_prefetch: bool) -> Trace {
    let mut trace = Trace::default();
    for step in 0..20_u32 {
        let at = 2000 * u64::from(step);
        trace
            .slice("user_annotation", &format!("ProfilerStep#{step}"), 9, at, at + 2000)
            .launch(3 * step + 1, "gemm", 9, at + 20, at + 50, at + 950)
            .python("train.py(5): log_metrics", 9, at + 30, at + 970)
            .slice("cuda_runtime", "cudaMemcpyAsync", 9, at + 40, at + 965);
        trace.0.last_mut().unwrap()["args"] = json!({ "correlation": 3 * step + 2 });
        trace.work("gpu_memcpy", 3 * step + 2, "Memcpy DtoH (Device -> Pageable)", 7, at + 951, at + 953);
        trace.0.last_mut().unwrap()["args"]["bytes"] = json!(4);
        if has_prefetch {
            trace.slice("cuda_runtime", "cudaMemcpyAsync", 10, at + 900, at + 910);
            trace.0.last_mut().unwrap()["args"] = json!({ "correlation": 3 * step + 3 });
            trace.work("gpu_memcpy", 3 * step + 3, "Memcpy HtoD (Pinned -> Device)", 22, at + 912, at + 914);
            trace.0.last_mut().unwrap()["args"]["bytes"] = json!(65_536);
        }
    }
    trace
}

#[test]
fn a_copy_of_another_thread_hides_no_wait() {
    let costs = [false, true].map(|has_prefetch| {
        let found = findings(&format!("prefetch-{has_prefetch}"), &reads_values(has_prefetch));
        cost(&found, "sync_read", "at cudaMemcpyAsync in train.py(5): log_metrics")
    });
    assert!(costs[0] > 15_000 && costs[0] == costs[1], "{costs:?}");
}

/// Returns a trace of three steps of a program that calls an operator. If `is_closed`, the Python function that calls
/// the operator ends after 12 us. If `is_closed` is false, the function ends at the end of the trace.
fn calls_operator(is_closed: bool) -> Trace {
    let mut trace = Trace::default();
    trace.python("train.py(1): main", 9, 0, 3000);
    for step in 0..3 {
        let (at, id) = (1000 * u64::from(step), 2 * step);
        let end = if is_closed { at + 52 } else { 3000 };
        trace
            .python("train.py(10): step", 9, at + 10, at + 900)
            .python("<built-in method my_op of torch>", 9, at + 40, end)
            .slice("cpu_op", "my::op", 9, at + 42, at + 52)
            .launch(id + 1, "mine", 9, at + 45, at + 60, at + 100)
            .python("optimizer.py(3): update", 9, at + 500, at + 600)
            .slice("cpu_op", "aten::add", 9, at + 510, at + 520)
            .launch(id + 2, "add", 9, at + 512, at + 530, at + 600);
    }
    trace
}

#[test]
fn a_python_function_without_an_end_is_as_long_as_its_operator() {
    let flames = |name: &str, is_closed: bool| {
        gpuflame(&written(name, &calls_operator(is_closed)), ["flamegraph", "a.json"]).ok()
    };
    let (closed, unclosed) = (flames("closed", true), flames("unclosed", false));
    assert_eq!(unclosed.stdout, closed.stdout);
    assert_eq!(closed.stdout.lines().count(), 2, "{}", closed.stdout);
    assert!(
        unclosed.stderr.contains("3 Python functions last until recording stopped"),
        "{}",
        unclosed.stderr
    );
    assert!(!closed.stderr.contains("recording stopped"), "{}", closed.stderr);
    let idle = |name: &str, is_closed: bool| {
        read_json(name, &calls_operator(is_closed), &["top", "--by", "idle", "-n", "0"])["idle"].clone()
    };
    assert_eq!(idle("idle-unclosed", false), idle("idle-closed", true));
}

/// Returns a trace of twenty steps of 1 ms. The steps for which `is_long` is true take 2 ms instead.
fn steps(is_long: impl Fn(u32) -> bool) -> Trace {
    let (mut trace, mut at) = (Trace::default(), 0);
    for step in 0..20 {
        let length = if is_long(step) { 2000 } else { 1000 };
        trace.slice("user_annotation", &format!("ProfilerStep#{step}"), 9, at, at + length);
        trace.launch(step + 1, "k", 9, at + 10, at + 20, at + length - 100);
        at += length;
    }
    trace
}

#[test]
fn a_step_that_recurs_is_no_warm_up() {
    assert_eq!(result(&findings("first-step", &steps(|step| step == 0)), "warm_up"), "cost");
    assert_eq!(result(&findings("fourth-steps", &steps(|step| step % 4 == 0)), "warm_up"), "none");
    assert_eq!(
        result(&findings("two-steps", &steps(|step| step == 0 || step == 7)), "warm_up"),
        "cost",
        "one other long step is an accident"
    );
    let several = |step: u32| step % 10 < 2;
    assert_eq!(result(&findings("two-of-ten", &steps(several)), "slow_steps"), "cost");
}

#[test]
fn steps_of_several_processes_are_not_steps_of_one_program() {
    let mut merged = Trace::default();
    for (process, length) in [(1, 800), (2, 400)] {
        for step in 0..10_u32 {
            let at = 1000 * u64::from(step) + process;
            let id = step + 1 + 100 * process as u32;
            let first = merged.0.len();
            merged.slice("user_annotation", &format!("ProfilerStep#{step}"), 9, at, at + 990);
            merged.launch(id, "k", 9, at + 10, at + 20, at + 20 + length);
            for event in &mut merged.0[first..] {
                match event["cat"].as_str() {
                    Some("kernel") => {
                        event["pid"] = json!(process - 1);
                        event["args"]["device"] = json!(process - 1);
                    }
                    _ => event["pid"] = json!(1000 + process),
                }
            }
        }
    }
    let found = findings("merged", &merged);
    for id in ["slow_steps", "warm_up", "idle_gpu"] {
        assert_eq!(result(&found, id), "unknown", "{id}");
    }
}

#[test]
fn copies_of_pageable_memory_are_known_without_their_bytes() {
    let mut trace = Trace::default();
    for step in 0..20_u32 {
        let at = 1000 * u64::from(step);
        trace.slice("cuda_runtime", "cudaMemcpyAsync", 9, at + 10, at + 520).work(
            "gpu_memcpy",
            2 * step + 1,
            "Memcpy HtoD (Pageable -> Device)",
            7,
            at + 15,
            at + 515,
        );
        let call = trace.0.len() - 2;
        trace.0[call]["args"] = json!({ "correlation": 2 * step + 1 });
        trace.launch(2 * step + 2, "k", 9, at + 530, at + 540, at + 900);
    }
    let found = findings("pageable", &trace);
    assert_eq!(result(&found, "pageable_copies"), "cost");
}

#[test]
fn times_of_ranks_are_relative_to_the_base_of_their_file() {
    let folder = scratch("bases");
    for (rank, base) in [(0_u64, 1_700_000_000_000_000_000_u64), (1, 1_700_000_000_000_700_000)] {
        let mut trace = Trace::default();
        for step in 0..12_u32 {
            let at = 1000 * u64::from(step) + 1000 - 700 * rank;
            let id = 2 * step;
            trace.launch(id + 1, "gemm", 9, at, at + 10, at + 100 + 50 * rank);
            // Both ranks leave the collective at the same time. Rank 1 enters the collective last.
            trace.launch(
                id + 2,
                "ncclDevKernel_AllReduce_Sum_f32",
                9,
                at + 4,
                at + 101 + 50 * rank,
                at + 300,
            );
        }
        let file = json!({
            "baseTimeNanoseconds": base,
            "distributedInfo": { "backend": "nccl", "rank": rank, "world_size": 2 },
            "traceEvents": trace.0
        });
        std::fs::write(folder.join(format!("rank{rank}.json")), file.to_string()).unwrap();
    }
    let ranks = ["rank0.json", "rank1.json"];
    let summary = gpuflame(&folder, ["summary"].into_iter().chain(ranks)).ok().stdout;
    assert!(!summary.contains("clocks_of_ranks"), "{summary}");
    let merged = gpuflame(&folder, ["merge-ranks"].into_iter().chain(ranks)).ok();
    assert!(!merged.stderr.contains("700"), "{}", merged.stderr);
    let path = gpuflame(&folder, ["critical-path"].into_iter().chain(ranks).chain(["-f", "json"])).ok();
    let path: Value = serde_json::from_str(&path.stdout).unwrap();
    assert_eq!(path["clocks"][1]["ahead_ns"], 0);
}

/// The kernels follow each other without a gap. The times of the kernels are microseconds since 1970, written as `f64`.
#[test]
fn times_that_were_rounded_to_a_quarter_of_a_microsecond_do_not_overlap() {
    let mut events = Vec::new();
    let mut start = 1_700_000_000_000_000_000_u64;
    for id in 1..=60_u64 {
        let nanos = 60_000 + 333 * id;
        let micros = |nanos: u64| format!("{}.{:03}", nanos / 1000, nanos % 1000).parse::<f64>().unwrap();
        events.push(json!({
            "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 9,
            "ts": micros(start - 50_000), "dur": 5.0, "args": { "correlation": id }
        }));
        events.push(json!({
            "ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": micros(start),
            "dur": micros(nanos), "args": { "correlation": id, "device": 0, "stream": 7 }
        }));
        start += nanos;
    }
    let found = findings("quarters", &Trace(events));
    assert_eq!(result(&found, "stream_overlap"), "none");
    assert_eq!(result(&found, "precision"), "note");
}

#[test]
fn work_that_begins_less_than_a_microsecond_before_its_launch_is_a_note() {
    let with_lead = |lead: f64| {
        let mut trace = Trace::default();
        for step in 0..40_u32 {
            trace.launch(step + 1, "k", 9, 1000 * u64::from(step) + 500, 0, 100);
            let kernel = trace.0.last_mut().unwrap();
            kernel["ts"] = json!(1000.0 * f64::from(step) + 500.0 - lead);
        }
        findings(&format!("lead-{lead}"), &trace)
    };
    assert_eq!(result(&with_lead(0.35), "starts_before_launch"), "note");
    assert_eq!(result(&with_lead(3.5), "starts_before_launch"), "BAD");
}
