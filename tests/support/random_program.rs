//! Runs the random program `random.c` on the simulated CUDA stack, and reads its schedule.

use std::collections::BTreeMap;

use gpusim_selftest::{Outcome, Run};
use serde_json::Value;

// Features that `random.c` can leave out. The bits are those that `random.c` defines.
pub(crate) const GRAPHS: u32 = 1;
pub(crate) const PROGRAMMATIC: u32 = 2;
pub(crate) const HOST_FUNCTIONS: u32 = 4;
pub(crate) const LEGACY_STREAM: u32 = 8;
pub(crate) const THREADS: u32 = 16;
#[allow(dead_code)] // not every test leaves out this feature
pub(crate) const HOST_NODES: u32 = 32;

/// Runs a random program with 60 steps per thread on two GPUs. `without` are the features to leave out, `variables` the
/// environment variables.
pub(crate) fn run(seed: u32, without: u32, variables: &[(&str, &str)]) -> Outcome {
    let args = [seed.to_string(), "60".to_owned(), without.to_string()];
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let run = Run::new("random", &args).stepped().env("GPUSIM_NDEV", "2");
    let outcome = variables.iter().fold(run, |run, (name, value)| run.env(name, value)).outcome();
    assert_eq!(outcome.code, Some(0), "{args:?} {variables:?}: {}", outcome.stderr);
    outcome
}

pub(crate) fn number(row: &Value, key: &str) -> u64 {
    row[key].as_u64().unwrap_or_else(|| panic!("no {key} in {row}"))
}

/// Time at which the last API call or GPU operation in a trace ends. In this trace, stream host functions have no
/// records.
#[allow(dead_code)] // used by tests whose traces contain host functions
pub(crate) fn end_of(schedule: &[Value]) -> u64 {
    let rows = schedule.iter().filter(|row| row["what"] == "op" || row["what"] == "call");
    let known = rows.filter(|row| row["kind"] != "pages" && (row["kind"] != "host" || row["graph"] != 0));
    known.map(|row| number(row, "end")).max().unwrap()
}

/// Time at which the last API call or GPU operation ends in a trace that also contains stream host functions.
#[allow(dead_code)] // used by tests whose traces do not contain host functions
pub(crate) fn end_with_host_functions(schedule: &[Value]) -> u64 {
    let rows = schedule.iter().filter(|row| row["what"] == "op" || row["what"] == "call");
    rows.filter(|row| row["kind"] != "pages").map(|row| number(row, "end")).max().unwrap()
}

/// Number of times that each feature or check occurred, keyed by name.
#[derive(Debug, Default)]
pub(crate) struct Counts(BTreeMap<String, u32>);

impl Counts {
    pub(crate) fn add(&mut self, what: impl Into<String>) {
        *self.0.entry(what.into()).or_default() += 1;
    }

    pub(crate) fn of(&self, what: &str) -> u32 {
        self.0.get(what).copied().unwrap_or(0)
    }
}

/// Features of random programs that [`count_features`] counts.
pub(crate) const FEATURES: [&str; 8] = [
    "graphs",
    "events",
    "default stream",
    "programmatic launches",
    "two GPUs",
    "waits of the host",
    "several threads",
    "host functions",
];

/// Counts the features that a program's schedule uses.
pub(crate) fn count_features(schedule: &[Value], counts: &mut Counts) {
    let ops = || schedule.iter().filter(|row| row["what"] == "op");
    let mut calls = schedule.iter().filter(|row| row["what"] == "call");
    let waits =
        |why: &str| ops().any(|op| op["waits"].as_array().unwrap().iter().any(|wait| wait["why"] == why));
    let is_used = [
        ops().any(|op| op["graph"] != 0),
        waits("event"),
        waits("default_stream"),
        waits("programmatic"),
        ops().any(|op| op["device"] == 1),
        calls.clone().any(|call| call["name"].as_str().unwrap().contains("Synchronize")),
        calls.any(|call| call["thread"] != 1_000),
        ops().any(|op| op["kind"] == "host"),
    ];
    let used = FEATURES.into_iter().zip(is_used).filter(|(_, is_used)| *is_used);
    used.for_each(|(feature, _)| counts.add(format!("with {feature}")));
}

/// Asserts that at least `min_programs` programs use each feature.
pub(crate) fn assert_features(counts: &Counts, min_programs: u32) {
    for feature in FEATURES {
        assert!(counts.of(&format!("with {feature}")) >= min_programs, "{feature}: {counts:?}");
    }
}
