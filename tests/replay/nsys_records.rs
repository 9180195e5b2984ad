//! Tests rows in exports of Nsight Systems that determine the times of a program and that torch.profiler does not
//! write. The programs are those of `records_by_hand`, as databases. Times are in us.

use std::fmt::Write;
use std::path::PathBuf;

use rusqlite::Connection;

use super::records_by_hand::predict_file;

/// Tables that every export with CUDA calls has. Columns for names contain either string ids or the names themselves.
const TABLES: &str = "
    CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
    CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start, end, globalTid, correlationId, nameId);
    CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, contextId, streamId, correlationId, globalPid,
        demangledName);
    CREATE TABLE CUPTI_ACTIVITY_KIND_SYNCHRONIZATION (start, end, deviceId, contextId, streamId, correlationId,
        globalPid, syncType, eventId, eventSyncId);";

/// Start and end in us.
type Span = (u32, u32);

/// An export of process 3, which uses context 1 of GPU 0.
#[derive(Clone)]
struct Export(String);

impl Export {
    fn new() -> Self {
        Self(TABLES.to_owned())
    }

    fn add(mut self, statement: &str) -> Self {
        writeln!(self.0, "{statement};").unwrap();
        self
    }

    fn call(self, name: &str, id: u32, thread: u32, (from, to): Span) -> Self {
        self.add(&format!(
            "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES ({from}000, {to}000, (3 << 24) | {thread}, {id}, '{name}')"
        ))
    }

    fn kernel(self, name: &str, id: u32, stream: u32, (from, to): Span) -> Self {
        self.add(&format!(
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({from}000, {to}000, 0, 1, {stream}, {id}, 3 << 24, '{name}')"
        ))
    }

    /// Adds the row of a wait for a stream.
    fn sync(self, id: u32, stream: u32, (from, to): Span) -> Self {
        self.add(&format!(
            "INSERT INTO CUPTI_ACTIVITY_KIND_SYNCHRONIZATION VALUES ({from}000, {to}000, 0, 1, {stream}, {id}, 3 << 24, 3,
                NULL, NULL)"
        ))
    }

    fn with_thread_waits(self) -> Self {
        self.add(
            "CREATE TABLE OSRT_API (start, end, eventClass, globalTid, correlationId, nameId, returnValue)",
        )
    }

    fn thread_wait(self, name: &str, thread: u32, (from, to): Span) -> Self {
        self.add(&format!(
            "INSERT INTO OSRT_API VALUES ({from}000, {to}000, 27, (3 << 24) | {thread}, 1, '{name}', 0)"
        ))
    }

    /// Adds the kinds of streams, as CUPTI's numbers for them.
    fn streams(self, flags: &[(u32, u32)]) -> Self {
        let table = "CREATE TABLE TARGET_INFO_CUDA_STREAM (streamId, hwId, vmId, processId, contextId, priority, flag)";
        flags.iter().fold(self.add(table), |export, (stream, flag)| {
            export
                .add(&format!("INSERT INTO TARGET_INFO_CUDA_STREAM VALUES ({stream}, 0, 0, 3, 1, 0, {flag})"))
        })
    }

    fn write(&self, name: &str) -> PathBuf {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("nsys-{name}.sqlite"));
        let _ = std::fs::remove_file(&path);
        Connection::open(&path).unwrap().execute_batch(&self.0).unwrap();
        path
    }
}

fn predict(export: &Export, name: &str, options: &[&str]) -> (u64, Vec<String>) {
    predict_file(&export.write(name), options)
}

/// Returns an export in which a thread waits for `first`, and then meets another thread at a barrier. The second thread
/// launches `last`.
fn two_threads() -> Export {
    Export::new()
        .call("cudaLaunchKernel", 1, 5, (0, 10))
        .kernel("first", 1, 7, (15, 75))
        .call("cudaStreamSynchronize", 2, 5, (10, 85))
        .sync(2, 7, (11, 75))
        .call("cudaLaunchKernel", 3, 6, (0, 10))
        .kernel("other", 3, 8, (15, 25))
        .call("cudaLaunchKernel", 4, 6, (90, 100))
        .kernel("last", 4, 8, (105, 115))
        .with_thread_waits()
        .thread_wait("pthread_barrier_wait", 6, (12, 85))
}

