//! Times of the host that contradict the rows of a GPU: waits that returned before or long after the recorded work ended, and
//! launches a day away from their work. Shares of such times are withheld.

use serde_json::{Value, json};

use crate::support::command::gpuflame;
use crate::support::scratch;
use crate::support::traces::Trace;

/// Time from one launch to the next, in us.
const PERIOD: u64 = 1000;
/// Start of the first period, in us.
const ORIGIN: u64 = 1_000_000_000_000;

/// A trace of `count` periods, each with a launch and a wait for the GPU. The kernel of period `at` runs from 10 us after the
/// launch for `nanos_of(at)` us, and the wait returns `wait_of(at)` us after the launch.
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

/// Ids of the `BAD` findings of `check`, with their reasons.
fn bad(trace: &Trace) -> Vec<(String, String)> {
    let tables = tables(trace, "check");
    let rows = tables["findings"].as_array().unwrap().iter().filter(|row| row["result"] == "BAD");
    let text = |row: &Value, key: &str| row[key].as_str().unwrap().to_owned();
    rows.map(|row| (text(row, "id"), text(row, "why"))).collect()
}

/// Sentences of `summary`, and whether it has causes of idle time.
fn summary(trace: &Trace) -> (String, bool) {
    let tables = tables(trace, "summary");
    (tables["answers"].to_string(), tables["idle_causes"].is_array())
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
        // 97 kernels of 800 us from 3,010 us to 99,810 us.
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
