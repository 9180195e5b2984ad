//! Compares the findings about ten real traces with a list of expected findings. The list was written by hand, from
//! independent sums, before the code that computes findings. A `must` entry in the list is a finding that gpuflame must
//! report. A `must_not` entry in the list is a finding that gpuflame must not report.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::real_traces::traces;
use crate::support::command::gpuflame;
use crate::support::{root, scratch};

/// Entries of the list that gpuflame does not fulfil, each with the reason why.
const EXCEPTIONS: [(&str, &str, &str); 2] = [
    (
        "kineto-2021/worker0.1623143566756.pt.trace.json.gz",
        "data_loader_late",
        "176 of 213 ms: the list counts 46 ms of the first step, but the time of a GPU begins with its first kernel",
    ),
    (
        "dlrm-8-ranks/dlrm_kineto.tar.gz",
        "straggler",
        "withheld: the trace has one step, in which the rank may be late by chance; ten per rank are needed for a conclusion",
    ),
];

/// An entry whose cost is divided between two findings, because gaps before tiny kernels are also gaps before launches.
const DIVIDED: (&str, &str, &str) = ("b200/eager_trace.json.gz", "launch_bound", "tiny_kernels");

/// Returns the ids of gpuflame's findings that count as a match for an entry of the list.
fn ids(entry: &str) -> Vec<&str> {
    match entry {
        "launches_without_activity" => vec!["launch_coverage"],
        "impossible_times" => vec!["impossible_duration", "times_backwards"],
        "clocks_disagree" => vec!["starts_before_launch", "clocks_of_ranks"],
        entry => vec![entry],
    }
}

/// Returns how the findings violate an entry of the list: a finding is missing, has a cost that differs from the
/// entry's, or is reported although it must not be.
fn mistake(path: &str, entry: &str, expected: &Value, found: &[Value]) -> Option<String> {
    let is_it = |row: &&Value| ids(entry).contains(&row["id"].as_str().unwrap());
    let row = found.iter().find(is_it);
    if expected["say"] == "must_not" {
        return row.map(|row| format!("must not be reported: {row}"));
    }
    let Some(row) = row else { return Some("is not reported".to_owned()) };
    let (Some(cost), Some([least, most])) = (
        row["cost_ns"].as_u64(),
        expected["cost_ns"].as_array().map(|range| [0, 1].map(|at| range[at].as_u64().unwrap())),
    ) else {
        return None;
    };
    let divided =
        found.iter().filter(|row| (path, entry) == (DIVIDED.0, DIVIDED.1) && row["id"] == DIVIDED.2);
    let cost = cost + divided.filter_map(|row| row["cost_ns"].as_u64()).sum::<u64>();
    (!(least..=most).contains(&cost)).then(|| format!("{cost} is not in {least}..={most}"))
}

/// Returns the files that belong to a trace, and unpacks an archive first.
fn files(trace: &Path) -> Vec<String> {
    if !trace.to_str().unwrap().ends_with(".tar.gz") {
        return vec![trace.to_str().unwrap().to_owned()];
    }
    let folder = scratch("lists");
    assert!(Command::new("tar").arg("-xf").arg(trace).arg("-C").arg(&folder).status().unwrap().success());
    let inside = fs::read_dir(&folder).unwrap().next().unwrap().unwrap().path();
    vec![inside.to_str().unwrap().to_owned()]
}

#[test]
fn findings_about_real_traces_are_those_of_the_list() {
    let Some(traces) = traces() else { return };
    let list = fs::read_to_string(root().join("tests/golden/findings/lists.json")).unwrap();
    let list: Value = serde_json::from_str(&list).unwrap();
    let mut wrong = Vec::new();
    for trace in list["traces"].as_array().unwrap() {
        let path = trace["path"].as_str().unwrap();
        let mut args = vec!["summary".to_owned()];
        args.extend(files(&traces.join(path)));
        args.extend(["--format".to_owned(), "json".to_owned()]);
        let summary: Value =
            serde_json::from_str(&gpuflame(&scratch("lists"), args.iter().map(String::as_str)).ok().stdout)
                .unwrap();
        let found = summary["findings"].as_array().unwrap();
        for (entry, expected) in trace["findings"].as_object().unwrap() {
            let mistake = mistake(path, entry, expected, found);
            let is_exception = EXCEPTIONS.iter().any(|(file, id, _)| (*file, *id) == (path, entry));
            assert!(mistake.is_some() || !is_exception, "{path}: {entry} now holds, so remove the exception");
            wrong.extend(
                mistake.filter(|_| !is_exception).map(|mistake| format!("{path}: {entry} {mistake}")),
            );
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
