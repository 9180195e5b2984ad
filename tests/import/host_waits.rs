//! Tests host times that contradict the GPU's activities: waits that returned before the recorded GPU work ended or
//! long after it, and launches a day away from their kernels. gpuflame withholds percentages that are computed from
//! such times.

use serde_json::{Value, json};

use crate::support::command::gpuflame;
use crate::support::scratch;
use crate::support::traces::Trace;

/// Time from one launch to the next, in us.
const PERIOD: u64 = 1000;
/// Start of the first period, in us.
const ORIGIN: u64 = 1_000_000_000_000;

/// Returns a trace of `count` periods, each with a launch and a wait for the GPU. In period `at`, the kernel starts 10
/// us after the launch and runs for `busy(at)` us, and the wait returns `wait_of(at)` us after the launch.
fn periods(count: u32, busy: impl Fn(u32) -> u64, wait_of: impl Fn(u32) -> u64) -> Trace {
    let mut trace = Trace::default();
    for at in 0..count {
        let start = ORIGIN + PERIOD * u64::from(at);
        trace.launch(at + 1, "gemm", 1, start, start + 10, start + 10 + busy(at));
        trace.slice("cuda_runtime", "cudaDeviceSynchronize", 1, start + 3, start + wait_of(at));
    }
    trace
}

fn tables(trace: &Trace, verb: &str) -> Value {
    let folder = scratch("host_waits");
    trace.write(&folder.join("a.json"));
    serde_json::from_str(&gpuflame(&folder, [verb, "a.json", "-f", "json"]).ok().stdout).unwrap()
}

/// Returns the ids of the `BAD` findings of `check`, with their reasons.
fn bad(trace: &Trace) -> Vec<(String, String)> {
    let tables = tables(trace, "check");
    let rows = tables["findings"].as_array().unwrap().iter().filter(|row| row["result"] == "BAD");
    let text = |row: &Value, key: &str| row[key].as_str().unwrap().to_owned();
    rows.map(|row| (text(row, "id"), text(row, "why"))).collect()
}

/// Returns the sentences of `summary`, and whether its output has causes of idle time.
fn summary(trace: &Trace) -> (String, bool) {
    let tables = tables(trace, "summary");
    (tables["answers"].to_string(), tables["idle_causes"].is_array())
}

#[test]
fn a_kernel_that_outlasts_a_wait_for_it_is_impossible() {
    // In each period, the wait returns 10 us after a kernel of 700 us. On another stream, a kernel that is launched in
    // the third period runs for 4 ms.
    let stretched = |extra: u64| {
        let mut trace = periods(20, |_| 700, |_| 720);
        trace.slice("cuda_runtime", "cudaLaunchKernel", 1, ORIGIN + 3 * PERIOD - 5, ORIGIN + 3 * PERIOD - 3);
        trace.0.last_mut().unwrap()["args"] = json!({ "correlation": 99 });
        trace.work(
            "kernel",
            99,
            "stretched",
            20,
            ORIGIN + 3 * PERIOD + 10,
            ORIGIN + 3 * PERIOD + 100 + extra,
        );
        trace
    };
    assert!(bad(&stretched(0)).is_empty());
    let found = bad(&stretched(4000));
    let why = "a wait of the host for the GPU returned 710.000 us into the 4.090 ms of stretched";
    assert_eq!(found, [("impossible_duration".to_owned(), why.to_owned())]);
    let (answers, has_causes) = summary(&stretched(4000));
    assert!(answers.contains("busy and idle time are withheld") && !has_causes, "{answers}");
    // A thread that waits for one GPU after the other launches nothing until the last wait returns.
    let mut in_turn = periods(20, |_| 700, |_| 720);
    for at in 0..20 {
        let start = ORIGIN + PERIOD * at;
        in_turn.slice("cuda_runtime", "cudaDeviceSynchronize", 1, start + 2, start + 3);
    }
    assert!(bad(&in_turn).is_empty());
    // If there are two GPUs, the host may have waited for the other GPU, so the wait proves nothing.
    let mut two = stretched(4000);
    two.work("kernel", 100, "other", 7, ORIGIN + 10, ORIGIN + 20);
    two.0.last_mut().unwrap()["args"]["device"] = json!(1);
    assert!(bad(&two).iter().all(|(id, _)| id != "impossible_duration"));
}

