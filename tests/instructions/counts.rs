//! Tests that the instruction counts that `gpuflame instructions` prints equal the counts that `gpuflame info` prints.
//! The tests compare them for recordings from hardware and for real traces.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::{dependencies, run, skip};

/// Returns the sorted paths of the files in a folder, and in its subfolders, whose names have one of these endings.
fn files(folder: &Path, endings: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten() {
            let path = entry.unwrap().path();
            let name = path.to_string_lossy().into_owned();
            match path.is_dir() {
                true => folders.push(path),
                false => found.extend(endings.iter().any(|ending| name.ends_with(ending)).then_some(path)),
            }
        }
    }
    found.sort();
    found
}

/// Returns the counts that `gpuflame info` prints for a file, or `None` if the command rejects the file.
fn facts(file: &Path) -> Option<BTreeMap<String, u64>> {
    let mut info = Command::new(env!("CARGO_BIN_EXE_gpuflame"));
    let output = info.args(["-q", "info", "--format", "json"]).arg(file).output().unwrap();
    let json: Value = serde_json::from_slice(&output.stdout).ok()?;
    let rows = json["facts"].as_array()?.iter();
    Some(rows.filter_map(|row| Some((row["what"].as_str()?.to_owned(), row["value"].as_u64()?))).collect())
}

/// Compares the counts of both commands for a file. Returns whether the file has instructions.
fn check(file: &Path) -> bool {
    let name = file.display();
    let output = run(&[file.to_str().unwrap(), "--format", "jsonl"]);
    let error = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        assert_eq!((output.status.code(), error.lines().count()), (Some(1), 1), "{name}: {error}");
        return false;
    }
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<Value> = text.lines().skip(1).map(|line| serde_json::from_str(line).unwrap()).collect();
    let count = |is_it: &dyn Fn(&Value) -> bool| lines.iter().filter(|line| is_it(line)).count() as u64;
    let kind = |kind: &'static str| move |line: &Value| line["kind"] == kind;
    let waits_for = |what: &'static str| count(&|line| line["waits_for"] == what);
    let is_work = |line: &Value| ["kernel", "copy", "fill"].iter().any(|kind| line["kind"] == *kind);
    let is_whole_graph = |line: &Value| line["kind"] == "graph" && line["nodes"].is_null();
    let has_run = |line: &Value| !line["start_ns"].is_null();
    let counted = [
        ("activities", count(&|line| is_work(line) || is_whole_graph(line) && has_run(line))),
        (
            "launches launch pending",
            count(&|line| line["kind"] == "launch" || is_whole_graph(line) && !has_run(line)),
        ),
        ("event records", count(&kind("record"))),
        ("wait records stream wait", count(&kind("wait"))),
        ("wait records stream", waits_for("stream")),
        ("wait records event", waits_for("event")),
        ("wait records context", waits_for("context")),
    ];
    let facts = facts(file).expect("`info` reads what this verb reads");
    for (what, count) in counted {
        assert_eq!(count, facts.get(what).copied().unwrap_or(0), "{name}: {what}");
    }
    for (at, line) in lines.iter().enumerate() {
        assert_eq!(line["number"], at as u64, "{name}");
        assert!(dependencies(line).iter().all(|(number, _)| *number < at as u64), "{name}: {line}");
    }
    true
}

#[test]
fn recordings_of_hardware_have_the_instructions_that_info_counts() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/hw");
    let files = files(&folder, &[".gfr.gz"]);
    if files.is_empty() {
        return skip::skip("there is no recording from hardware in tests/golden/hw");
    }
    // Recordings that contain only sums have no instructions.
    let read = files.iter().filter(|file| check(file)).count();
    assert!(read >= 10, "{read} of {} recordings", files.len());
}

#[test]
fn real_traces_have_the_instructions_that_info_counts() {
    let Some(folder) = std::env::var_os("GPUFLAME_TRACES") else {
        return skip::skip("there is no folder of real traces (GPUFLAME_TRACES names one)");
    };
    let files = files(Path::new(&folder), &[".json.gz", ".sqlite", "trace.json"]);
    let read = files.iter().filter(|file| check(file)).count();
    assert!(read > 15, "{read} of {} traces", files.len());
}
