//! Tests the critical path of a job in which only some ranks take part in each collective.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::output::{Trace, gpuflame, read_json};

const GATHER: &str = "ncclDevKernel_AllGather";
const REDUCE: &str = "ncclDevKernel_AllReduce";

/// Returns the traces of the ranks of a job with two process groups. Ranks 0 and 1 run the gathers, and ranks 1 and 2
/// run the reduces. The clock of rank 2 is 500 us ahead. Times are in us.
///
/// ```text
///          0    15   30   35   40   45                        95     100        150     155        195  200
/// rank 0   |launch| gather | prep ----------------------------| gather |
/// rank 1   |launch| own | gather | reduce   | gather waits             | gemm  | reduce |
/// rank 2   |launch| pre ----------| reduce  | reduce waits                              | relu      |return|
/// path     |- rank 1: own --| rank 0: gather, prep -----------| 1: gather, gemm | 2: reduce, relu, return -|
/// ```
fn ranks(has_groups: bool) -> [Trace; 3] {
    let launches = |count: u32, ahead: u32| {
        (0..count).fold(Trace::default(), |trace, at| {
            // The first launch takes 10 us, and each other launch takes 5 us.
            let from = ahead + if at == 0 { 0 } else { 5 + 5 * at };
            trace.call("cudaLaunchKernel", at + 1, 5, (from, ahead + 10 + 5 * at))
        })
    };
    let collective = |trace: Trace, name: &str, id: u32, (from, to): (u32, u32)| {
        let mut args = json!({ "correlation": id, "device": 0, "context": 1, "stream": 7 });
        if has_groups {
            args["Process Group Name"] = if name == GATHER { "tensor" } else { "data" }.into();
        }
        trace.add(json!({
            "ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": from, "dur": to - from, "args": args,
        }))
    };
    let wait = |trace: Trace, ended: u32, from: u32| {
        trace.call("cudaStreamSynchronize", 9, 5, (from, ended + 5)).sync(9, 7, (from + 1, ended))
    };
    let zero = collective(launches(3, 0), GATHER, 1, (15, 35)).kernel("prep", 2, 7, (35, 95));
    let zero = wait(collective(zero, GATHER, 3, (95, 100)), 100, 40);
    let one = collective(launches(6, 0).kernel("own", 1, 7, (15, 30)), GATHER, 2, (30, 35));
    let one = collective(collective(one, REDUCE, 3, (35, 45)), GATHER, 4, (45, 100));
    let one = wait(collective(one.kernel("gemm", 5, 7, (100, 150)), REDUCE, 6, (150, 155)), 155, 40);
    let two = collective(launches(4, 500).kernel("pre", 1, 7, (515, 540)), REDUCE, 2, (540, 545));
    let two = wait(collective(two, REDUCE, 3, (545, 655)).kernel("relu", 4, 7, (655, 695)), 695, 540);
    [zero, one, two]
}

fn job(name: &str, has_groups: bool) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir(&folder).unwrap();
    for (rank, trace) in ranks(has_groups).into_iter().enumerate() {
        trace.write(&format!("{name}/rank{rank}"));
    }
    folder
}

#[test]
fn the_path_continues_at_the_last_rank_of_the_process_group() {
    let folder = job("path-groups", true);
    let tables = read_json(&["critical-path", folder.to_str().unwrap(), "--list"]);
    let rows = tables["path"].as_array().unwrap();
    let parts = rows.iter().map(|row| {
        let us = |key: &str| row[key].as_u64().unwrap() / 1_000;
        (us("start_ns"), us("duration_ns"), row["rank"].as_u64().unwrap(), row["name"].as_str().unwrap())
    });
    assert_eq!(
        parts.collect::<Vec<_>>(),
        [
            (0, 10, 1, "cudaLaunchKernel"),
            (10, 5, 1, "own"),
            (15, 15, 1, "own"),
            (30, 5, 0, GATHER),
            (35, 60, 0, "prep"),
            (95, 5, 1, GATHER),
            (100, 50, 1, "gemm"),
            (150, 5, 2, REDUCE),
            (155, 40, 2, "relu"),
            (195, 5, 2, "cudaStreamSynchronize"),
        ]
    );
    // The collective that begins at 40 us, a reduce, is the second collective on the path.
    let reason = |at: usize| rows[at]["reason"].as_str().unwrap();
    assert_eq!(reason(3), "collective `ncclDevKernel_AllGather` 1 waited for rank 1");
    assert_eq!(reason(5), "collective `ncclDevKernel_AllGather` 3 waited for rank 0");
    assert_eq!(reason(7), "collective `ncclDevKernel_AllReduce` 4 waited for rank 1");
    // In the gathers, ranks 0 and 1 enter and leave within 5 us of each other. Ranks 1 and 2 enter and leave the
    // reduces within 5 us of each other, too. The clock errors of the two groups add up.
    let clocks: Vec<(&Value, &Value)> =
        tables["clocks"].as_array().unwrap().iter().map(|row| (&row["ahead_ns"], &row["error_ns"])).collect();
    assert_eq!(clocks[2].0, 500_000);
    assert!(clocks.iter().skip(1).all(|(_, error)| **error == 10_000), "{clocks:?}");
}

#[test]
fn ranks_that_differ_are_refused_if_the_traces_do_not_name_their_groups() {
    let folder = job("path-groups-unnamed", false);
    let output = gpuflame(&["critical-path", folder.to_str().unwrap()]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), text.lines().count()), (Some(1), 1), "{text}");
    let words = ["rank 0 has 2 collectives, rank 1 has 4", "do not name all process groups"];
    assert!(words.iter().all(|word| text.contains(word)), "{text}");
}
