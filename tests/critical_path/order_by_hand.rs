//! Tests programs in which two threads call CUDA functions with the same CUDA event. The slack of GPU work is at most
//! the delay after which the calls on the event would change their order.

use serde_json::{Value, json};

use super::output::{Trace, read_json};

/// Adds a call, which takes no time, to a C library function that waits for other threads.
fn thread_wait(trace: Trace, thread: u32) -> Trace {
    trace.add(json!({
        "ph": "X", "cat": "pthread", "name": "pthread_barrier_wait", "pid": 1, "tid": thread, "ts": 0, "dur": 0,
        "args": {},
    }))
}

/// Returns a trace in which thread 5 records event 9 after `first`, and thread 6 makes a stream wait for the event with
/// the id `waits_for`. Streams 7 and 8 are non-blocking. All times are in us.
///
/// ```text
/// thread 5   |launch 0-10|- synchronize 10-80 -|record 80-82|
/// stream 7        |### first 15-75 ###|
/// thread 6                                          |wait 95-97|launch 97-107|- synchronize 107-157 -|
/// stream 8                                                             |## second 112-152 ##|
/// ```
fn two_threads(waits_for: u32) -> Trace {
    let kind = |trace: Trace, stream: u32| {
        trace.add(json!({
            "ph": "M", "name": "cuda_stream", "pid": 0, "tid": stream, "ts": 0,
            "args": { "context": 1, "stream": stream, "flag": 2 },
        }))
    };
    let record = json!({
        "ph": "X", "cat": "cuda_event", "name": "cudaEvent", "pid": 0, "tid": 7, "ts": 80, "dur": 0,
        "args": { "event_id": 9, "stream": 7, "correlation": 3, "device": 0, "context": 1 },
    });
    let wait = json!({
        "ph": "X", "cat": "cuda_sync", "name": "Stream Wait Event", "pid": 0, "tid": 8, "ts": 95, "dur": 1,
        "args": {
            "cuda_sync_kind": "Stream Wait Event", "wait_on_stream": 7,
            "wait_on_cuda_event_record_corr_id": if waits_for == 9 { 3 } else { -1 },
            "wait_on_cuda_event_id": waits_for, "stream": 8, "correlation": 4, "device": 0, "context": 1,
        },
    });
    let trace = Trace::default()
        .call("cudaLaunchKernel", 1, 5, (0, 10))
        .kernel("first", 1, 7, (15, 75))
        .call("cudaStreamSynchronize", 2, 5, (10, 80))
        .sync(2, 7, (11, 75))
        .call("cudaEventRecord", 3, 5, (80, 82))
        .add(record)
        .call("cudaStreamWaitEvent", 4, 6, (95, 97))
        .add(wait)
        .call("cudaLaunchKernel", 5, 6, (97, 107))
        .kernel("second", 5, 8, (112, 152))
        .call("cudaStreamSynchronize", 6, 6, (107, 157))
        .sync(6, 8, (108, 152));
    kind(kind(thread_wait(thread_wait(trace, 5), 6), 7), 8)
}

/// Returns the slack of a kernel, in ns, and the name of the rule that limits this slack.
fn slack(trace: Trace, name: &str, kernel: &str) -> (u64, Value) {
    let file = trace.write(name);
    let deps = read_json(&["deps", file.to_str().unwrap()]);
    let mut nodes = deps["nodes"].as_array().unwrap().iter();
    let node = nodes.find(|node| node["name"] == kernel).unwrap();
    (node["slack_ns"].as_u64().unwrap(), node["slack_limit"].clone())
}

#[test]
fn slack_ends_where_two_threads_would_use_an_event_in_another_order() {
    // The call that records the event begins at 80 us, which is 5 us after `first` ends. The recording call must begin
    // before the waiting call begins, at 95 us.
    assert_eq!(slack(two_threads(9), "order-same-event", "first"), (14_999, "order".into()));
    assert_eq!(slack(two_threads(9), "order-on-path", "second"), (0, Value::Null));
}

#[test]
fn calls_that_use_different_events_may_change_their_order() {
    // The call that records the event ends at 82 us, and the run ends at 157 us.
    assert_eq!(slack(two_threads(10), "order-other-event", "first"), (75_000, Value::Null));
}
