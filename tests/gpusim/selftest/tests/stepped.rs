//! Tests the stepped clock against schedules that were computed by hand. Each API call takes 1 us, a launch reaches the
//! GPU 5 us after its call begins, and times count from the first launch.

use gpusim_selftest::{Outcome, Run};
use serde_json::Value;

fn run(case: &str) -> Outcome {
    Run::new("stepped", &[case]).stepped().env("GPUSIM_NDEV", "2").outcome().expect_success()
}

fn rows<'a>(outcome: &'a Outcome, what: &str) -> Vec<&'a Value> {
    outcome.schedule.iter().filter(|row| row["what"] == what).collect()
}

fn number(row: &Value, key: &str) -> u64 {
    row[key].as_u64().unwrap_or_else(|| panic!("no {key} in {row}"))
}

/// Begin, end and cause of each GPU operation, in the order of submission.
fn spans(outcome: &Outcome) -> Vec<(u64, u64, &str)> {
    let ops = rows(outcome, "op");
    let first = number(ops[0], "enqueue");
    let span = |op: &&'_ Value| (number(op, "begin") - first, number(op, "end") - first);
    ops.iter().map(|op| (span(op).0, span(op).1, op["cause"].as_str().unwrap())).collect()
}

/// Begin and end of each call to the API function `name`.
fn calls(outcome: &Outcome, name: &str) -> Vec<(u64, u64)> {
    let first = number(rows(outcome, "op")[0], "enqueue");
    let named = rows(outcome, "call").into_iter().filter(|row| row["name"] == name);
    named.map(|row| (number(row, "begin") - first, number(row, "end") - first)).collect()
}

/// Operations for which the operation with index `at` waited, with the reason of each wait.
fn waits(outcome: &Outcome, at: usize) -> Vec<(u64, &str)> {
    let all = rows(outcome, "op")[at]["waits"].as_array().unwrap().iter();
    all.map(|wait| (number(wait, "op"), wait["why"].as_str().unwrap())).collect()
}

#[test]
fn the_default_stream_waits_for_blocking_streams_and_blocking_streams_for_it() {
    let outcome = run("default_stream");
    let expected = [
        (5_000, 14_000, "launch"),
        (6_000, 7_000, "launch"),
        (14_000, 15_000, "default_stream"),
        (15_000, 17_000, "default_stream"),
        // The kernel on the non-blocking stream does not wait.
        (9_000, 10_000, "launch"),
        // The kernel on the per-thread default stream waits.
        (15_000, 17_000, "default_stream"),
    ];
    assert_eq!(spans(&outcome), expected);
    assert_eq!(waits(&outcome, 2), [(1, "default_stream")]);
    assert_eq!(calls(&outcome, "cudaDeviceSynchronize"), [(6_000, 17_000)]);
}

#[test]
fn a_stream_and_a_thread_wait_for_an_event() {
    let outcome = run("events");
    let expected = [(5_000, 14_000, "launch"), (14_000, 15_000, "event"), (19_500, 20_500, "launch")];
    assert_eq!(spans(&outcome), expected);
    assert_eq!(calls(&outcome, "cudaEventSynchronize"), [(5_000, 14_000)]);
    assert_eq!(calls(&outcome, "cudaStreamSynchronize"), [(15_500, 16_500)]);
    let record = rows(&outcome, "call").into_iter().find(|row| row["name"] == "cudaEventRecord").unwrap();
    let waits = rows(&outcome, "wait");
    let of = |kind: &str| *waits.iter().find(|wait| wait["kind"] == kind).unwrap();
    for kind in ["stream_wait", "event"] {
        assert_eq!((&of(kind)["record"], number(of(kind), "op")), (&record["corr"], 1), "{kind}");
    }
    assert_eq!(number(of("stream"), "op"), 2);
}

#[test]
fn the_branches_of_a_diamond_run_at_the_same_time() {
    let outcome = run("diamond");
    let expected = [
        (5_000, 6_000, "launch"),
        (6_000, 7_000, "launch"),
        (7_000, 9_000, "edge"),
        (7_000, 16_000, "edge"),
        (16_000, 17_000, "edge"),
        (17_000, 18_000, "stream"),
    ];
    assert_eq!(spans(&outcome), expected);
    assert_eq!(waits(&outcome, 4), [(3, "edge"), (4, "edge")]);
}

#[test]
fn a_captured_diamond_has_the_edges_of_its_streams_and_events() {
    let outcome = run("captured");
    let expected =
        [(5_000, 6_000, "launch"), (6_000, 8_000, "edge"), (6_000, 15_000, "edge"), (15_000, 16_000, "edge")];
    assert_eq!(spans(&outcome), expected);
    assert_eq!(waits(&outcome, 3), [(2, "edge"), (3, "edge")]);
}

#[test]
fn a_programmatic_launch_overlaps_the_kernel_before_it() {
    let outcome = run("programmatic");
    let expected = [
        (5_000, 14_000, "launch"),
        // The kernel begins at the trigger, at 9,500. The kernel runs 300 ns, waits for the end of the first kernel,
        // and runs 700 ns more.
        (9_500, 14_700, "programmatic"),
        (14_700, 15_700, "stream"),
        // The CUDA event completes at the trigger.
        (9_500, 10_500, "event"),
    ];
    assert_eq!(spans(&outcome), expected);
}

#[test]
fn two_gpus_run_on_one_clock_and_wait_for_each_other() {
    let outcome = run("two_gpus");
    let expected = [
        (5_000, 14_000, "launch"),
        (14_000, 17_000, "stream"),
        (9_000, 10_000, "launch"),
        (17_000, 18_000, "event"),
    ];
    assert_eq!(spans(&outcome), expected);
    let devices: Vec<u64> = rows(&outcome, "op").iter().map(|op| number(op, "device")).collect();
    assert_eq!(devices, [0, 0, 1, 1]);
}

