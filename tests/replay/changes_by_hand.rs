//! Tests, on small programs, those changes and lags that the random programs do not have. The expected times, in us,
//! are computed by hand.

use serde_json::{Value, json};

use super::by_hand::{Trace, gpuflame, tables};

/// Returns the total time of a program before and after the changes, in us.
fn change(trace: Trace, name: &str, options: &[&str]) -> (u64, u64) {
    let file = trace.write(name);
    let said = tables(&[&["what-if", file.to_str().unwrap()], options].concat());
    let us = |key: &str| said["total"][0][key].as_u64().unwrap() / 1_000;
    (us("before_ns"), us("after_ns"))
}

fn copy(trace: Trace, id: u32, stream: u32, (from, to): (u32, u32)) -> Trace {
    trace.add(json!({
        "ph": "X", "cat": "gpu_memcpy", "name": "Memcpy DtoH (Device -> Pageable)", "pid": 0, "tid": stream, "ts": from,
        "dur": to - from,
        "args": { "correlation": id, "device": 0, "context": 1, "stream": stream, "bytes": 4096 },
    }))
}

/// Adds two calls: one records a CUDA event on stream `from`, and the other makes `stream` wait for the event.
fn wait(trace: Trace, id: u32, at: u32, from: u32, stream: u32) -> Trace {
    let trace = trace.call("cudaEventRecord", id, 5, (at, at + 1));
    let trace = trace.call("cudaStreamWaitEvent", id + 1, 5, (at + 2, at + 3));
    trace.add(json!({
        "ph": "X", "cat": "cuda_sync", "name": "Stream Wait Event", "pid": 0, "tid": stream, "ts": at + 2, "dur": 1,
        "args": {
            "correlation": id + 1, "device": 0, "context": 1, "stream": stream, "cuda_sync_kind": "Stream Wait Event",
            "wait_on_stream": from, "wait_on_cuda_event_record_corr_id": id, "wait_on_cuda_event_id": id,
        },
    }))
}

/// Adds a call that waits for all streams.
fn wait_for_all(trace: Trace, id: u32, (from, to): (u32, u32)) -> Trace {
    let trace = trace.call("cudaDeviceSynchronize", id, 5, (from, to));
    trace.add(json!({
        "ph": "X", "cat": "cuda_sync", "name": "Context Sync", "pid": 0, "tid": -1, "ts": from, "dur": to - from,
        "args": { "correlation": id, "device": 0, "context": 1, "stream": -1, "cuda_sync_kind": "Context Sync" },
    }))
}

/// Returns a trace of 20 launches, each followed by a wait. Launch calls take 4, 6 or 8 us. Most kernels begin 3 us
/// after their call ends, but every fourth kernel begins 2 us after its call ends. The kernels 3 and 15 begin 40 us
/// later, for a reason that is not recorded. Kernels take 20 us, waits return 5 us after the kernel, and the next
/// launch begins 2 us later.
fn late_kernels(name: &str) -> String {
    let (mut trace, mut now) = (Trace::default(), 0);
    for at in 0..20 {
        let called = now + 4 + 2 * (at % 3);
        let late = if [3, 15].contains(&at) { 40 } else { 0 };
        let begin = called + if at % 4 == 0 { 2 } else { 3 } + late;
        let end = begin + 20;
        let id = 2 * at + 1;
        trace = trace.call("cudaLaunchKernel", id, 5, (now, called)).kernel("gemm", id, 7, (begin, end));
        trace = trace.call("cudaStreamSynchronize", id + 1, 5, (called + 1, end + 5));
        trace = trace.sync(id + 1, 7, (called + 1, end));
        now = end + 7;
    }
    trace.write(name).to_str().unwrap().to_owned()
}

#[test]
fn lags_of_launches_are_counted_from_the_end_of_their_calls_if_these_vary() {
    let said = tables(&["replay", &late_kernels("replay-lags")]);
    let lags = said["lags"].as_array().unwrap();
    let launch = lags.iter().find(|row| row["of"] == "launch").unwrap();
    // The late kernels 3 and 15 do not count for the lag.
    let expected = json!({
        "of": "launch", "from": "end of the call", "function": "cudaLaunchKernel", "submitted": "kernel",
        "lag_ns": 3_000, "samples": 18,
    });
    assert_eq!(launch, &expected, "{said:#}");
    assert_eq!((&said["replay"][0]["starts"], &said["replay"][0]["explained"]), (&20.into(), &18.into()));
    let causes = said["unexplained_starts"].as_array().unwrap();
    let late: u64 = causes.iter().map(|row| row["time_ns"].as_u64().unwrap()).sum();
    assert_eq!(late, 80_000, "{causes:?}");
}

