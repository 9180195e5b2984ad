//! The critical path of real traces: its parts add up, and what the records do not explain is named.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

#[path = "../support/skip.rs"]
mod skip;

/// Files in a folder and its subfolders.
fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in folder.read_dir().unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            files(&entry, found);
        } else {
            found.push(entry);
        }
    }
}

/// Traces that lack records of launches, of the work before, or of waits between streams, and the missing records that the
/// command has to name if more than 1 % of the path is unexplained.
const INCOMPLETE: [(&str, &str); 6] = [
    ("graph_execution", "earlier_work"),
    ("control", "no_wait_records"),
    ("kineto-2023/test", "no_wait_records"),
    ("mtia_inference", "before_records"),
    ("resnet_act_checkpoint", "no_launch_record"),
    ("908_results", "no_launch_record"),
];

#[test]
fn parts_of_the_path_of_real_traces_add_up_and_have_names() {
    let Some(folder) = std::env::var_os("GPUFLAME_TRACES").map(PathBuf::from) else {
        skip::skip("there is no folder of real traces (GPUFLAME_TRACES names one)");
        return;
    };
    let mut all = Vec::new();
    files(&folder, &mut all);
    all.sort();
    let mut checked = 0;
    for file in all {
        let name = file.to_str().unwrap();
        let is_trace = [".json", ".json.gz", ".sqlite"].iter().any(|ending| name.ends_with(ending));
        if !is_trace || name.contains("/stragglers/") {
            continue;
        }
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpuflame"));
        let output =
            command.args(["-q", "critical-path", name, "--list", "-n", "0", "--format", "json"]).output();
        let output = output.unwrap();
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr);
            let reasons = ["contains no GPU work", "is a PyTorch execution trace", "not a trace", "no trace"];
            assert!(reasons.iter().any(|reason| text.contains(reason)), "{name}: {text}");
            continue;
        }
        let tables: Value = serde_json::from_slice(&output.stdout).unwrap();
        let number = |row: &Value, key: &str| row[key].as_u64().unwrap();
        let rows = |table: &str| tables[table].as_array().unwrap().clone();
        let mut at = 0;
        for part in rows("path") {
            assert_eq!(number(&part, "start_ns"), at, "{name}: {part}");
            at += number(&part, "duration_ns");
        }
        let total: u64 = rows("path_classes").iter().map(|row| number(row, "time_ns")).sum();
        assert_eq!(total, at, "{name}");
        let known = INCOMPLETE.iter().find(|(part, _)| name.contains(part)).map(|(_, cause)| *cause);
        let mut unexplained: Vec<(u64, String)> = rows("path_classes")
            .iter()
            .filter(|row| row["class"] == "unexplained")
            .map(|row| (number(row, "time_ns"), row["cause"].as_str().unwrap().to_owned()))
            .collect();
        unexplained.sort();
        let sum: u64 = unexplained.iter().map(|(nanos, _)| nanos).sum();
        if sum > total / 100 {
            let (_, largest) = unexplained.last().unwrap();
            assert_eq!(Some(largest.as_str()), known, "{name}: {unexplained:?}");
        }
        checked += 1;
    }
    assert!(checked > 20, "{checked} traces were checked");
}