#[test]
fn clocks_disagree_if_all_work_is_late_and_outlasts_waits_for_it() {
    let mut trace = periods(20, |_| 700, |_| 720);
    let kernels = trace.0.iter_mut().filter(|event| event["cat"] == "kernel");
    kernels.for_each(|event| event["ts"] = json!(event["ts"].as_u64().unwrap() + 5000));
    let found = bad(&trace);
    // In the last five periods, the launches are later than the ends of their kernels.
    let why = "the CPU and GPU clocks disagree: delays and idle causes are wrong";
    assert_eq!(found, [("starts_before_launch".to_owned(), why.to_owned())]);
}

#[test]
fn a_kernel_of_more_than_a_day_is_impossible() {
    let with_last = |days: u64| {
        let mut trace = periods(20, |_| 700, |_| 720);
        let start = ORIGIN + 20 * PERIOD;
        trace.launch(99, "endless", 1, start, start + 10, start + days * 86_400_000_000);
        trace
    };
    assert!(bad(&with_last(1)).is_empty(), "as long as a day, less 10 us");
    let found = bad(&with_last(2));
    assert_eq!(found.len(), 1);
    assert!(
        found[0].0 == "impossible_duration" && found[0].1.contains("no work takes more than a day"),
        "{found:?}"
    );
}

#[test]
fn work_is_missing_if_most_waits_return_long_after_all_recorded_work() {
    // In each period of 1000 us, the trace has 40 us of GPU work, but the host waits for about 900 us longer.
    let late = periods(40, |_| 40, |_| 950);
    let found = bad(&late);
    assert_eq!(found.len(), 1);
    // 40 times 900 us are 36 ms. Each 900 us are the 950 us of a wait, minus the 10 us until the kernel begins and the
    // 40 us that it takes.
    assert!(found[0].0 == "launch_coverage" && found[0].1.contains("lasted 36.000 ms longer"), "{found:?}");
    let (answers, has_causes) = summary(&late);
    assert!(answers.contains("idle time is unknown: 40 of 40 waits for the GPU") && !has_causes, "{answers}");
    // If waits return after 100 us, or if only a single wait returns late, this does not prove that GPU work is
    // missing.
    assert!(bad(&periods(40, |_| 40, |_| 150)).is_empty());
    assert!(bad(&periods(40, |_| 40, |at| if at == 7 { 990 } else { 60 })).is_empty());
    // A host function in a stream may run while the GPU is idle, so a wait for it does not prove that GPU work is
    // missing.
    let mut host = periods(40, |_| 40, |_| 950);
    host.slice("cuda_runtime", "cudaLaunchHostFunc", 1, ORIGIN + 960, ORIGIN + 965);
    assert!(bad(&host).is_empty());
}

#[test]
fn launches_for_which_the_thread_waited_were_not_in_a_queue_at_the_end() {
    // The last ten launches have no activity, while a kernel on another stream still runs.
    let mut trace = periods(100, |_| 700, |_| 720);
    trace.0.retain(|event| event["cat"] != "kernel" || event["args"]["correlation"].as_u64().unwrap() <= 90);
    trace.launch(200, "long", 2, ORIGIN + 89 * PERIOD, ORIGIN + 89 * PERIOD + 5, ORIGIN + 100 * PERIOD);
    trace.0.last_mut().unwrap()["args"]["stream"] = json!(20);
    let tables = tables(&trace, "check");
    let rows = tables["findings"].as_array().unwrap();
    let found = |id| rows.iter().find(|row| row["id"] == id).unwrap();
    assert_eq!(found("launch_coverage")["count"], 10);
    let why = "they failed, or the records of their GPU work are missing or unusable";
    assert_eq!(found("launch_pending_at_end")["why"], why);
}