/// The program runs ten kernels of 100 us, 5 us apart. After each kernel, it records a CUDA event for which another
/// stream waits.
#[test]
fn events_do_not_count_as_gaps_between_kernels() {
    let with_kernel = |trace: Trace, at: u32| {
        let (id, called, begin) = (3 * at + 1, 10 * at, 15 + 105 * at);
        let trace = trace.call("cudaLaunchKernel", id, 5, (called, called + 4));
        wait(trace.kernel("gemm", id, 13, (begin, begin + 100)), id + 1, called + 5, 13, 20)
    };
    let file = (0..10).fold(Trace::default(), with_kernel).write("replay-gaps");
    let said = tables(&["replay", file.to_str().unwrap()]);
    let gap = said["lags"].as_array().unwrap().iter().find(|row| row["of"] == "stream").unwrap();
    assert_eq!((&gap["lag_ns"], &gap["samples"]), (&5_000.into(), &9.into()), "{said:#}");
}

#[test]
fn the_second_half_is_predicted_from_the_lags_of_the_first() {
    let said = tables(&["replay", &late_kernels("replay-model"), "--model"]);
    // In the replay, kernel 15 is not late, and kernels 12 and 16 begin after 3 us instead of 2 us. The first half of
    // the run takes the same time as in the recording.
    assert_eq!(said["replay"][0]["difference_ns"], -38_000, "{said:#}");
}

#[test]
fn kernels_that_begin_after_their_calls_begin_earlier_if_these_are_shorter() {
    let file = late_kernels("what-if-end-of-call");
    let said = tables(&["what-if", &file, "--launch-ns", "2000"]);
    // Seven launch calls take 4 us, seven take 6 us, and six take 8 us.
    assert_eq!(said["total"][0]["change_ns"], -1_000 * (7 * 2 + 7 * 4 + 6 * 6), "{said:#}");
}

/// Returns a trace in which a copy to the host is between two kernels; the call of the copy waits for the copy.
fn copy_that_waits() -> Trace {
    let trace = Trace::default().call("cudaLaunchKernel", 1, 5, (0, 10)).kernel("gemm", 1, 7, (15, 75));
    let trace = copy(trace.call("cudaMemcpy", 2, 5, (20, 90)), 2, 7, (75, 85));
    trace.call("cudaLaunchKernel", 3, 5, (95, 100)).kernel("relu", 3, 7, (110, 130))
}

#[test]
fn a_removed_copy_does_not_wait() {
    // The second launch begins at 25 us, and its kernel begins when `gemm` has ended.
    assert_eq!(change(copy_that_waits(), "what-if-copy", &["--remove", "DtoH"]), (130, 95));
}

#[test]
fn a_copy_that_waits_does_not_take_the_time_of_a_launch() {
    // The copy is called at 210 us, begins 15 us later, and takes 10 us. The call returns 5 us after the copy ends. The
    // second launch call lasts from 245 to 445 us.
    assert_eq!(change(copy_that_waits(), "what-if-copy-launch", &["--launch-ns", "200000"]), (130, 445));
}

#[test]
fn no_stream_waits_for_communication_that_overlaps() {
    let reduce = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)";
    // PyTorch computes on the default stream 7. Streams other than stream 7 may wait for the default stream too, so the
    // test also uses stream 13.
    for compute in [13, 7] {
        let trace =
            Trace::default().call("cudaLaunchKernel", 1, 5, (0, 5)).kernel("gemm", 1, compute, (5, 75));
        let trace = wait(trace, 2, 6, compute, 20);
        let trace = trace.call("cudaLaunchKernel", 4, 5, (10, 14)).kernel(reduce, 4, 20, (80, 140));
        let trace = wait(trace, 5, 15, 20, compute);
        let trace = trace.call("cudaLaunchKernel", 7, 5, (20, 24)).kernel("relu", 7, compute, (145, 165));
        let trace = wait_for_all(trace, 8, (30, 170));
        // `relu` runs from 80 to 100 us, and the wait returns 5 us after the communication ends.
        assert_eq!(change(trace, "what-if-overlap", &["--overlap-comm"]), (170, 145), "{compute}");
    }
}

