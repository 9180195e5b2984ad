//! Tests traces of small programs that have rows which torch.profiler does not write. The effect of each row is
//! computed by hand.

use std::path::Path;

use serde_json::{Value, json};

use super::by_hand::{Trace, tables};

/// Adds a row with the kind of a stream, as CUPTI's number for it.
fn stream(trace: Trace, stream: u32, flag: u32) -> Trace {
    trace.add(json!({
        "ph": "M", "name": "cuda_stream", "pid": 0, "tid": stream, "ts": 0,
        "args": { "context": 1, "stream": stream, "flag": flag },
    }))
}

/// Adds a call that waits for another thread.
fn thread_wait(trace: Trace, name: &str, thread: u32, (from, to): (u32, u32)) -> Trace {
    trace.add(json!({
        "ph": "X", "cat": "pthread", "name": name, "pid": 1, "tid": thread, "ts": from, "dur": to - from, "args": {},
    }))
}

/// Returns the total time after a change, in ns, and the names of the rules that replace missing records.
fn predict(trace: Trace, name: &str, options: &[&str]) -> (u64, Vec<String>) {
    predict_file(trace.write(&format!("records-{name}")).as_ref(), options)
}

/// Like `predict`, but reads a trace file.
pub(super) fn predict_file(file: &Path, options: &[&str]) -> (u64, Vec<String>) {
    let tables = tables(&[&["what-if", file.to_str().unwrap()], options].concat());
    let rules = tables["assumptions"].as_array().unwrap().iter();
    let rules = rules.map(|row| row["rule"].as_str().unwrap().to_owned());
    let missing = rules.filter(|rule| rule != "full_speed" && rule != "change");
    (tables["total"][0]["after_ns"].as_u64().unwrap(), missing.collect())
}

/// Returns a trace in which `first` runs on the default stream, and `second` runs later on another stream.
fn two_streams() -> Trace {
    Trace::default()
        .call("cudaLaunchKernel", 1, 5, (0, 10))
        .kernel("first", 1, 7, (15, 75))
        .call("cudaLaunchKernel", 2, 5, (70, 80))
        .kernel("second", 2, 20, (85, 125))
        .call("cudaStreamSynchronize", 3, 5, (80, 130))
        .sync(3, 20, (81, 125))
}

#[test]
fn a_stream_waits_for_the_default_stream_unless_it_does_not_block() {
    let double = &["--scale", "first=2"];
    let with = |flag: u32| stream(stream(two_streams(), 7, 3), 20, flag);
    // `first` ends at 135 us, `second` runs from 135 to 175 us, and the wait returns 5 us later.
    assert_eq!(predict(two_streams(), "unknown", double), (180_000, vec!["default_stream".to_owned()]));
    assert_eq!(predict(with(1), "blocking", double), (180_000, vec![]));
    // `second` ends at 125 us as before, and `first` ends at 135 us.
    assert_eq!(predict(with(2), "non-blocking", double), (135_000, vec![]));
    assert_eq!(predict(with(0), "no-kind", double), (180_000, vec!["default_stream".to_owned()]));
}

fn with_host_function(has_row: bool) -> Trace {
    let trace = Trace::default()
        .call("cudaLaunchKernel", 1, 5, (0, 10))
        .kernel("first", 1, 7, (15, 75))
        .call("cudaLaunchHostFunc", 2, 5, (10, 20))
        .call("cudaLaunchKernel", 3, 5, (20, 30))
        .kernel("second", 3, 7, (95, 135))
        .call("cudaStreamSynchronize", 4, 5, (30, 140))
        .sync(4, 7, (31, 135));
    let row = json!({
        "ph": "X", "cat": "host_launch", "name": "HostFunction", "pid": 0, "tid": 7, "ts": 75, "dur": 20,
        "args": { "device": 0, "context": 1, "stream": 7, "correlation": 2 },
    });
    if has_row { trace.add(row) } else { trace }
}