#[test]
fn a_barrier_opens_when_the_last_thread_arrives() {
    let export = two_threads().thread_wait("pthread_barrier_wait", 5, (85, 85));
    // `first` ends at 45 us, its wait returns at 55 us, and the second thread launches `last` at 60 us.
    assert_eq!(predict(&export, "barrier", &["--scale", "first=0.5"]), (85_000, vec![]));
}

#[test]
fn locks_of_cuda_and_other_functions_of_the_system_do_not_order_threads() {
    let export = two_threads()
        .thread_wait("pthread_barrier_wait", 5, (85, 85))
        // These waits are inside the launch calls of the two threads, and inside the wait for the GPU.
        .thread_wait("pthread_mutex_lock", 5, (2, 4))
        .thread_wait("pthread_mutex_lock", 6, (2, 4))
        .thread_wait("pthread_mutex_lock", 5, (20, 70))
        // These waits have no effect: thread 9 does not call CUDA, and `poll` does not wait for a call of a thread.
        .thread_wait("pthread_barrier_wait", 9, (12, 85))
        .thread_wait("poll", 6, (86, 89))
        .thread_wait("pthread_cond_wait", 6, (86, 89));
    assert_eq!(predict(&export, "system", &["--scale", "first=0.5"]), (85_000, vec![]));
}

#[test]
fn a_wait_for_a_thread_whose_call_was_too_short_for_a_row_is_named() {
    // By default, Nsight Systems leaves out calls shorter than 1 us. The call by the thread that arrives last at a
    // barrier is shorter than 1 us.
    let (_, rules) = predict(&two_threads(), "short", &["--scale", "first=0.5"]);
    assert_eq!(rules, ["hand_off"]);
}

#[test]
fn a_stream_waits_for_the_default_stream_unless_it_does_not_block() {
    let export = Export::new()
        .call("cudaLaunchKernel", 1, 5, (0, 10))
        .kernel("first", 1, 7, (15, 75))
        .call("cudaLaunchKernel", 2, 5, (70, 80))
        .kernel("second", 2, 20, (85, 125))
        .call("cudaStreamSynchronize", 3, 5, (80, 130))
        .sync(3, 20, (81, 125));
    let with = |flag: u32| export.clone().streams(&[(7, 3), (20, flag)]);
    let double = &["--scale", "first=2"];
    // `first` ends at 135 us, `second` runs from 135 to 175 us, and the wait returns 5 us later.
    assert_eq!(predict(&export, "unknown", double), (180_000, vec!["default_stream".to_owned()]));
    assert_eq!(predict(&with(1), "blocking", double), (180_000, vec![]));
    // `second` ends at 125 us as before, and `first` ends at 135 us.
    assert_eq!(predict(&with(2), "non-blocking", double), (135_000, vec![]));
}

#[test]
fn a_host_function_of_a_stream_takes_its_time_after_its_own_launch() {
    let export = Export::new()
        .call("cudaLaunchKernel", 1, 5, (0, 10))
        .kernel("first", 1, 7, (15, 75))
        .call("cudaLaunchHostFunc", 2, 5, (10, 20))
        .call("cudaLaunchKernel", 3, 5, (20, 30))
        .kernel("second", 3, 7, (95, 135))
        .call("cudaStreamSynchronize", 4, 5, (30, 140))
        .sync(4, 7, (31, 135));
    let with_row = export
        .clone()
        .add(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_HOST_NODE_AND_HOST_LAUNCH (start, end, globalPid, correlationId, deviceId,
                contextId, streamId, graphNodeId, graphId)",
        )
        .add(
            "INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_HOST_NODE_AND_HOST_LAUNCH VALUES (75000, 95000, 3 << 24, 2, 0, 1, 7, NULL,
                NULL)",
        );
    let short = &["--scale", "first=0.01"];
    // `first` ends at 15.6 us. The host function is launched at 10 us and runs from 25 to 45 us, and `second` ends at
    // 85 us.
    assert_eq!(predict(&with_row, "host-function", short), (90_000, vec![]));
    // If the row is missing, the 20 us between the kernels stay.
    assert_eq!(predict(&export, "no-host-function", short), (80_600, vec!["host_functions".to_owned()]));
}