#[test]
fn fewer_late_waits_suffice_if_launches_of_a_graph_have_different_numbers_of_activities() {
    // In each period of 1000 us, a graph launch runs two kernels, and the wait returns 300 us after the second kernel.
    let graphs = |of_first: u64| {
        let mut trace = Trace::default();
        for at in 0..20 {
            let start = ORIGIN + PERIOD * at;
            trace.slice("cuda_runtime", "cudaGraphLaunch", 1, start, start + 5);
            trace.0.last_mut().unwrap()["args"] = json!({ "correlation": at + 1 });
            for kernel in 0..if at == 0 { of_first } else { 2 } {
                let from = start + 10 + 50 * kernel;
                trace.work("kernel", at as u32 + 1, &format!("k{kernel}"), 7, from, from + 50);
            }
            trace.slice("cuda_runtime", "cudaDeviceSynchronize", 1, start + 6, start + 410);
        }
        trace
    };
    assert!(bad(&graphs(2)).is_empty());
    let found = bad(&graphs(8));
    assert!(found.len() == 1 && found[0].0 == "launch_coverage", "{found:?}");
}

#[test]
fn kernels_on_another_clock_are_named_and_belong_to_no_window() {
    const DAY: i64 = 86_400_000_000;
    for shift in [DAY, -DAY] {
        let mut trace = periods(100, |_| 800, |_| 820);
        let kernels = trace.0.iter_mut().filter(|event| event["cat"] == "kernel").take(3);
        kernels.for_each(|event| event["ts"] = json!(event["ts"].as_i64().unwrap() + shift));
        let found = bad(&trace);
        assert_eq!(found.len(), 1, "{found:?}");
        let why = "the times of 3 activities are on another clock, over a minute from the launches; such activities are \
                   counted, but have no GPU time";
        assert_eq!(found[0], ("times_missing".to_owned(), why.to_owned()));
        // The GPU runs 97 kernels of 800 us in the time from 3,010 us to 99,810 us.
        let (answers, _) = summary(&trace);
        assert!(answers.contains(" 80.2 % of 96.800 ms"), "{answers}");
    }
}

#[test]
fn a_kernel_that_waited_for_its_stream_for_minutes_is_on_the_same_clock() {
    let mut trace = periods(10, |_| 800, |_| 820);
    let start = ORIGIN + 10 * PERIOD;
    trace.launch(98, "long", 1, start, start + 10, start + 90_000_000);
    trace.launch(99, "after", 1, start + 20, start + 90_000_010, start + 90_000_500);
    assert!(bad(&trace).is_empty());
}

#[test]
fn idle_time_that_few_launches_without_an_activity_may_explain_is_unknown() {
    // There are 400 rows of five consecutive launches. Each kernel takes 20 us. In every 20th row, the third launch has
    // no activity, and the next kernel begins 3,000 us late.
    let rows = |late: u64| {
        let mut trace = Trace::default();
        let (mut host, mut gpu, mut id) = (ORIGIN, ORIGIN, 0);
        for row in 0..400 {
            gpu = gpu.max(host) + 10;
            for of_row in 0..5 {
                id += 1;
                if row % 20 == 0 && of_row == 2 {
                    trace.slice("cuda_runtime", "cudaLaunchKernel", 1, host, host + 2);
                    trace.0.last_mut().unwrap()["args"] = json!({ "correlation": id });
                    gpu += late;
                } else {
                    trace.launch(id, "small", 1, host, gpu, gpu + 20);
                    gpu += 20;
                }
                host += 4;
            }
            host = gpu + 5;
        }
        trace
    };
    let found = bad(&rows(3000));
    assert!(found.len() == 1 && found[0].0 == "launch_coverage", "{found:?}");
    let (answers, has_causes) = summary(&rows(3000));
    assert!(answers.contains("20 launches without an activity may have run in ") && !has_causes, "{answers}");
    assert!(bad(&rows(20)).is_empty(), "one kernel of 20 us is missing in each gap");
}

#[test]
fn idle_time_is_unknown_if_many_activities_have_no_times() {
    let untimed = |every: usize| {
        let mut trace = periods(60, |_| 700, |_| 720);
        let kernels = trace.0.iter_mut().filter(|event| event["cat"] == "kernel");
        for event in kernels.step_by(every) {
            (event["ts"], event["dur"]) = (json!(0), json!(0));
        }
        trace
    };
    let (answers, has_causes) = summary(&untimed(3));
    assert!(
        answers.contains("idle time is unknown: 20 of 60 activities have no times") && !has_causes,
        "{answers}"
    );
    // 3 of 60 launches are 5 %.
    assert!(summary(&untimed(20)).1);
}
