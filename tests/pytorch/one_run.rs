//! Tests Kineto (PyTorch's profiler) and gpuflame in the same run.
//!
//! If there are two clients, CUPTI gives its activity records to only one of them, unless both use the functions that
//! take a subscriber (`_v2`, shared since CUPTI 13.3). CUPTI refuses a client that calls both `_v2` functions and older
//! functions. PyTorch's profiler calls only the older functions. Therefore Kineto takes the activity records, and
//! gpuflame keeps the callbacks. As a result, both profilers see the CUDA calls of the run. These tests compare
//! Kineto's GPU work with the truth file of the run. gpuflame's GPU work is compared in separate runs (`witness.rs`).

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::installed::{folder, run};
use crate::support::{Done, Way};
use crate::witness::{calls, events, ran};

/// Fails if a newer wheel shares CUPTI's records with gpuflame. If the records are shared, a test can compare
/// gpuflame's records with Kineto's records one by one.
#[test]
fn the_wheels_profiler_does_not_share_its_cupti_records() {
    let Some(folder) = folder() else { return };
    let called = fs::read_to_string(folder.join("stand-ins/cuda-functions")).unwrap();
    let of_cupti: Vec<&str> = called
        .lines()
        .filter_map(|line| line.split(' ').next())
        .filter(|name| name.starts_with("cupti"))
        .collect();
    assert!(of_cupti.contains(&"cuptiActivityRegisterCallbacks"), "{of_cupti:?}");
    assert!(!of_cupti.iter().any(|name| name.ends_with("_v2")), "{of_cupti:?}");
}

/// Converts microseconds, which the trace writes with three decimals, to nanoseconds. A double is exact enough for the
/// times in this trace.
fn nanos(micros: &Value) -> u64 {
    (micros.as_f64().unwrap() * 1e3).round() as u64
}

/// Thread and name of each CUDA call, keyed by the call's correlation id. Programs that nvcc 13 compiled call
/// `__cudaLaunchKernel`, for which gpuflame shows the usual name.
type Calls<'a> = BTreeMap<u64, (u64, &'a str)>;

fn by_id(events: &[Value]) -> Calls<'_> {
    let call =
        |call: &'_ Value| (call["tid"].as_u64().unwrap(), call["args"]["correlation"].as_u64().unwrap());
    let one = |event| {
        let (thread, id) = call(event);
        (id, (thread, event["name"].as_str().unwrap().trim_start_matches("__")))
    };
    calls(events).map(one).collect()
}

// Kineto makes CUPTI use the processor's clock. Therefore CUPTI converts nanoseconds to ticks, and Kineto converts the
// ticks back to nanoseconds. Durations are therefore wrong by two roundings, and by the errors of two measured rates.
// At first, a measured rate is wrong by up to one ten-thousandth. All start times are wrong by the same amount: the
// time that passes between the reading of one clock and the reading of the other clock. The time between the two
// readings is about 0.1 us; it is more if the thread has to wait for a processor between the readings.

/// Reciprocal of the maximum relative error of a rate; this error is one ten-thousandth.
const RATE: u64 = 10_000;
/// Maximum error of the start times, in ns. The largest observed error is 47 ns.
const MOST_LATE: u64 = 1_000_000;
/// Maximum difference, in ns, between the errors of any two start times. The largest observed difference is 14 ns.
const MOST_APART: u64 = 100;

/// Asserts that the GPU work in Kineto's trace is the work that ran: its ids, starts and durations are the same. `base`
/// is the time from which Kineto counts.
fn assert_kineto_is_true(done: &Done, kineto: &[Value], base: u64) {
    let is_work =
        |event: &&Value| matches!(event["cat"].as_str(), Some("kernel" | "gpu_memcpy" | "gpu_memset"));
    let one = |event: &Value| {
        let arg = |name: &str| event["args"][name].as_u64().unwrap();
        let (start, dur) = (nanos(&event["ts"]), nanos(&event["dur"]));
        [arg("correlation"), arg("device"), arg("stream"), start, start + dur]
    };
    let mut kineto: Vec<_> = kineto.iter().filter(is_work).map(one).collect();
    kineto.sort_unstable();
    let truth = ran(done);
    assert_eq!(kineto.len(), truth.len());
    // Two times for each kernel, copy or fill: how much later it starts than in the truth file, and when it starts,
    // counted from the first start.
    let first = truth.iter().map(|work| work[3]).min().unwrap();
    let later = |(theirs, truth): (&[u64; 5], &[u64; 5])| {
        ((base + theirs[3]).cast_signed() - truth[3].cast_signed(), truth[3] - first)
    };
    let mut later: Vec<(i64, u64)> = kineto.iter().zip(&truth).map(later).collect();
    later.sort_unstable();
    let middle = later[later.len() / 2];
    assert!(middle.0.unsigned_abs() <= MOST_LATE, "{later:?}");
    for one in &later {
        let apart = one.0.abs_diff(middle.0);
        assert!(apart <= MOST_APART + one.1.abs_diff(middle.1) / RATE, "{one:?} {middle:?}");
    }
    for (theirs, truth) in kineto.iter().zip(&truth) {
        assert_eq!(theirs[..3], truth[..3], "{theirs:?} {truth:?}");
        let [theirs, truth] = [theirs, truth].map(|work| work[4] - work[3]);
        assert!(theirs.abs_diff(truth) <= 2 + truth / RATE, "{theirs} {truth}");
    }
}

