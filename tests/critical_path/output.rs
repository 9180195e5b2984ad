//! Runs the command on small traces, and reads its tables.

use std::process::{Command, Output};

use serde_json::Value;

#[path = "../support/small_trace.rs"]
mod small_trace;
pub(super) use small_trace::Trace;

pub(super) fn gpuflame(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpuflame"));
    command.arg("-q").args(args).stdin(std::process::Stdio::null()).output().unwrap()
}

/// Runs the command, which must succeed, and reads its JSON.
pub(super) fn read_json(args: &[&str]) -> Value {
    let output = gpuflame(&[args, &["--format", "json"]].concat());
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Tables of `critical-path --list` for a trace, which gets this name.
pub(super) fn tables(trace: Trace, name: &str, args: &[&str]) -> Value {
    let file = trace.write(name);
    read_json(&[&["critical-path", file.to_str().unwrap(), "--list"], args].concat())
}

/// Parts as (start, duration, class, saving, name), in us.
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

/// Parts as (start, duration, class, name), in us.
pub(super) fn spans(tables: &Value) -> Vec<(i64, u64, &str, &str)> {
    parts(tables)
        .into_iter()
        .map(|(start, duration, class, _, name)| (start, duration, class, name))
        .collect()
}

/// Smallest slack in ns, by name of the work.
pub(super) fn min_slacks<const N: usize>(tables: &Value, names: [&str; N]) -> [u64; N] {
    let rows = tables["slack"].as_array().unwrap();
    names.map(|name| rows.iter().find(|row| row["name"] == name).unwrap()["min_slack_ns"].as_u64().unwrap())
}
