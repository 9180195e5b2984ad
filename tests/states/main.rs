//! `gpuflame states` on random simulated programs, whose states follow from the simulator's schedule.
//!
//! The expected states are computed here, from the schedule alone. They follow the rules of docs/states.md for a trace
//! that names events and not when they happened.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;

use gpusim_selftest::Run;
use serde_json::Value;

/// Device, context and stream.
type Key = (u64, u64, u64);
/// Start and end of each interval, and its state.
type Intervals = Vec<(u64, u64, String)>;

/// Longest time in ns from the return of a launch call until its work begins, if nothing else delays the work.
const DELIVERY: u64 = 10_000;

fn number(row: &Value, key: &str) -> u64 {
    row[key].as_u64().unwrap_or_else(|| panic!("no {key} in {row}"))
}

fn key(row: &Value) -> Key {
    (number(row, "device"), number(row, "context"), number(row, "stream"))
}

/// Adds the part of an interval that is in the window, and merges it with the one before it if the state is the same.
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

/// States of one stream. `ops` are by begin; `calls` are the ends of calls by correlation id.
fn stream_states(
    ops: &[&Value],
    mut waits: BTreeSet<u64>,
    calls: &BTreeMap<u64, u64>,
    window: (u64, u64),
) -> Intervals {
    let (mut states, mut at, mut previous, mut has_wait) = (Intervals::new(), window.0, None, false);
    for op in ops {
        let (call, begin, end) = (number(op, "enqueue"), number(op, "begin"), number(op, "end"));
        if previous != Some(call) {
            let later = waits.split_off(&(call + 1));
            has_wait = !waits.is_empty();
            (waits, previous) = (later, Some(call));
        }
        if begin > at {
            let called = call.clamp(at, begin);
            let delivered = (calls[&number(op, "corr")] + DELIVERY).clamp(called, begin);
            add(&mut states, window, (at, called), "idle");
            add(&mut states, window, (called, delivered), "pending");
            add(&mut states, window, (delivered, begin), if has_wait { "waiting" } else { "pending" });
        }
        add(&mut states, window, (at.max(begin), end), "running");
        at = at.max(end);
    }
    add(&mut states, window, (at, window.1), "finished");
    states
}

/// States of all streams of a schedule.
fn expected(schedule: &[Value]) -> BTreeMap<Key, Intervals> {
    let rows = |what: &'static str| schedule.iter().filter(move |row| row["what"] == what);
    // Host functions and moves of unified memory have no rows in a trace.
    let in_trace = |row: &&Value| row["kind"] != "host" && row["kind"] != "pages";
    let mut ops: Vec<&Value> = rows("op").filter(in_trace).collect();
    ops.sort_by_key(|op| (number(op, "begin"), number(op, "end"), number(op, "enqueue")));
    let Some(first) = ops.first().map(|op| number(op, "begin")) else { return BTreeMap::new() };
    let window = (first, ops.iter().map(|op| number(op, "end")).max().unwrap_or(first));
    let calls = rows("call").map(|call| (number(call, "corr"), number(call, "end"))).collect();
    let mut streams: BTreeMap<Key, Vec<&Value>> = BTreeMap::new();
    ops.into_iter().for_each(|op| streams.entry(key(op)).or_default().push(op));
    let of_stream = |(stream, ops): (Key, Vec<&Value>)| {
        let waits = rows("wait").filter(|wait| wait["kind"] == "stream_wait" && key(wait) == stream);
        let waits = waits.map(|wait| number(wait, "begin")).collect();
        (stream, stream_states(&ops, waits, &calls, window))
    };
    streams.into_iter().map(of_stream).collect()
}

/// States as the command prints them, with the start of the window added to their times.
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
    let mut states = BTreeSet::new();
    for seed in seeds {
        let run = Run::new("random", &[&seed.to_string()]).stepped().env("GPUSIM_NDEV", "2");
        let outcome = run.outcome();
        assert_eq!(outcome.code, Some(0), "seed {seed}: {}", outcome.stderr);
        let expected = expected(&outcome.schedule);
        let Some(first) = expected.values().flatten().map(|interval| interval.0).min() else { continue };
        let printed = printed(&outcome.kineto, &format!("seed-{seed}"), first);
        assert!(printed.keys().eq(expected.keys()), "seed {seed}: {printed:?}\n{expected:?}");
        for (stream, intervals) in &expected {
            assert_eq!(&printed[stream], intervals, "seed {seed}, stream {stream:?}");
            states.extend(intervals.iter().map(|interval| interval.2.clone()));
        }
    }
    let all = ["finished", "idle", "pending", "running", "waiting"];
    assert_eq!(states, all.map(str::to_owned).into(), "the programs meet every state");
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
