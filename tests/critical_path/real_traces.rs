//! Tests the critical path of real traces. The durations of the parts must add up to the length of the path, and the
//! output must name the time that the records do not explain.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::output::read_json;

#[path = "../support/real_traces.rs"]
pub(super) mod files;

/// Traces that lack records of launches, of earlier work, or of waits between streams, each with the name of the
/// missing records. If more than 1 % of the path is unexplained, the command must name the missing records. The second
/// value of each entry is the name that the command must print for these records.
const INCOMPLETE: [(&str, &str); 8] = [
    ("graph_execution", "earlier_work"),
    ("control", "no_wait_records"),
    ("kineto-2023/test", "no_wait_records"),
    ("mtia_inference", "before_records"),
    ("resnet_act_checkpoint", "no_launch_record"),
    ("908_results", "no_launch_record"),
    // On each of the ranks 1 and 3, 64 operations were launched before the trace began.
    ("dlrm_kineto/worker1", "before_records"),
    ("dlrm_kineto/worker3", "before_records"),
];

#[test]
fn parts_of_the_path_of_real_traces_add_up_and_have_names() {
    let Some(files) = files::real_traces("paths-of-real-traces") else { return };
    let mut checked = 0;
    for file in files {
        let name = file.to_str().unwrap();
        let program = env!("CARGO_BIN_EXE_gpuflame");
        let Some(tables) = files::tables(program, &["critical-path", name, "--list", "-n", "0"]) else {
            continue;
        };
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

/// Returns the starts and ends of collectives in us, for each rank, sorted by start. All ranks are on one machine, so
/// their clocks are the same.
fn collectives(folder: &Path) -> BTreeMap<u64, Vec<(u64, u64)>> {
    let mut ranks = BTreeMap::new();
    for file in folder.read_dir().unwrap().map(|entry| entry.unwrap().path()) {
        let trace: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
        let events = trace["traceEvents"].as_array().unwrap().iter();
        let kernels = events.filter(|event| {
            event["cat"] == "kernel" && event["name"].as_str().is_some_and(|name| name.starts_with("nccl"))
        });
        let span = |kernel: &Value| {
            let [start, duration] = ["ts", "dur"].map(|key| kernel[key].as_u64().unwrap());
            (start, start + duration)
        };
        let mut spans: Vec<_> = kernels.map(span).collect();
        spans.sort_unstable();
        ranks.insert(trace["distributedInfo"]["rank"].as_u64().unwrap(), spans);
    }
    ranks
}

#[test]
fn the_path_of_eight_ranks_adds_up_and_continues_at_the_ranks_that_entered_last() {
    let Some(traces) = std::env::var_os("GPUFLAME_TRACES").map(PathBuf::from) else {
        files::skip::skip("there is no folder of real traces (GPUFLAME_TRACES names one)");
        return;
    };
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("critical-path-dlrm");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir(&folder).unwrap();
    let mut tar = Command::new("tar");
    tar.arg("xzf").arg(traces.join("dlrm-8-ranks/dlrm_kineto.tar.gz")).args(["--strip-components=1", "-C"]);
    assert!(tar.arg(&folder).status().unwrap().success());
    let tables = read_json(&["critical-path", folder.to_str().unwrap(), "--list", "-n", "0"]);
    let rows = |table: &str| tables[table].as_array().unwrap().iter();
    let number = |row: &Value, key: &str| row[key].as_u64().unwrap();
    let mut end = 0;
    for part in rows("path") {
        assert_eq!(number(part, "start_ns"), end, "{part}");
        end += number(part, "duration_ns");
    }
    for table in ["path_classes", "path_ranks"] {
        assert_eq!(rows(table).map(|row| number(row, "time_ns")).sum::<u64>(), end, "{table}");
    }
    assert_eq!(rows("path_ranks").count(), 8);
    let (collectives, error) = (collectives(&folder), number(&tables["clocks"][0], "error_ns") / 1_000);
    let mut changes = 0;
    for reason in rows("path").filter_map(|part| part["reason"].as_str()) {
        let Some((collective, rank)) = reason.split_once(" waited for rank ") else { continue };
        let first_number = |text: &str| text.split([' ', ',']).next().unwrap().parse::<u64>().unwrap();
        let at = first_number(collective.rsplit(' ').next().unwrap()) as usize - 1;
        let last = collectives.values().map(|spans| spans[at].0).max().unwrap();
        let start = collectives[&first_number(rank)][at].0;
        assert!(start + error >= last, "{reason}: it came at {start}, another rank at {last}");
        changes += 1;
    }
    assert!(changes > 0);
    std::fs::remove_dir_all(folder).unwrap();
}