/// Returns a trace of two steps with two launches each.
fn two_steps() -> Trace {
    let step = |trace: Trace, number: u32, (from, to): (u32, u32)| {
        trace.add(json!({
            "ph": "X", "cat": "user_annotation", "name": format!("ProfilerStep#{number}"), "pid": 1, "tid": 5,
            "ts": from, "dur": to - from, "args": {},
        }))
    };
    let trace = step(step(Trace::default(), 1, (0, 45)), 2, (45, 95));
    let trace = trace.call("cudaLaunchKernel", 1, 5, (0, 10)).kernel("one", 1, 7, (15, 20));
    let trace = trace.call("cudaLaunchKernel", 2, 5, (20, 30)).kernel("two", 2, 7, (35, 40));
    let trace = trace.call("cudaLaunchKernel", 3, 5, (50, 60)).kernel("three", 3, 7, (65, 70));
    trace.call("cudaLaunchKernel", 4, 5, (70, 80)).kernel("four", 4, 7, (85, 90))
}

#[test]
fn no_graph_crosses_the_border_of_a_step() {
    // With `--graphs`, each step is one launch of 10 us. The second launch begins at 30 us (10 + 20), its first kernel
    // at 45 us, and its second kernel at 50 us.
    assert_eq!(change(two_steps(), "what-if-graph-steps", &["--graphs"]), (90, 55));
}

#[test]
fn no_graph_contains_half_a_millisecond_of_host_code() {
    let trace = Trace::default().call("cudaLaunchKernel", 1, 5, (0, 10)).kernel("one", 1, 7, (15, 20));
    let trace = trace.call("cudaLaunchKernel", 2, 5, (20, 29)).kernel("two", 2, 7, (35, 40));
    let trace = trace.call("cudaLaunchKernel", 3, 5, (530, 540)).kernel("three", 3, 7, (545, 550));
    let trace = trace.call("cudaLaunchKernel", 4, 5, (550, 560)).kernel("four", 4, 7, (565, 570));
    // The first two launches become one launch of 10 us. After this launch, the host works for 501 us. The third and
    // the fourth launch become one launch from 511 to 521 us. The kernel `three` begins at 526 us, and `four` ends at
    // 536 us.
    assert_eq!(change(trace, "what-if-graph-pause", &["--graphs"]), (570, 536));
}

#[test]
fn an_event_waits_for_work_on_a_further_stream() {
    let trace = Trace::default().call("cudaLaunchKernel", 1, 5, (0, 10)).kernel("gemm", 1, 7, (15, 75));
    let trace = trace.call("cudaLaunchKernel", 2, 5, (20, 30)).kernel("relu", 2, 7, (80, 120));
    let trace = wait(trace, 3, 31, 7, 20);
    let trace = trace.call("cudaLaunchKernel", 5, 5, (35, 40)).kernel("norm", 5, 20, (125, 145));
    // `relu` runs from 35 to 115 us, and `norm` runs from 120 to 140 us.
    let options = ["--streams", "+1:relu", "--scale", "relu=2"];
    assert_eq!(change(trace, "what-if-streams-event", &options), (145, 140));
}

#[test]
fn work_that_overlaps_on_its_stream_fails_the_check() {
    let trace = copy(Trace::default().call("cudaMemcpyAsync", 1, 5, (0, 10)), 1, 7, (15, 75));
    let trace = trace.call("cudaLaunchKernel", 2, 5, (20, 30)).kernel("relu", 2, 7, (74, 120));
    let file = trace.write("replay-overlap");
    let output = gpuflame(&["replay", file.to_str().unwrap(), "--check", "--format", "json"]);
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    let failed: Vec<_> =
        said["checks"].as_array().unwrap().iter().filter(|row| row["holds"] == "no").collect();
    assert!(failed.len() == 1 && failed[0]["check"].as_str().unwrap().contains("overlap"), "{failed:?}");
}
