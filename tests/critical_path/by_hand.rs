//! Checks the critical paths of the example in docs/critical-path.md and of other small programs, which a person can
//! check by hand.

use std::process::Command;

use serde_json::{Value, json};

use super::output::{Trace, gpuflame, min_slacks, parts, read_json, spans, tables};

/// Returns the trace of the example in docs/critical-path.md, without the activity record of the wait.
fn without_record_of_wait() -> Trace {
    Trace::default()
        .call("cudaLaunchKernel", 1, 5, (0, 10))
        .kernel("gemm", 1, 7, (15, 75))
        .call("cudaLaunchKernel", 2, 5, (20, 30))
        .kernel("relu", 2, 7, (80, 120))
        .call("cudaStreamSynchronize", 3, 5, (35, 130))
}

pub(super) fn two_kernels() -> Trace {
    without_record_of_wait().sync(3, 7, (36, 120))
}

/// Parts of the critical path in the example, as (start, duration, class, saving, name). Times are in us.
const PARTS: [(i64, u64, &str, u64, &str); 6] = [
    (0, 10, "call", 10, "cudaLaunchKernel"),
    (10, 5, "launch", 5, "gemm"),
    (15, 60, "kernel", 45, "gemm"),
    (75, 5, "gap", 5, "relu"),
    (80, 40, "kernel", 40, "relu"),
    (120, 10, "return", 10, "cudaStreamSynchronize"),
];

#[test]
fn the_example_of_the_documentation() {
    let tables = tables(two_kernels(), "by-hand", &[]);
    assert_eq!(parts(&tables), PARTS);
    assert_eq!(min_slacks(&tables, ["gemm", "relu"]), [0, 0]);
}

/// The trace is that of the example in docs/critical-path.md without records of waits, as torch.profiler writes it by
/// default. The name of the last API call shows that the call waited, and `relu` is the kernel that ended last during
/// the call. If a driver call is nested in the last runtime call, it counts as a part of the last runtime call.
#[test]
fn a_call_that_synchronizes_without_a_record_waits_for_the_last_work_that_ended_during_it() {
    let trace = without_record_of_wait().call("cuStreamSynchronize", 3, 5, (40, 125));
    let file = trace.clone().write("by-hand-without-waits-deps");
    let tables = tables(trace, "by-hand-without-waits", &[]);
    assert_eq!(parts(&tables), PARTS);
    let deps = read_json(&["deps", file.to_str().unwrap()]);
    let waits = deps["edges"].as_array().unwrap().iter().filter(|edge| edge["kind"] == "inferred_wait");
    assert_eq!(waits.map(|edge| &edge["inferred"]).collect::<Vec<_>>(), [true]);
}

#[test]
fn a_part_of_the_path_is_cut_at_its_edges() {
    let tables = tables(two_kernels(), "by-hand-part", &["--from", "70us", "--to", "100us"]);
    let spans: Vec<_> = parts(&tables).into_iter().map(|part| (part.0, part.1, part.2)).collect();
    assert_eq!(spans, [(70, 5, "kernel"), (75, 5, "gap"), (80, 20, "kernel")]);
}

/// The second kernel begins before the first kernel ends. The second kernel may need the end of the first kernel for
/// its remaining 45 us. If work has two dependencies, the dependency that ends later determines the path. Therefore the
/// path contains the first kernel up to its end, and the first kernel has no slack.
#[test]
fn overlapping_kernels_follow_each_other_on_the_path_and_the_first_has_no_slack() {
    let trace = Trace::default()
        .call("cudaLaunchKernel", 1, 5, (0, 10))
        .kernel("first", 1, 7, (15, 75))
        .call("cudaLaunchKernelExC", 2, 5, (20, 30))
        .kernel("second", 2, 7, (60, 120))
        .call("cudaStreamSynchronize", 3, 5, (35, 130))
        .sync(3, 7, (36, 120));
    let tables = tables(trace, "by-hand-overlap", &[]);
    assert_eq!(
        spans(&tables),
        [
            (0, 10, "call", "cudaLaunchKernel"),
            (10, 5, "launch", "first"),
            (15, 60, "kernel", "first"),
            (75, 45, "kernel", "second"),
            (120, 10, "return", "cudaStreamSynchronize"),
        ]
    );
    let rows = tables["slack"].as_array().unwrap();
    assert!(rows.iter().all(|row| row["min_slack_ns"] == 0), "{rows:?}");
}

