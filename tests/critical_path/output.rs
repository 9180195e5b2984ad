//! Runs the `gpuflame` command on small traces, and reads the tables that it prints.

use std::process::{Command, Output};

use serde_json::Value;

#[path = "../support/small_trace.rs"]
mod small_trace;
pub(super) use small_trace::Trace;

pub(super) fn gpuflame(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpuflame"));
    command.arg("-q").args(args).stdin(std::process::Stdio::null()).output().unwrap()
}

/// Runs the `gpuflame` command, which must succeed, and reads its JSON output.
pub(super) fn read_json(args: &[&str]) -> Value {
    let output = gpuflame(&[args, &["--format", "json"]].concat());
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Writes a trace under `name`, and returns the tables of `critical-path --list` for it.
pub(super) fn tables(trace: Trace, name: &str, args: &[&str]) -> Value {
    let file = trace.write(name);
    read_json(&[&["critical-path", file.to_str().unwrap(), "--list"], args].concat())
}

/// Returns the parts of the path as (start, duration, class, saving, name). Times are in us.
pub(super) fn parts(tables: &Value) -> Vec<(i64, u64, &str, u64, &str)> {
    let rows = tables["path"].as_array().unwrap().iter();
    rows.map(|row| {
        let us = |key: &str| row[key].as_u64().unwrap() / 1_000;
        let text = |key: &str| row[key].as_str().unwrap();
        let start = row["start_ns"].as_i64().unwrap() / 1_000;
        (start, us("duration_ns"), text("class"), us("saving_ns"), text("name"))
    })
    .collect()
}

/// Returns the parts of the path as (start, duration, class, name), without savings. Times are in us.
pub(super) fn spans(tables: &Value) -> Vec<(i64, u64, &str, &str)> {
    parts(tables)
        .into_iter()
        .map(|(start, duration, class, _, name)| (start, duration, class, name))
        .collect()
}

/// Returns the smallest slack, in ns, of the GPU work with each of these names.
pub(super) fn min_slacks<const N: usize>(tables: &Value, names: [&str; N]) -> [u64; N] {
    let rows = tables["slack"].as_array().unwrap();
    names.map(|name| rows.iter().find(|row| row["name"] == name).unwrap()["min_slack_ns"].as_u64().unwrap())
}
