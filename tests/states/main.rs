//! Tests `gpuflame states` on random simulated programs, whose states follow from the simulator's schedule.
//!
//! This file computes the expected states from the schedule alone. The schedule contains the time at which each CUDA
//! event happened. The command must derive that time from the event's record and the GPU work before the record.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;

use gpusim_selftest::Run;
use serde_json::Value;

mod bands;
mod real_traces;

/// A stream, given as its device, CUDA context and stream id.
type Key = (u64, u64, u64);
/// Intervals of a stream: start, end and state of each.
type Intervals = Vec<(u64, u64, String)>;

fn number(row: &Value, key: &str) -> u64 {
    row[key].as_u64().unwrap_or_else(|| panic!("no {key} in {row}"))
}

fn key(row: &Value) -> Key {
    (number(row, "device"), number(row, "context"), number(row, "stream"))
}

/// Adds the part of an interval that is in the window. If the previous interval has the same state, the two intervals
/// are merged.
fn add(to: &mut Intervals, window: (u64, u64), (start, end): (u64, u64), state: &str) {
    let (start, end) = (start.max(window.0), end.min(window.1));
    if start >= end {
        return;
    }
    match to.last_mut() {
        Some(last) if last.1 == start && last.2 == state => last.1 = end,
        _ => to.push((start, end, state.to_owned())),
    }
}

/// Returns the states of one stream. `ops` are sorted by start. `waits` maps the times of calls that made the stream
/// wait for a CUDA event to the times at which the event happened.
fn stream_states(ops: &[&Value], mut waits: BTreeMap<u64, u64>, window: (u64, u64)) -> Intervals {
    let (mut states, mut at, mut previous, mut happened) = (Intervals::new(), window.0, None, 0);
    for op in ops {
        let (call, begin, end) = (number(op, "enqueue"), number(op, "begin"), number(op, "end"));
        if previous != Some(call) {
            let later = waits.split_off(&(call + 1));
            happened = waits.into_values().max().unwrap_or(0);
            (waits, previous) = (later, Some(call));
        }
        if begin > at {
            let called = call.clamp(at, begin);
            let ready = happened.clamp(called, begin);
            add(&mut states, window, (at, called), "idle");
            add(&mut states, window, (called, ready), "waiting");
            add(&mut states, window, (ready, begin), "pending");
        }
        add(&mut states, window, (at.max(begin), end), "running");
        at = at.max(end);
    }
    add(&mut states, window, (at, window.1), "finished");
    states
}

/// Returns the states of all streams in a schedule, and the streams about whose waits a trace does not contain enough
/// information. A trace does not contain enough information about three kinds of waits. The first kind is a wait for
/// work without rows (host functions, and moves of unified memory). The second kind is a wait for a CUDA event that an
/// implicit wait delayed until after the work on the event's own stream. The third kind is a wait for a CUDA event
/// without a record, if no event in the trace has a record.
fn expected(schedule: &[Value], has_records: bool) -> (BTreeMap<Key, Intervals>, BTreeSet<Key>) {
    let rows = |what: &'static str| schedule.iter().filter(move |row| row["what"] == what);
    let in_trace = |row: &&Value| row["kind"] != "host" && row["kind"] != "pages";
    let shown: BTreeMap<u64, Key> =
        rows("op").filter(in_trace).map(|op| (number(op, "op"), key(op))).collect();
    let recorded: BTreeMap<u64, Key> = rows("wait")
        .filter(|wait| wait["kind"] == "record")
        .map(|wait| (number(wait, "corr"), key(wait)))
        .collect();
    let mut ops: Vec<&Value> = rows("op").filter(in_trace).collect();
    ops.sort_by_key(|op| (number(op, "begin"), number(op, "end"), number(op, "enqueue")));
    let Some(first) = ops.first().map(|op| number(op, "begin")) else { return Default::default() };
    let window = (first, ops.iter().map(|op| number(op, "end")).max().unwrap_or(first));
    let mut streams: BTreeMap<Key, Vec<&Value>> = BTreeMap::new();
    ops.into_iter().for_each(|op| streams.entry(key(op)).or_default().push(op));
    let (mut states, mut unclear) = (BTreeMap::new(), BTreeSet::new());
    for (stream, ops) in streams {
        let waits = || rows("wait").filter(|wait| wait["kind"] == "stream_wait" && key(wait) == stream);
        let mut times: BTreeMap<u64, u64> = BTreeMap::new();
        for wait in waits() {
            let until = times.entry(number(wait, "begin")).or_default();
            *until = number(wait, "until").max(*until);
        }
        let is_unclear = |wait: &Value| {
            let own = wait["record"].as_u64().map(|record| recorded[&record]);
            let op = number(wait, "op");
            (op != 0 && shown.get(&op).copied() != own) || (own.is_none() && !has_records)
        };
        if waits().any(is_unclear) {
            unclear.insert(stream);
        }
        states.insert(stream, stream_states(&ops, times, window));
    }
    (states, unclear)
}