/// The second thread launches while the first thread makes no call, as in PyTorch, where another thread runs the
/// backward pass.
#[test]
fn a_thread_that_works_during_the_pause_of_another_hands_off_to_it() {
    let trace = Trace::default()
        .call("cudaLaunchKernel", 1, 5, (0, 10))
        .kernel("forward", 1, 7, (12, 13))
        .call("cudaLaunchKernel", 2, 6, (20, 30))
        .kernel("backward", 2, 7, (32, 33))
        .call("cudaLaunchKernel", 3, 6, (80, 90))
        .kernel("backward", 3, 7, (92, 93))
        .call("cudaLaunchKernel", 4, 5, (100, 110))
        .kernel("optimizer", 4, 7, (112, 152));
    let tables = tables(trace, "by-hand-threads", &[]);
    let classes: Vec<_> = parts(&tables).into_iter().map(|part| (part.0, part.2)).collect();
    assert_eq!(
        classes,
        [
            (0, "call"),
            (10, "hand_off"),
            (20, "call"),
            (30, "host"),
            (80, "call"),
            (90, "hand_off"),
            (100, "call"),
            (110, "launch"),
            (112, "kernel"),
        ]
    );
}

/// A thread that makes one short call during another thread's pause is not the reason for the pause.
#[test]
fn a_short_call_of_another_thread_does_not_explain_a_pause() {
    let trace = Trace::default()
        .call("cudaLaunchKernel", 1, 5, (0, 10))
        .kernel("one", 1, 7, (12, 13))
        .call("cudaLaunchKernel", 2, 6, (2, 4))
        .kernel("other", 2, 8, (14, 15))
        .call("cudaLaunchKernel", 3, 6, (80, 90))
        .kernel("other", 3, 8, (92, 93))
        .call("cudaLaunchKernel", 4, 5, (100, 110))
        .kernel("two", 4, 7, (112, 152));
    let tables = tables(trace, "by-hand-pause", &[]);
    let classes: Vec<_> = parts(&tables).into_iter().map(|part| (part.0, part.1, part.2)).collect();
    assert_eq!(
        classes,
        [(0, 10, "call"), (10, 90, "host"), (100, 10, "call"), (110, 2, "launch"), (112, 40, "kernel")]
    );
}

/// The work of the first launch begins 5 us after the call begins. The second launch call takes 20 us, and its work
/// begins after the end of the call. If the kernel `first` took no time, `second` would begin at the end of its launch
/// call, at 40 us instead of 75 us. Therefore `first` can save 35 us.
#[test]
fn work_that_began_after_its_call_cannot_begin_before_the_end_of_the_call() {
    let trace = Trace::default()
        .call("cudaLaunchKernel", 1, 5, (0, 10))
        .kernel("first", 1, 7, (5, 75))
        .call("cudaLaunchKernel", 2, 5, (20, 40))
        .kernel("second", 2, 7, (75, 100))
        .call("cudaStreamSynchronize", 3, 5, (45, 110))
        .sync(3, 7, (46, 100));
    let tables = tables(trace, "by-hand-slow-call", &[]);
    assert_eq!(
        parts(&tables),
        [
            (0, 5, "call", 5, "cudaLaunchKernel"),
            (5, 70, "kernel", 35, "first"),
            (75, 25, "kernel", 25, "second"),
            (100, 10, "return", 10, "cudaStreamSynchronize"),
        ]
    );
}