/// Kineto takes the records without subscribing to CUPTI. gpuflame reports that, and does not invent GPU work. Kineto's
/// trace is unaffected: each call in it has the same id, thread and name as in gpuflame's output.
#[test]
#[ignore = "takes a quarter of a minute; .ci/long runs it"]
fn a_warning_is_printed_if_kineto_takes_the_records() {
    let Some(folder) = folder() else { return };
    let both = run(folder, "witness.py", Way::Injected).args(["trace.json", "decode.py"]);
    let both = both.env("GPUSIM_TRUTH", "summary:truth.json,works.jsonl").env("GPUFLAME_FORMATS", "chrome");
    let done = both.env("GPUSIM_CUPTI_VERSION", "13.2").env("GPUSIM_CLOCK", "real").ok();
    let [kineto, gpuflame] =
        ["trace.json", "out.json"].map(|name| events(&done.folder.join(Path::new(name))));
    let trace: Value = serde_json::from_str(&done.file("trace.json")).unwrap();
    assert_kineto_is_true(&done, &kineto, trace["baseTimeNanoseconds"].as_u64().unwrap());
    let (kineto, gpuflame) = (by_id(&kineto), by_id(&gpuflame));
    let (launches, parts) = done.sum("launches");
    assert_eq!((done.sum("activities").0, parts["launch_pending"]), (0, launches));
    assert_eq!(gpuflame.len() as u64, launches);
    for (id, call) in &gpuflame {
        assert_eq!(Some(call), kineto.get(id), "{id}");
    }
    let ids = ran(&done).into_iter().map(|work| work[0]);
    assert!(
        ids.clone().all(|id| gpuflame.contains_key(&id)),
        "each piece of work belongs to a launch that gpuflame has"
    );
    let said = format!(
        "another CUPTI client took over the activity records: the GPU work of {launches} launches is \
         missing; record torch.profiler and gpuflame in separate runs"
    );
    assert!(done.stderr.contains(&said), "{}", done.stderr);
}

/// Returns the total time of the kernels whose names contain `kernel`: according to the truth file, and according to
/// gpuflame.
fn nanos_of(done: &Done, kernel: &str) -> (u64, u64) {
    let rows = done.file("works.jsonl");
    let rows = rows.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let is_it = |row: &Value| row["name"].as_str().is_some_and(|name| name.contains(kernel));
    let nanos = |row: Value| row["end"].as_u64().unwrap() - row["start"].as_u64().unwrap();
    let folded = done.folded();
    let found = folded.iter().filter(|(frames, _)| frames.last().is_some_and(|frame| frame.contains(kernel)));
    (rows.filter(is_it).map(nanos).sum(), found.map(|(_, nanos)| nanos).sum())
}

/// Kineto profiles twice during the run, with its own clock, and gpuflame has all GPU work that ran before Kineto
/// started and after Kineto ended, exact to the nanosecond.
#[test]
fn kineto_owns_the_records_while_it_profiles_and_gpuflame_before_and_after() {
    let Some(folder) = folder() else { return };
    let run = run(folder, "between.py", Way::Injected).env("GPUSIM_TRUTH", "summary:truth.json,works.jsonl");
    let done = run.env("GPUSIM_CLOCK", "real").ok();
    assert_eq!(done.stdout, "profiled 30\nprofiled 30\n", "{}", done.stderr);
    for kernel in ["sin_kernel", "cos_kernel"] {
        let (truth, found) = nanos_of(&done, kernel);
        assert!(truth > 0 && truth == found, "{kernel}: {truth} {found}\n{}", done.stderr);
    }
    let (truth, found) = nanos_of(&done, "exp_kernel");
    assert!(truth > 0 && found == 0, "{truth} {found}");
    assert_eq!(done.ledger("activity records arrive again").len(), 2, "{}", done.stderr);
}