/// Returns whether any wait in a trace refers to the record of its CUDA event.
fn names_records(trace: &str) -> bool {
    let trace: Value = serde_json::from_str(trace).unwrap();
    let records = |row: &Value| row["args"]["wait_on_cuda_event_record_corr_id"].as_i64();
    trace["traceEvents"].as_array().unwrap().iter().any(|row| records(row).is_some_and(|record| record > 0))
}

/// Returns the intervals with the state `waiting` replaced by `pending`.
fn without_waiting(intervals: &Intervals) -> Intervals {
    let mut merged = Intervals::new();
    for (start, end, state) in intervals {
        let state = if state == "waiting" { "pending" } else { state };
        add(&mut merged, (0, u64::MAX), (*start, *end), state);
    }
    merged
}

/// Returns the states that the command prints. The start of the window is added to their times.
fn printed(trace: &str, name: &str, first: u64) -> BTreeMap<Key, Intervals> {
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.json"));
    std::fs::write(&file, trace).unwrap();
    let run = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpuflame"));
        command.args(["-q", "states", "--intervals", "-n", "0", "--format", "json"]).arg(&file);
        command.output().unwrap()
    };
    let (one, other) = (run(), run());
    assert!(one.status.success(), "{name}: {}", String::from_utf8_lossy(&one.stderr));
    assert_eq!(one.stdout, other.stdout, "{name}: two runs print the same");
    std::fs::remove_file(file).unwrap();
    let json: Value = serde_json::from_slice(&one.stdout).unwrap();
    let mut streams: BTreeMap<Key, Intervals> = BTreeMap::new();
    for row in json["intervals"].as_array().unwrap() {
        let start = first + number(row, "start_ns");
        let state = row["state"].as_str().unwrap();
        let span = (start, start + number(row, "duration_ns"));
        add(streams.entry(key(row)).or_default(), (0, u64::MAX), span, state);
    }
    streams
}

fn check_programs(seeds: std::ops::Range<u32>) {
    let (mut states, mut clear) = (BTreeSet::new(), 0);
    for seed in seeds {
        let run = Run::new("random", &[&seed.to_string()]).stepped().env("GPUSIM_NDEV", "2");
        let outcome = run.outcome();
        assert_eq!(outcome.code, Some(0), "seed {seed}: {}", outcome.stderr);
        let (expected, unclear) = expected(&outcome.schedule, names_records(&outcome.kineto));
        let Some(first) = expected.values().flatten().map(|interval| interval.0).min() else { continue };
        let printed = printed(&outcome.kineto, &format!("seed-{seed}"), first);
        assert!(printed.keys().eq(expected.keys()), "seed {seed}: {printed:?}\n{expected:?}");
        for (stream, intervals) in &expected {
            if unclear.contains(stream) {
                let [printed, intervals] = [&printed[stream], intervals].map(without_waiting);
                assert_eq!(printed, intervals, "seed {seed}, stream {stream:?}");
                continue;
            }
            assert_eq!(&printed[stream], intervals, "seed {seed}, stream {stream:?}");
            clear += usize::from(intervals.iter().any(|interval| interval.2 == "waiting"));
            states.extend(intervals.iter().map(|interval| interval.2.clone()));
        }
    }
    let all = ["finished", "idle", "pending", "running", "waiting"];
    assert_eq!(states, all.map(str::to_owned).into(), "the programs meet every state");
    assert!(clear > 20, "{clear} streams waited for events of known time");
}

#[test]
fn states_of_random_programs_equal_those_of_the_schedule() {
    check_programs(0..200);
}

#[test]
#[ignore = "takes a minute"]
fn states_of_1000_random_programs_equal_those_of_the_schedule() {
    check_programs(200..1200);
}