/// No dependency leads to the kernel `free`, because its launch is not recorded. If the kernel `main` took no time, the
/// run would end with `free`, at 105 us instead of 112 us. Therefore `main` can save 7 us.
#[test]
fn work_without_a_cause_limits_what_a_part_before_it_can_save() {
    let trace = Trace::default()
        .call("cudaLaunchKernel", 1, 5, (0, 10))
        .kernel("main", 1, 8, (15, 102))
        .kernel("free", 9, 9, (50, 105))
        .call("cudaStreamSynchronize", 2, 5, (20, 112))
        .sync(2, 8, (21, 102));
    let tables = tables(trace, "by-hand-free", &[]);
    assert_eq!(
        parts(&tables),
        [
            (0, 10, "call", 7, "cudaLaunchKernel"),
            (10, 5, "launch", 5, "main"),
            (15, 87, "kernel", 7, "main"),
            (102, 10, "return", 7, "cudaStreamSynchronize"),
        ]
    );
}

/// The thread launches a kernel on GPU 0. After that launch, the thread's default stream waits for an event, and the
/// thread launches a second kernel, on GPU 1. The trace does not show whether the thread changed its GPU before or
/// after the wait, so the GPU of the waiting default stream is unknown. The second kernel may have waited because the
/// default stream of GPU 1 waited. Therefore the path counts the time after the end of the kernel's launch call as
/// caused by this wait.
#[test]
fn a_wait_of_a_default_stream_of_an_unknown_gpu_is_left_out_and_counted() {
    let wait = json!({
        "ph": "X", "cat": "cuda_sync", "name": "Stream Wait Event", "pid": 1, "tid": 7, "ts": 20, "dur": 0,
        "args": {
            "correlation": 2, "device": 1, "context": 2, "stream": 7, "cuda_sync_kind": "Stream Wait Event",
            "wait_on_stream": -1, "wait_on_cuda_event_record_corr_id": -1, "wait_on_cuda_event_id": 5,
        },
    });
    let other = json!({
        "ph": "X", "cat": "kernel", "name": "other", "pid": 1, "tid": 7, "ts": 145, "dur": 10,
        "args": { "correlation": 3, "device": 1, "context": 2, "stream": 7 },
    });
    let trace = Trace::default()
        .call("cudaLaunchKernel", 1, 5, (0, 10))
        .kernel("one", 1, 7, (15, 25))
        .call("cudaStreamWaitEvent", 2, 5, (20, 22))
        .add(wait)
        .call("cudaLaunchKernel", 3, 5, (30, 40))
        .add(other);
    let file = trace.write("by-hand-unknown-gpu");
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpuflame"));
    let output = command.arg("critical-path").arg(&file).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}");
    assert!(text.contains("1 waits of default streams") && text.contains("which GPU"), "{text}");
    let tables = read_json(&["critical-path", file.to_str().unwrap(), "--list"]);
    assert_eq!(
        spans(&tables)[4..],
        [
            (30, 10, "call", "cudaLaunchKernel"),
            (40, 105, "unexplained", "other"),
            (145, 10, "kernel", "other")
        ]
    );
    assert!(tables.to_string().contains(r#""cause":"unknown_gpu""#), "{tables}");
}

#[test]
fn records_that_contradict_each_other_are_named_and_have_no_path() {
    // The two kernels on a stream overlap for 1 ms, although no launch was programmatic.
    let trace = Trace::default()
        .call("cudaMemcpyAsync", 1, 5, (0, 10))
        .call("cudaLaunchKernel", 2, 5, (20, 30))
        .kernel("late", 1, 7, (5_000, 6_000))
        .kernel("early", 2, 7, (100, 400));
    let file = trace.write("by-hand-contradiction");
    let output = gpuflame(&["critical-path", file.to_str().unwrap()]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    for word in ["contradict", "early", "late", "correlation id 1", "correlation id 2"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    assert_eq!(text.lines().count(), 1, "{text}");
}

/// The thread launches `one` on GPU 0, then its default stream waits for an event, then it launches `other` on GPU 1.
/// After that, another thread launches `late` on GPU 0. If the default stream of GPU 0 had waited, `late` would have
/// begun after the end of `one`, at 100 us.
#[test]
fn later_work_shows_on_which_gpu_a_default_stream_waits() {
    // Each case consists of the call that launches `late` with its attribute, the start of `late`, the kind of its
    // stream, and the context of the wait.
    let plain = ("cudaLaunchKernel", None);
    let cases = [
        ("began-early", plain, 62, 1, Some(2)),
        ("third-gpu", plain, 62, 1, None),
        ("began-after", plain, 101, 1, None),
        ("rounded", plain, 99, 1, None),
        ("non-blocking", plain, 62, 2, None),
        ("attributes-unknown", ("cudaLaunchKernelExC", None), 62, 1, None),
        ("programmatic", ("cudaLaunchKernelExC", Some(1)), 62, 1, None),
        ("not-programmatic", ("cudaLaunchKernelExC", Some(0)), 62, 1, Some(2)),
    ];
    for (name, (call, attribute), begin, kind, expected) in cases {
        let stream = |context: u32, stream: u32, flag: u32| {
            json!({
                "ph": "M", "name": "cuda_stream", "pid": context - 1, "tid": stream, "ts": 0,
                "args": { "context": context, "stream": stream, "flag": flag },
            })
        };
        let wait = json!({
            "ph": "X", "cat": "cuda_sync", "name": "Stream Wait Event", "pid": 1, "tid": 7, "ts": 20, "dur": 0,
            "args": {
                "correlation": 2, "device": 0, "context": 1, "stream": 7, "cuda_sync_kind": "Stream Wait Event",
                "wait_on_stream": -1, "wait_on_cuda_event_record_corr_id": -1, "wait_on_cuda_event_id": 5,
            },
        });
        let other = json!({
            "ph": "X", "cat": "kernel", "name": "other", "pid": 1, "tid": 7, "ts": 45, "dur": 10,
            "args": { "correlation": 3, "device": 1, "context": 2, "stream": 7 },
        });
        let mut launch = json!({
            "ph": "X", "cat": "cuda_runtime", "name": call, "pid": 1, "tid": 6, "ts": 50, "dur": 10,
            "args": { "correlation": 4 },
        });
        if let Some(attribute) = attribute {
            launch["args"]["programmatic"] = attribute.into();
        }
        let trace = Trace::default()
            .call("cudaLaunchKernel", 1, 5, (0, 10))
            .kernel("one", 1, 8, (15, 100))
            .call("cudaStreamWaitEvent", 2, 5, (20, 22))
            .add(wait)
            .call("cudaLaunchKernel", 3, 5, (30, 40))
            .add(other)
            .add(launch)
            .kernel("late", 4, 9, (begin, 120));
        let streams = [stream(1, 7, 3), stream(1, 8, 1), stream(1, 9, kind), stream(2, 7, 3)];
        let third = (name == "third-gpu").then(|| stream(3, 7, 3));
        let trace = streams.into_iter().chain(third).fold(trace, Trace::add);
        let file = trace.write(&format!("by-hand-gpu-{name}"));
        let output =
            gpuflame(&["instructions", file.to_str().unwrap(), "--kind", "wait", "--format", "jsonl"]);
        let text = String::from_utf8(output.stdout).unwrap();
        let wait: Value = serde_json::from_str(text.lines().nth(1).unwrap()).unwrap();
        assert_eq!(wait["context"].as_u64(), expected, "{name}: {text}");
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpuflame"));
        let remarks = command.arg("critical-path").arg(&file).output().unwrap().stderr;
        let is_remarked = String::from_utf8_lossy(&remarks).contains("1 waits of default streams");
        assert_eq!(is_remarked, expected.is_none(), "{name}");
    }
}