#[test]
fn a_host_function_of_a_stream_takes_its_time_after_its_own_launch() {
    let short = &["--scale", "first=0.01"];
    // `first` ends at 15.6 us. The host function is launched at 10 us and runs from 25 to 45 us, and `second` ends at
    // 85 us.
    assert_eq!(predict(with_host_function(true), "host-function", short), (90_000, vec![]));
    // If the row is missing, the 20 us between the kernels stay.
    let rules = vec!["host_functions".to_owned()];
    assert_eq!(predict(with_host_function(false), "no-host-function", short), (80_600, rules));
}

#[test]
fn a_barrier_opens_when_the_last_thread_arrives() {
    let trace = Trace::default()
        .call("cudaLaunchKernel", 1, 5, (0, 10))
        .kernel("first", 1, 7, (15, 75))
        .call("cudaStreamSynchronize", 2, 5, (10, 85))
        .sync(2, 7, (11, 75))
        .call("cudaLaunchKernel", 3, 6, (0, 10))
        .kernel("other", 3, 8, (15, 25))
        .call("cudaLaunchKernel", 4, 6, (90, 100))
        .kernel("last", 4, 8, (105, 115));
    let trace = thread_wait(trace, "pthread_barrier_wait", 6, (12, 85));
    let trace = || thread_wait(Trace::clone(&trace), "pthread_barrier_wait", 5, (85, 85));
    // `first` ends at 45 us, its wait returns at 55 us, and the second thread launches `last` at 60 us.
    assert_eq!(predict(trace(), "barrier", &["--scale", "first=0.5"]), (85_000, vec![]));
    // The waiting thread arrives at the barrier at 25.6 us at the earliest, which is later than the arrival of the
    // second thread.
    assert_eq!(predict(trace(), "barrier-short", &["--scale", "first=0.01"]), (55_600, vec![]));
}

/// Returns a trace in which the kernel `early` allows the next kernel to begin after 20 us. If the kernel `next` runs
/// alone, it takes 40 us; it ends at least 10 us after `early`.
fn programmatic() -> Trace {
    let call: Value = json!({
        "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernelExC", "pid": 1, "tid": 5, "ts": 50, "dur": 10,
        "args": { "correlation": 3, "programmatic": 1 },
    });
    Trace::default()
        .call("cudaLaunchKernel", 1, 5, (0, 10))
        .kernel("next", 1, 7, (15, 55))
        .call("cudaLaunchKernel", 2, 5, (40, 50))
        .kernel("early", 2, 7, (55, 115))
        .add(call)
        .kernel("next", 3, 7, (75, 125))
        .call("cudaStreamSynchronize", 4, 5, (60, 125))
        .sync(4, 7, (61, 125))
}

#[test]
fn a_programmatic_launch_keeps_the_times_that_its_kernels_show() {
    let predict = |factor: &str| {
        let option = format!("early={factor}");
        predict(programmatic(), &format!("programmatic-{factor}"), &["--scale", &option])
    };
    // `next` begins at 75 us as before, and takes 40 us.
    assert_eq!(predict("0.5"), (115_000, vec![]));
    // `early` ends at 70 us, before it would trigger the next kernel.
    assert_eq!(predict("0.25"), (110_000, vec![]));
    // `early` ends at 175 us, and `next` ends 10 us after it.
    assert_eq!(predict("2"), (185_000, vec![]));
}

