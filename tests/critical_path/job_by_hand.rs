//! Tests the critical paths of jobs whose ranks take part in two collectives.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::output::{Trace, gpuflame, min_slacks, read_json};

pub(super) const GATHER: &str = "ncclDevKernel_AllGather";
pub(super) const REDUCE: &str = "ncclDevKernel_AllReduce";

/// Returns the trace of the rank that enters the gather last. Times are in us. If no rank's clock is ahead, the times
/// of this rank are on the same clock as the times of the other ranks.
///
/// ```text
/// host   |-launch 0-10-|     |-launch 20-30-|  |-launch 40-50-| |-launch 60-70-| |---- synchronize 80-160 -----|
/// GPU                  prep 15-18      gather 35-45      reduce 55 (waits until 110) -130  relu 130-150
/// ```
pub(super) fn late_to_gather() -> Trace {
    Trace::default()
        .call("cudaLaunchKernel", 1, 5, (0, 10))
        .kernel("prep", 1, 7, (15, 18))
        .call("cudaLaunchKernel", 2, 5, (20, 30))
        .kernel(GATHER, 2, 7, (35, 45))
        .call("cudaLaunchKernel", 3, 5, (40, 50))
        .kernel(REDUCE, 3, 7, (55, 130))
        .call("cudaLaunchKernel", 4, 5, (60, 70))
        .kernel("relu", 4, 7, (130, 150))
        .call("cudaStreamSynchronize", 5, 5, (80, 160))
        .sync(5, 7, (81, 150))
}

/// Returns the trace of a rank that enters the gather at 10 us, and the reduce at `gemm_end`. The clock of this rank
/// is ahead by `ahead` us.
///
/// ```text
/// host   launches 0-5, 15-20, 25-30, 35-40   |---------------- synchronize 50-150 ----------------|
/// GPU          gather 10 (waits until 35) -45  gemm 45-gemm_end  reduce -130  relu 130-145
/// ```
fn early_to_gather(gemm_end: u32, ahead: u32) -> Trace {
    let at = |from: u32, to: u32| (from + ahead, to + ahead);
    Trace::default()
        .call("cudaLaunchKernel", 1, 6, at(0, 5))
        .kernel(GATHER, 1, 7, at(10, 45))
        .call("cudaLaunchKernel", 2, 6, at(15, 20))
        .kernel("gemm", 2, 7, at(45, gemm_end))
        .call("cudaLaunchKernel", 3, 6, at(25, 30))
        .kernel(REDUCE, 3, 7, at(gemm_end, 130))
        .call("cudaLaunchKernel", 4, 6, at(35, 40))
        .kernel("relu", 4, 7, at(130, 145))
        .call("cudaStreamSynchronize", 5, 6, at(50, 150))
        .sync(5, 7, at(51, 145))
}

/// Writes one trace file per rank into the folder `name`.
fn job(name: &str, ranks: Vec<Trace>) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir(&folder).unwrap();
    for (rank, trace) in ranks.into_iter().enumerate() {
        trace.write(&format!("{name}/rank{rank}"));
    }
    folder
}

fn tables(folder: &Path, args: &[&str]) -> Value {
    read_json(&[&["critical-path", folder.to_str().unwrap(), "--list"], args].concat())
}

/// Returns the parts of the path as (start, duration, rank, class, saving, name). Times are in us.
fn parts(tables: &Value) -> Vec<(i64, u64, u64, &str, u64, &str)> {
    let rows = tables["path"].as_array().unwrap().iter();
    rows.map(|row| {
        let us = |key: &str| row[key].as_u64().unwrap() / 1_000;
        let text = |key: &str| row[key].as_str().unwrap();
        let start = row["start_ns"].as_i64().unwrap() / 1_000;
        (
            start,
            us("duration_ns"),
            row["rank"].as_u64().unwrap(),
            text("class"),
            us("saving_ns"),
            text("name"),
        )
    })
    .collect()
}