#[test]
fn a_host_function_takes_its_time_in_the_stream() {
    let outcome = run("host_function");
    // The memset takes 1,000 ns plus 1 ns per 1,000 bytes; the copy takes 2,000 ns.
    let expected = [
        (5_000, 6_000, "launch"),
        (6_000, 6_700, "launch"),
        (7_000, 8_001, "launch"),
        (8_001, 9_001, "default_stream"),
        (9_001, 11_001, "default_stream"),
    ];
    assert_eq!(spans(&outcome), expected);
    assert_eq!(calls(&outcome, "cudaMemcpy"), [(4_000, 11_001)]);
}

#[test]
fn two_threads_take_turns_by_their_clocks() {
    let outcome = run("two_threads");
    let expected = [
        (5_000, 6_000, "launch"),
        (6_000, 8_000, "launch"),
        (7_000, 8_000, "launch"),
        (8_000, 10_000, "stream"),
    ];
    assert_eq!(spans(&outcome), expected);
    let threads: Vec<u64> = rows(&outcome, "op").iter().map(|op| number(op, "thread")).collect();
    assert_eq!(threads, [1_000, 1_001, 1_000, 1_001]);
}

#[test]
fn calls_and_copies_have_the_configured_costs() {
    let run = Run::new("stepped", &["events"]).stepped();
    let outcome = run.env("GPUSIM_COSTS", "cudaLaunchKernel=3us,*=200ns").outcome().expect_success();
    assert_eq!(calls(&outcome, "cudaLaunchKernel")[..2], [(0, 3_000), (3_400, 6_400)]);
}

#[test]
fn threads_that_wait_outside_the_simulation_are_reported() {
    let run = Run::new("stepped", &["stuck"]).stepped().env("GPUSIM_WATCHDOG_MS", "300");
    run.outcome().expect_abort("gpusim_join");
}

/// Reads the Kineto trace of a run, with which the tests compare the client's records.
fn kineto(outcome: &Outcome) -> Vec<Value> {
    let trace: Value = serde_json::from_str(&outcome.kineto).unwrap();
    trace["traceEvents"].as_array().unwrap().clone()
}

fn nanos(row: &Value, key: &str) -> u64 {
    let text = row[key].to_string();
    let (whole, digits) = text.split_once('.').unwrap_or((&text, ""));
    format!("{whole}{digits:0<3}").parse().unwrap()
}

#[test]
fn the_kineto_trace_has_the_schedules_work_calls_and_waits() {
    let outcome = run("events");
    let rows_of = |cat: &str| -> Vec<Value> {
        kineto(&outcome).into_iter().filter(|row| row["cat"] == cat && row["ph"] == "X").collect()
    };
    let spans = |rows: Vec<Value>| -> Vec<(u64, u64)> {
        rows.iter().map(|row| (nanos(row, "ts"), nanos(row, "ts") + nanos(row, "dur"))).collect()
    };
    let schedule = |what: &str| -> Vec<(u64, u64)> {
        rows(&outcome, what).iter().map(|row| (number(row, "begin"), number(row, "end"))).collect()
    };
    assert_eq!(spans(rows_of("kernel")), schedule("op"));
    assert_eq!(spans(rows_of("cuda_runtime")), schedule("call"));
    let sync = rows_of("cuda_sync");
    let names: Vec<&str> = sync.iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["Stream Wait Event", "Event Sync", "Stream Sync"]);
    let all = rows_of("cuda_runtime");
    let record = all.iter().find(|row| row["name"] == "cudaEventRecord").unwrap();
    let kernels = rows_of("kernel");
    for wait in &sync[..2] {
        let args = &wait["args"];
        assert_eq!(args["wait_on_cuda_event_record_corr_id"], record["args"]["correlation"], "{wait}");
        assert_eq!(args["wait_on_stream"], kernels[0]["args"]["stream"], "{wait}");
    }
    let ends = |end: &str| -> Vec<Value> {
        let flows = kineto(&outcome).into_iter().filter(|row| row["cat"] == "ac2g" && row["ph"] == end);
        flows.map(|row| row["id"].clone()).collect()
    };
    // Each of the three kernels and three waits has a flow.
    assert_eq!((ends("s").len(), ends("f").len()), (6, 6));
    assert!(ends("f").iter().all(|id| ends("s").contains(id)));
}

/// Sorts spans by begin and subtracts the first span's begin from all times.
fn sorted(spans: impl Iterator<Item = (u64, u64)>) -> Vec<(u64, u64)> {
    let mut spans: Vec<(u64, u64)> = spans.collect();
    spans.sort();
    let first = spans.first().expect("spans").0;
    spans.into_iter().map(|(begin, end)| (begin - first, end - first)).collect()
}

#[test]
fn the_clients_records_come_from_the_same_schedule() {
    for case in ["default_stream", "diamond", "programmatic", "two_gpus"] {
        let run =
            Run::new("stepped", &[case]).stepped().env("GPUSIM_NDEV", "2").env("CLIENT_FLUSH", "always");
        let outcome = run.client("5,10,1,2,22", "").outcome().expect_success();
        let schedule = |what: &str| {
            sorted(rows(&outcome, what).iter().map(|row| (number(row, "begin"), number(row, "end"))))
        };
        let records = |is_call: bool| {
            let of_kind = outcome.lines("record").into_iter().filter(|r| (r.number("kind") == 5) == is_call);
            sorted(of_kind.map(|record| (record.number("start"), record.number("end"))))
        };
        assert_eq!(records(false), schedule("op"), "{case}");
        assert_eq!(records(true), schedule("call"), "{case}");
    }
}
