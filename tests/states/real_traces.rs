//! Tests the states of real traces. The durations of the states of each stream must add up to the window, and each GPU
//! must be busy for as long as `gpuflame info` prints.

use std::collections::BTreeMap;

use serde_json::Value;

#[path = "../support/real_traces.rs"]
mod files;

use super::{Intervals, Key, add, key, number};

const STATES: [&str; 6] =
    ["running_ns", "waiting_ns", "pending_ns", "idle_ns", "finished_ns", "not_recorded_ns"];

fn rows<'a>(tables: &'a Value, table: &str) -> &'a [Value] {
    tables[table].as_array().unwrap_or_else(|| panic!("no table {table}"))
}

/// Returns the intervals of each stream. Asserts that the intervals of a stream do not overlap and have no gaps.
fn intervals(name: &str, tables: &Value) -> BTreeMap<Key, Intervals> {
    let mut streams: BTreeMap<Key, Intervals> = BTreeMap::new();
    for row in rows(tables, "intervals") {
        let (start, length) = (number(row, "start_ns"), number(row, "duration_ns"));
        let stream = streams.entry(key(row)).or_default();
        assert_eq!(stream.last().map_or(0, |last| last.1), start, "{name}: {row}");
        let state = row["state"].as_str().unwrap();
        stream.push((start, start + length, state.to_owned()));
    }
    streams
}

/// Returns, for each GPU, the total time in which at least one stream ran work.
fn busy(streams: &BTreeMap<Key, Intervals>) -> BTreeMap<u64, u64> {
    let mut running: BTreeMap<u64, Vec<(u64, u64)>> = BTreeMap::new();
    for (key, intervals) in streams {
        let times = intervals.iter().filter(|interval| interval.2 == "running");
        running.entry(key.0).or_default().extend(times.map(|(start, end, _)| (*start, *end)));
    }
    let length = |mut times: Vec<(u64, u64)>| {
        times.sort_unstable();
        let mut union = Intervals::new();
        for (start, end) in times {
            let since = union.last().map_or(0, |last| last.1);
            add(&mut union, (0, u64::MAX), (start.max(since), end.max(since)), "running");
        }
        union.iter().map(|(start, end, _)| end - start).sum()
    };
    running.into_iter().map(|(device, times)| (device, length(times))).collect()
}

/// Checks the states of a trace. Returns false if the file has no GPU work.
fn check(name: &str) -> bool {
    let program = env!("CARGO_BIN_EXE_gpuflame");
    let Some(states) = files::tables(program, &["states", name, "--intervals", "-n", "0"]) else {
        return false;
    };
    let info = files::tables(program, &["info", name]).unwrap();
    let window = number(&rows(&states, "devices")[0], "window_ns");
    for row in rows(&states, "states") {
        let sum: u64 = STATES.iter().map(|state| number(row, state)).sum();
        assert_eq!(sum, window, "{name}: {row}");
    }
    let streams = intervals(name, &states);
    assert_eq!(streams.len(), rows(&states, "states").len(), "{name}");
    for (stream, intervals) in &streams {
        assert_eq!(intervals.last().unwrap().1, window, "{name}: {stream:?}");
    }
    let busy = busy(&streams);
    let of_info = rows(&info, "devices").iter().filter(|row| !row["busy_ns"].is_null());
    let of_info: BTreeMap<u64, u64> =
        of_info.map(|row| (number(row, "device"), number(row, "busy_ns"))).collect();
    assert_eq!(busy, of_info, "{name}: the union of running times, and the busy time of info");
    let of_states =
        rows(&states, "devices").iter().map(|row| (number(row, "device"), number(row, "busy_ns")));
    assert_eq!(busy, of_states.collect(), "{name}");
    true
}

#[test]
fn states_of_real_traces_add_up_to_the_window_and_busy_times_are_those_of_info() {
    let Some(files) = files::real_traces("states-of-real-traces") else { return };
    let checked = files.iter().filter(|file| check(file.to_str().unwrap())).count();
    assert!(checked > 25, "{checked} of {} traces were checked", files.len());
}