/// At a collective, the path changes to the rank that entered the collective last. Without `gemm`, rank 1 would enter
/// the reduce at 45 us instead of 110 us. However, the reduce would then wait for rank 0, which enters it at 55 us.
/// Therefore `gemm` can save 55 us, and not 65 us. If rank 0 left the reduce earlier, the job would end when rank 1
/// ends, at 150 us.
#[test]
fn the_path_continues_at_the_rank_that_entered_last() {
    let folder = job("path-job-two", vec![late_to_gather(), early_to_gather(110, 11_500_000)]);
    let tables = tables(&folder, &[]);
    assert_eq!(
        parts(&tables),
        [
            (0, 10, 0, "call", 10, "cudaLaunchKernel"),
            (10, 10, 0, "host", 10, "from cudaLaunchKernel to cudaLaunchKernel"),
            (20, 10, 0, "call", 10, "cudaLaunchKernel"),
            (30, 5, 0, "launch", 5, GATHER),
            (35, 10, 1, "kernel", 10, GATHER),
            (45, 65, 1, "kernel", 55, "gemm"),
            (110, 20, 0, "kernel", 10, REDUCE),
            (130, 20, 0, "kernel", 10, "relu"),
            (150, 10, 0, "return", 10, "cudaStreamSynchronize"),
        ]
    );
    let reasons: Vec<&str> =
        [4, 6].iter().map(|at| tables["path"][*at]["reason"].as_str().unwrap()).collect();
    assert_eq!(
        reasons,
        [
            "collective `ncclDevKernel_AllGather` 1 waited for rank 0",
            "collective `ncclDevKernel_AllReduce` 2 waited for rank 1",
        ]
    );
    let sums = |row: &Value| -> Vec<u64> {
        let keys = ["rank", "time_ns", "gpu_ns", "host_ns", "latency_ns", "unexplained_ns", "waited_for"];
        keys.iter().map(|key| row[*key].as_u64().unwrap()).collect()
    };
    let ranks: Vec<Vec<u64>> = tables["path_ranks"].as_array().unwrap().iter().map(sums).collect();
    assert_eq!(ranks, [[0, 85_000, 40_000, 40_000, 5_000, 0, 1], [1, 75_000, 75_000, 0, 0, 0, 1]]);
    // Rank 1 enters the reduce at 110 us, before rank 0 leaves it at 130 us. Therefore the clock of rank 1 may be ahead
    // by up to 20 us less than assumed. Rank 1 leaves the gather at 45 us, after rank 0 enters it at 35 us. Therefore
    // the clock of rank 1 may be ahead by up to 10 us more than assumed.
    let clock = &tables["clocks"][1];
    assert_eq!((&clock["ahead_ns"], &clock["error_ns"]), (&11_500_000_000_u64.into(), &20_000.into()));
}

/// The kernel `relu` on rank 1 may end 10 us later, because the job ends 10 us after rank 1 ends. The kernel `prep`
/// must end before the gather begins.
#[test]
fn slack_is_that_of_the_job() {
    let folder = job("path-job-slack", vec![late_to_gather(), early_to_gather(110, 700)]);
    let tables = tables(&folder, &[]);
    assert_eq!(min_slacks(&tables, ["gemm", "relu", "prep"]), [0, 0, 17_000]);
    let rows = tables["slack"].as_array().unwrap();
    let relu = rows.iter().find(|row| row["name"] == "relu").unwrap();
    assert_eq!(relu["median_slack_ns"], 10_000);
}

#[test]
fn a_part_of_the_path_is_cut_at_its_edges() {
    let folder = job("path-job-part", vec![late_to_gather(), early_to_gather(110, 0)]);
    let tables = tables(&folder, &["--from", "100us", "--to", "120us"]);
    let spans: Vec<_> = parts(&tables).into_iter().map(|part| (part.0, part.1, part.2)).collect();
    assert_eq!(spans, [(100, 10, 1), (110, 10, 0)]);
}

