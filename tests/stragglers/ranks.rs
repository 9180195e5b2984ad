//! Tests the ranks of a job: the eight ranks of a public DLRM run, and hand-made ranks.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use super::command::gpuflame;
use super::rank_traces::{GATHER, two_ranks, write_rank};
use super::{assert_near, number, real, row, scratch, stragglers};

#[test]
fn ranks_with_clocks_apart_have_the_slowdown_computed_by_hand() {
    let folder = scratch("two-ranks");
    two_ranks(&folder);
    let output = stragglers(&folder, &["rank0.json", "rank1.json"]);
    let whole = &output["slowdown"][0];
    for (key, expected) in
        [("steps", 2.0), ("measured_ns", 65_000.0), ("simulated_ns", 65_000.0), ("ideal_ns", 50_000.0)]
    {
        assert_near(key, number(whole, key), expected, 0.5);
    }
    // The means over all ranks are 15 us for the work before the gather, 5 us for the idle time, and 15 us for the work
    // before the reduce.
    assert_near("S", number(whole, "slowdown"), 1.3, 1e-9);
    assert_near("rank 1", number(row(&output, "evened_out", "name", "1"), "saved_ns"), 10_000.0, 0.5);
    assert_near("rank 0", number(row(&output, "evened_out", "name", "0"), "saved_ns"), 5_000.0, 0.5);
    assert_near("work", number(row(&output, "evened_out", "name", "GPU work"), "saved_ns"), 10_000.0, 0.5);
    let clock = &output["clocks"][1];
    assert_eq!((&clock["rank"], &clock["ahead_ns"]), (&1.into(), &11_500_000_000_u64.into()));
    assert_eq!((&clock["error_ns"], &clock["ends_apart_ns"]), (&10_000.into(), &0.into()));
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn even_ranks_have_the_step_time_computed_by_hand() {
    let folder = scratch("even-ranks");
    two_ranks(&folder);
    let what_if =
        |args: &[&str]| gpuflame(&folder, [&["-q", "what-if"], args, &["--format", "json"]].concat());
    let output: Value =
        serde_json::from_str(&what_if(&["rank0.json", "rank1.json", "--ranks-even"]).ok().stdout).unwrap();
    // The run has two steps of 65 us. If every rank takes the mean times, each step has 15 us of work, 5 us of idle
    // time, a gather of 10 us, 15 us of work and a reduce of 5 us.
    let total = &output["total"][0];
    assert_eq!((&total["before_ns"], &total["after_ns"]), (&130_000.into(), &100_000.into()), "{output:#}");
    for step in output["steps"].as_array().unwrap() {
        assert_eq!((&step["before_ns"], &step["after_ns"]), (&65_000.into(), &50_000.into()), "{output:#}");
    }
    what_if(&["rank0.json", "--ranks-even"]).fails(1, &["the prediction is withheld", "there is one rank"]);
    what_if(&["rank0.json", "rank1.json", "--no-sync"]).fails(2, &["one file is replayed at a time"]);
    what_if(&["rank0.json", "rank1.json", "--ranks-even", "--no-sync"]).fails(2, &["without other changes"]);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn ranks_that_cannot_be_compared_have_no_slowdown() {
    let folder = scratch("refused-ranks");
    two_ranks(&folder);
    let withheld = "the slowdown is withheld: ";
    gpuflame(&folder, ["stragglers", "rank0.json"]).fails(1, &[withheld, "there is one rank"]);
    fs::create_dir(folder.join("other")).unwrap();
    write_rank(&folder.join("other"), 1, &[], &[("gemm", 5, 9), (GATHER, 10, 20)]);
    gpuflame(&folder, ["stragglers", "rank0.json", "other/rank1.json"])
        .fails(1, &[withheld, "rank 0 has 6 collectives, rank 1 has 1"]);
    fs::remove_dir_all(folder).unwrap();
}

/// Unpacks the eight ranks of the DLRM run into a folder with this name. Each test needs a separate folder, because
/// tests run at the same time.
fn dlrm(name: &str) -> Option<PathBuf> {
    let archive = real("dlrm-8-ranks/dlrm_kineto.tar.gz")?;
    let folder = scratch(name);
    let mut tar = Command::new("tar");
    tar.arg("xzf").arg(archive).args(["--strip-components=1", "-C"]).arg(&folder);
    assert!(tar.status().unwrap().success());
    Some(folder)
}

/// A separate script computed the expected values. The script reads the files with Python's json, and counts the busy
/// microseconds between collectives one by one.
#[test]
fn the_ranks_of_a_real_job_have_the_slowdown_of_an_independent_script() {
    let Some(folder) = dlrm("dlrm-slowdown") else { return };
    let output = stragglers(&folder, &[".", "-n", "0"]);
    let whole = &output["slowdown"][0];
    assert_near("T", number(whole, "simulated_ns"), 8_399_000.0, 0.5);
    assert_near("ideal", number(whole, "ideal_ns"), 5_848_875.0, 0.5);
    assert_near("measured", number(whole, "measured_ns"), 8_395_125.0, 0.5);
    for (name, saved, alone) in [
        ("0", 0.0, 1.0),
        ("2", 0.0, 1.046_162_7),
        ("4", 13_000.0, 1.240_281_3),
        ("5", 102_000.0, 1.255_155_9),
        ("7", 772_750.0, 1.197_196_0),
        ("GPU idle", 2_296_875.0, 1.402_962_1),
        ("GPU work", 193_250.0, 1.043_298_9),
    ] {
        let part = row(&output, "evened_out", "name", name);
        assert_near(name, number(part, "saved_ns"), saved, 0.5);
        assert_near(name, number(part, "slowdown_alone"), alone, 1e-6);
    }
    fs::remove_dir_all(folder).unwrap();
}

/// All ranks of the job are on one machine and have the same clock. Therefore the shift that the test adds to a rank is
/// the true difference between the clocks.
#[test]
fn the_stated_error_of_the_clocks_is_not_smaller_than_the_true_one() {
    let Some(folder) = dlrm("dlrm-clocks") else { return };
    let shifts: [i64; 8] = [0, 11_500_000, -3_000_017, 250, -1, 86_400_000_000, 999_983, -123_456];
    let (mut files, mut ranks) = (Vec::new(), Vec::new());
    for file in fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path()) {
        let mut trace: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
        let rank = trace["distributedInfo"]["rank"].as_u64().unwrap() as usize;
        for event in trace["traceEvents"].as_array_mut().unwrap() {
            if let Some(time) = event["ts"].as_i64() {
                event["ts"] = (time + shifts[rank]).into();
            }
        }
        fs::write(&file, trace.to_string()).unwrap();
        files.push(file);
        ranks.push(rank);
    }
    assert_eq!(ranks.len(), 8);
    let output = stragglers(&folder, &[".", "-n", "0"]);
    assert_near("T", number(&output["slowdown"][0], "simulated_ns"), 8_399_000.0, 0.5);
    for clock in output["clocks"].as_array().unwrap() {
        let rank = number(clock, "rank") as usize;
        let error = (number(clock, "ahead_ns") - 1e3 * shifts[rank] as f64).abs();
        assert!(error <= number(clock, "error_ns"), "rank {rank}: {error} ns off, {clock}");
        // On these ranks, the ends of a collective are at most 12 us apart.
        assert!(error <= 12_000.0, "rank {rank}: {error} ns off");
    }
    fs::remove_dir_all(folder).unwrap();
}
