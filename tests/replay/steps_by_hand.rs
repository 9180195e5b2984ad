//! Tests the durations of steps before and after changes. The expected durations, in us, are computed by hand.

use serde_json::{Value, json};

use super::by_hand::{Trace, tables};

fn step(trace: Trace, number: u32, (from, to): (u32, u32)) -> Trace {
    trace.add(json!({
        "ph": "X", "cat": "user_annotation", "name": format!("ProfilerStep#{number}"), "pid": 1, "tid": 5, "ts": from,
        "dur": to - from,
    }))
}

/// Adds a launch, its kernel of 60 us, and a wait that returns 10 us after the kernel ends.
fn gemm(trace: Trace, id: u32, at: u32) -> Trace {
    let trace =
        trace.call("cudaLaunchKernel", id, 5, (at, at + 10)).kernel("gemm", id, 7, (at + 15, at + 75));
    let trace = trace.call("cudaStreamSynchronize", id + 1, 5, (at + 20, at + 85));
    trace.sync(id + 1, 7, (at + 21, at + 75))
}

/// Writes a trace of three steps, with 5 us between them. The second step begins with 300 us on the host. The last step
/// launches `tail`, which still runs when the step ends.
fn slow_loader(name: &str) -> String {
    let mut trace = Trace::default();
    for (number, span, launch) in [(1, (0, 115), 10), (2, (120, 525), 420), (3, (530, 650), 540)] {
        trace = gemm(step(trace, number, span), 2 * number, launch);
    }
    let trace = trace.call("cudaLaunchKernel", 9, 5, (630, 640)).kernel("tail", 9, 7, (645, 900));
    trace.write(name).to_str().unwrap().to_owned()
}

/// Returns the durations of the steps before and after the changes, in us.
fn steps(file: &str, options: &[&str]) -> (Vec<u64>, Vec<u64>) {
    let said = tables(&[&["what-if", file], options].concat());
    let us = |row: &Value, key: &str| {
        let nanos = row[key].as_u64().unwrap();
        assert_eq!(nanos % 1_000, 0, "{row}");
        nanos / 1_000
    };
    let rows = said["steps"].as_array().unwrap().iter();
    rows.map(|row| (us(row, "before_ns"), us(row, "after_ns"))).unzip()
}

#[test]
fn a_step_lasts_from_its_begin_to_its_end() {
    let file = slow_loader("steps-slow-loader");
    let recorded = vec![115, 405, 120];
    assert_eq!(steps(&file, &["--scale", ".=1"]), (recorded.clone(), recorded.clone()));
    // Each wait lasts 65 us, which `--no-sync` removes.
    assert_eq!(steps(&file, &["--no-sync"]), (recorded.clone(), vec![50, 340, 55]));
    // With this change, `gemm` takes 30 us less. No step waits for the kernel `tail`.
    assert_eq!(steps(&file, &["--gpu-speed", "2"]), (recorded, vec![85, 375, 90]));
}

#[test]
fn a_step_saves_a_tenth_of_its_own_host_time() {
    let file = slow_loader("steps-causal");
    // The host time on the critical path is 20 us after each wait, and 300 us before the launch of step 2. The launch
    // call of 10 us is on the critical path too. However, a shorter call saves nothing, because the kernel begins 15 us
    // after the call begins in any case.
    for (number, host) in [("1", 20_000), ("2", 320_000)] {
        let said = tables(&["causal", &file, "--step", number]);
        let row = |name: &str| {
            let mut rows = said["causal"].as_array().unwrap().iter();
            let row = rows.find(|row| row["name"] == name).unwrap_or_else(|| panic!("no {name}: {said}"));
            (row["on_path_ns"].as_u64().unwrap(), row["saved_ns"].as_u64().unwrap())
        };
        assert_eq!(row("cudaLaunchKernel"), (host + 10_000, host / 10), "step {number}");
        assert_eq!(row("gemm"), (60_000, 6_000), "step {number}");
    }
}

#[test]
fn a_step_that_ends_after_the_calls_of_another_thread_keeps_its_distance_from_them() {
    // Thread 6 works from 25 to 65 us, and thread 5 continues 35 us later.
    let mut trace = step(step(Trace::default(), 1, (0, 70)), 2, (75, 120));
    for (id, thread, at) in [(1, 5, 10), (2, 6, 25), (3, 6, 55), (4, 5, 100)] {
        trace = trace.call("cudaLaunchKernel", id, thread, (at, at + 10));
        trace = trace.kernel("small", id, 7, (at + 12, at + 13));
    }
    let file = trace.write("steps-hand-off");
    // The calls then take 2 us: they are at 10 to 12, 17 to 19, 39 to 41, and 76 to 78 us. Therefore the steps last
    // from 0 to 46 us, and from 51 to 88 us.
    let lengths = steps(file.to_str().unwrap(), &["--launch-ns", "2000"]);
    assert_eq!(lengths, (vec![70, 45], vec![46, 37]));
}