/// Ranks 1 and 2 enter the reduce 2 us apart, and this difference is less than the error of the clocks.
#[test]
fn two_ranks_within_the_error_are_not_distinguished() {
    let ranks = vec![late_to_gather(), early_to_gather(110, 0), early_to_gather(108, 0)];
    let folder = job("path-job-tie", ranks);
    let tables = tables(&folder, &[]);
    let reason = tables["path"][6]["reason"].as_str().unwrap();
    let words = "`ncclDevKernel_AllReduce` 2 waited for rank 1, or for a rank that entered within the error";
    assert!(reason.contains(words), "{reason}");
    assert!(tables["path"][4]["reason"].as_str().unwrap().ends_with("1 waited for rank 0"), "{tables:#}");
}

/// If there is a single collective, the difference between the clocks is uncertain by 75 us. Rank 1 enters the
/// collective only 55 us after rank 0, so it may not be the last rank to enter it, and the path stays on rank 0.
#[test]
fn a_rank_that_may_be_the_last_one_is_not_left() {
    let one = |from: u32| {
        Trace::default()
            .call("cudaLaunchKernel", 1, 5, (0, 10))
            .kernel(REDUCE, 1, 7, (from, 110))
            .call("cudaStreamSynchronize", 2, 5, (20, 120))
            .sync(2, 7, (21, 110))
    };
    let folder = job("path-job-unsure", vec![one(35), one(90)]);
    let tables = tables(&folder, &[]);
    assert_eq!(tables["clocks"][1]["error_ns"], 75_000);
    let ranks: Vec<u64> = parts(&tables).into_iter().map(|part| part.2).collect();
    assert!(ranks.iter().all(|rank| *rank == ranks[0]), "{tables:#}");
    let sum: u64 = parts(&tables).into_iter().map(|part| part.1).sum();
    assert_eq!(sum, 120);
}

#[test]
fn deps_has_a_node_where_the_last_rank_enters_a_collective() {
    let folder = job("path-job-deps", vec![late_to_gather(), early_to_gather(110, 700)]);
    let deps = read_json(&["deps", folder.to_str().unwrap()]);
    let nodes = deps["nodes"].as_array().unwrap();
    let entered: Vec<&Value> = nodes.iter().filter(|node| node["kind"] == "collective").collect();
    let keys = |node: &Value| (node["name"].clone(), node["rank"].clone(), node["start_ns"].clone());
    let expected = [(GATHER.into(), 0.into(), 35_000.into()), (REDUCE.into(), 1.into(), 110_000.into())];
    assert_eq!(entered.iter().map(|node| keys(node)).collect::<Vec<_>>(), expected);
    let rank_of = |id: &Value| &nodes.iter().find(|node| node["id"] == *id).unwrap()["rank"];
    let to_reduce = deps["edges"].as_array().unwrap().iter().filter(|edge| edge["to"] == entered[1]["id"]);
    let mut causes: Vec<_> =
        to_reduce.map(|edge| (rank_of(&edge["from"]).as_u64().unwrap(), edge["decided"] == true)).collect();
    causes.sort_unstable();
    assert_eq!(causes, [(0, false), (1, true)]);
}

#[test]
fn ranks_that_do_not_run_the_same_collectives_are_refused() {
    let fails = |args: &[&str], code: i32, words: &[&str]| {
        let output = gpuflame(&[&["critical-path"], args].concat());
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{text}");
        assert!(words.iter().all(|word| text.contains(word)) && text.lines().count() == 1, "{text}");
    };
    let none = Trace::default().call("cudaLaunchKernel", 1, 5, (0, 10)).kernel("gemm", 1, 7, (15, 20));
    let folder = job("path-job-refused", vec![late_to_gather(), none]);
    let folder = folder.to_str().unwrap();
    let words = ["clocks of the ranks cannot be aligned", "rank 0 has 2 collectives, rank 1 has 0"];
    fails(&[folder], 1, &words);
    for flag in [&["--step", "1"][..], &["--range", "x"], &["--as-hta"]] {
        fails(&[&[folder], flag].concat(), 2, &[flag[0], "needs one file, and not 2"]);
    }
}