/// Returns a trace in which a thread records a CUDA event after `first`. 5 us later, another thread makes its stream
/// wait for the event.
fn two_threads() -> Trace {
    let mut trace = Trace::default()
        .call("cudaLaunchKernel", 1, 5, (0, 10))
        .kernel("first", 1, 7, (15, 75))
        .call("cudaEventRecord", 2, 5, (10, 12))
        .call("cudaStreamWaitEvent", 3, 6, (15, 17))
        .call("cudaLaunchKernel", 4, 6, (17, 27))
        .kernel("second", 4, 8, (75, 85));
    for thread in [5, 6] {
        trace = thread_wait(trace, "pthread_barrier_wait", thread, (0, 0));
    }
    let record = json!({
        "ph": "X", "cat": "cuda_event", "name": "cudaEvent", "pid": 0, "tid": 7, "ts": 10, "dur": 0,
        "args": { "event_id": 9, "stream": 7, "correlation": 2, "device": 0, "context": 1 },
    });
    let wait = json!({
        "ph": "X", "cat": "cuda_sync", "name": "Stream Wait Event", "pid": 0, "tid": 8, "ts": 15, "dur": 1,
        "args": {
            "cuda_sync_kind": "Stream Wait Event", "wait_on_stream": 7, "wait_on_cuda_event_record_corr_id": 2,
            "wait_on_cuda_event_id": 9, "stream": 8, "correlation": 3, "device": 0, "context": 1,
        },
    });
    stream(stream(trace, 7, 2), 8, 2).add(record).add(wait)
}

#[test]
fn a_wait_before_the_record_of_its_event_does_not_hold_the_stream() {
    // The event is still recorded before the wait, so `second` begins when `first` ends.
    assert_eq!(predict(two_threads(), "order", &["--launch-ns", "12000"]), (85_000, vec![]));
    // The event is recorded at 20 us, after the wait at 15 us. Therefore `second` runs from 32 to 42 us, and `first`
    // ends last.
    assert_eq!(predict(two_threads(), "other-order", &["--launch-ns", "20000"]), (75_000, vec![]));
}

/// Returns a trace in which a CUDA event is recorded on an empty stream at 10 us, and after `long` at 25 us. The wait
/// at 22 us refers to the first of these records.
fn two_records() -> Trace {
    let mut trace = Trace::default()
        .call("cudaLaunchKernel", 1, 5, (0, 10))
        .kernel("long", 1, 9, (15, 115))
        .call("cudaEventRecord", 2, 5, (10, 12))
        .call("cudaEventRecord", 3, 5, (25, 27))
        .call("cudaLaunchKernel", 4, 6, (0, 10))
        .kernel("short", 4, 8, (15, 16))
        .call("cudaLaunchKernel", 5, 6, (10, 20))
        .kernel("short", 5, 8, (25, 26))
        .call("cudaStreamWaitEvent", 6, 6, (22, 24))
        .call("cudaLaunchKernel", 7, 6, (24, 34))
        .kernel("last", 7, 8, (39, 139));
    for thread in [5, 6] {
        trace = thread_wait(trace, "pthread_barrier_wait", thread, (0, 0));
    }
    for (id, on, at) in [(2, 7, 10), (3, 9, 25)] {
        trace = trace.add(json!({
            "ph": "X", "cat": "cuda_event", "name": "cudaEvent", "pid": 0, "tid": on, "ts": at, "dur": 0,
            "args": { "event_id": 9, "stream": on, "correlation": id, "device": 0, "context": 1 },
        }));
    }
    let wait = json!({
        "ph": "X", "cat": "cuda_sync", "name": "Stream Wait Event", "pid": 0, "tid": 8, "ts": 22, "dur": 1,
        "args": {
            "cuda_sync_kind": "Stream Wait Event", "wait_on_stream": 7, "wait_on_cuda_event_record_corr_id": 2,
            "wait_on_cuda_event_id": 9, "stream": 8, "correlation": 6, "device": 0, "context": 1,
        },
    });
    [7, 8, 9].into_iter().fold(trace, |trace, id| stream(trace, id, 2)).add(wait)
}

#[test]
fn a_wait_after_a_further_record_of_its_event_is_for_this_record() {
    // The calls keep their order: the wait is at 26 us, and the second record at 27 us. `last` begins 15 us after its
    // call at 28 us.
    assert_eq!(predict(two_records(), "same-record", &["--launch-ns", "12000"]), (143_000, vec![]));
    // The second record is at 35 us, and the wait at 42 us. Therefore `last` begins when `long` ends, at 115 us, and
    // not at 59 us (44 + 15).
    assert_eq!(predict(two_records(), "further-record", &["--launch-ns", "20000"]), (215_000, vec![]));
}
