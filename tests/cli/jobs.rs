//! Tests `merge-ranks` on the files of a job: whether all files belong to the same job, which ranks are missing, and
//! which rank arrived last at each collective.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::support::command::gpuflame;
use crate::support::{rank_traces, scratch};

/// A kernel, given as name, start in us, and duration in us.
type Kernel<'a> = (&'a str, f64, f64);

/// Writes a trace of these kernels, with `info` as the value of `distributedInfo`, which torch.profiler writes.
fn write(folder: &Path, name: &str, info: &str, kernels: &[Kernel<'_>]) {
    let kernel = |(at, (name, start, duration)): (usize, &Kernel<'_>)| {
        format!(
            r#"{{"ph":"X","cat":"kernel","name":"{name}","pid":0,"tid":7,"ts":{start},"dur":{duration},"args":{{"correlation":{},"device":0,"stream":7}}}}"#,
            at + 1
        )
    };
    let events: Vec<String> = kernels.iter().enumerate().map(kernel).collect();
    let info = if info.is_empty() { String::new() } else { format!(r#""distributedInfo": {{{info}}},"#) };
    fs::write(folder.join(name), format!(r#"{{{info}"traceEvents":[{}]}}"#, events.join(","))).unwrap();
}

fn info(rank: u32, world_size: u32) -> String {
    format!(r#""backend": "nccl", "pg_config": [{{"rank": 1}}], "rank": {rank}, "world_size": {world_size}"#)
}

fn merge(folder: &Path, args: &[&str]) -> (Value, String) {
    let ran = gpuflame(folder, [&["merge-ranks", "--format", "json"], args].concat()).ok();
    (serde_json::from_str(&ran.stdout).unwrap(), ran.stderr)
}

fn folder() -> PathBuf {
    scratch("jobs")
}

const GEMM: Kernel<'_> = ("gemm", 0.0, 5.0);

#[test]
fn missing_ranks_of_the_job_are_counted_and_listed() {
    let folder = folder();
    for rank in [0, 3] {
        write(&folder, &format!("{rank}.json"), &info(rank, 8), &[GEMM]);
    }
    let (tables, remarks) = merge(&folder, &["."]);
    assert!(remarks.contains("6 of 8 ranks are missing: 1, 2, 4 to 7"), "{remarks}");
    let job = &tables["job"][0];
    assert_eq!(
        (&job["world_size"], &job["ranks"], &job["missing"]),
        (&8.into(), &2.into(), &6.into()),
        "{job}"
    );
    // If there is only one file, the rank is the one that the file itself states.
    let (tables, remarks) = merge(&folder, &["3.json"]);
    assert_eq!(tables["ranks"][0]["rank"], 3);
    assert!(remarks.contains("7 of 8 ranks are missing: 0 to 2, 4 to 7"), "{remarks}");
    // If ranks are assigned by the order of the files, they do not show which ranks are missing.
    let (_, remarks) = merge(&folder, &["3.json", "0.json", "--assume-order"]);
    assert!(remarks.contains("6 of 8 ranks are missing; "), "{remarks}");
    // In these cases no rank is known to be missing, because all ranks are present or the number of ranks is unknown.
    write(&folder, "0.json", &info(0, 2), &[GEMM]);
    write(&folder, "3.json", &info(1, 2), &[GEMM]);
    assert!(!merge(&folder, &["."]).1.contains("missing"));
    write(&folder, "0.json", r#""rank": 0"#, &[GEMM]);
    write(&folder, "3.json", r#""rank": 3"#, &[GEMM]);
    let (tables, remarks) = merge(&folder, &["."]);
    assert!(tables["job"][0]["missing"].is_null() && !remarks.contains("missing"), "{remarks}");
    // Ranks 0 to 3 of a job with 4 ranks are possible, but a file states rank 5. Therefore the ranks of this job must
    // be numbered in another way.
    write(&folder, "3.json", &info(5, 4), &[GEMM]);
    let (tables, remarks) = merge(&folder, &["."]);
    assert!(tables["job"][0]["missing"].is_null() && remarks.contains("number them otherwise"), "{remarks}");
}

/// Verbs that compare ranks report missing ranks, because a missing rank may have delayed the other ranks.
#[test]
fn verbs_about_a_job_name_missing_ranks() {
    let folder = folder();
    for rank in [0, 1] {
        let name = format!("rank{rank}.json");
        write(&folder, &name, &info(rank, 3), &[GEMM, ("ncclDevKernel_AllReduce", 10.0, 5.0)]);
    }
    let files = ["rank0.json", "rank1.json"];
    let said = "1 of 3 ranks is missing: 2; the rest may have waited for it";
    for verb in ["summary", "stragglers", "critical-path"] {
        let ran = gpuflame(&folder, [&[verb], &files[..]].concat());
        let all = format!("{}{}", ran.stdout, ran.stderr);
        assert!(all.contains(said), "{verb}: {all}");
    }
    let page = crate::report::data(&crate::report::report(&folder, &files));
    assert!(page["culprits"].as_array().unwrap().iter().any(|line| line == said), "{}", page["culprits"]);
    write(&folder, "rank2.json", &info(2, 3), &[GEMM, ("ncclDevKernel_AllReduce", 10.0, 5.0)]);
    let ran = gpuflame(&folder, [&["summary"], &files[..], &["rank2.json"]].concat()).ok();
    assert!(!ran.stdout.contains("missing"), "{}", ran.stdout);
}

#[test]
fn files_of_different_programs_are_refused_with_the_difference() {
    let folder = folder();
    let refused = |words: &[&str]| {
        let ran = gpuflame(&folder, ["-q", "merge-ranks", ".", "-o", "all.folded"]);
        ran.fails(1, words);
        assert!(!folder.join("all.folded").exists());
        gpuflame(&folder, ["-q", "summary", "."]).fails(1, words);
        gpuflame(&folder, ["-q", "report", ".", "-o", "page.html"]).fails(1, words);
        assert!(!folder.join("page.html").exists());
    };
    write(&folder, "rank0.json", &info(0, 8), &[GEMM]);
    write(&folder, "rank1.json", &info(1, 2), &[GEMM]);
    refused(&[
        "rank0.json (rank 0)",
        "a job of 8 ranks",
        "rank1.json (rank 1)",
        "a job of 2 ranks",
        "ranks.json",
    ]);
    write(&folder, "rank1.json", &info(1, 8), &[("conv", 0.0, 5.0)]);
    refused(&["rank0.json (rank 0)", "rank1.json (rank 1)", "no kernel runs in both", "ranks.json"]);
    // `ranks.json`, a file that the user writes, states that both traces belong to the same job.
    fs::write(folder.join("ranks.json"), r#"{"rank0.json": 0, "rank1.json": 1}"#).unwrap();
    let (_, remarks) = merge(&folder, &["."]);
    assert!(remarks.contains("no kernel runs in both"), "{remarks}");
    // Two files of one rank are added up, which must be a decision of the user.
    let said = "rank 0 has several files, whose times are added up";
    let both = ["rank0.json", "rank1.json"];
    assert!(!merge(&folder, &both).1.contains("several files"));
    fs::write(folder.join("ranks.json"), r#"{"rank0.json": 0, "rank1.json": 0}"#).unwrap();
    let remarks = merge(&folder, &both).1;
    assert!(remarks.contains(said), "{remarks}");
    fs::remove_file(folder.join("ranks.json")).unwrap();
    // All ranks of a program have at least one kernel name in common, unless a rank has no kernels.
    write(&folder, "rank1.json", &info(1, 8), &[("conv", 0.0, 5.0), ("gemm", 6.0, 5.0)]);
    write(&folder, "rank2.json", &info(2, 8), &[("conv", 0.0, 5.0)]);
    write(&folder, "rank3.json", &info(3, 8), &[]);
    let copy = r#"{"ph":"X","cat":"gpu_memcpy","name":"Memcpy HtoD","ts":1,"dur":2,"args":{"device":0}}"#;
    fs::write(folder.join("rank3.json"), format!(r#"{{"traceEvents":[{copy}]}}"#)).unwrap();
    let (tables, _) = merge(&folder, &["."]);
    assert_eq!(tables["ranks"].as_array().unwrap().len(), 4);
}

#[test]
fn the_rank_that_came_last_to_each_collective_is_shown_with_the_wait_of_other_ranks() {
    let folder = folder();
    let (reduce, gather) = ("ncclDevKernel_AllReduce", "ncclDevKernel_AllGather");
    // At two of three reductions, rank 2 arrives last: 40 us after rank 0, and 60 us after rank 1. The third reduction
    // is a tie.
    for (rank, late) in [(0, 20.0), (1, 0.0), (2, 60.0)] {
        let at = |begin: f64| (reduce, begin + late, 100.0 - late);
        let kernels =
            [at(1000.0), at(2000.0), (reduce, 3000.0, 50.0), (gather, 4000.0 + 1e6 * f64::from(rank), 50.0)];
        write(&folder, &format!("rank{rank}.json"), "", &kernels);
    }
    let (tables, _) = merge(&folder, &["."]);
    let rows = tables["last_to_collectives"].as_array().unwrap();
    let row = |name: &str| rows.iter().find(|row| row["collective"] == name).unwrap();
    let last = row(reduce);
    let figures =
        ["rank", "last", "of", "behind_next_ns", "others_waited_ns", "ranks"].map(|key| last[key].clone());
    assert_eq!(
        figures,
        [Value::from(2), 2.into(), 3.into(), 80_000.into(), 200_000.into(), 3.into()],
        "{rows:?}"
    );
    // The all-gathers of the two ranks end one second apart, so it is unknown which rank arrived last.
    let unknown = row(gather);
    assert!(unknown["rank"].is_null(), "{unknown}");
    let reason = unknown["unknown_because"].as_str().unwrap();
    assert!(reason.contains("ranks 0 and 2 are 2.000 s apart") && reason.contains("clocks"), "{reason}");
    assert_eq!(rows.len(), 2);
    // Rank 1 has fewer reductions than rank 0. Therefore it is unknown which reductions of the two ranks belong
    // together.
    write(&folder, "rank1.json", "", &[(reduce, 1000.0, 100.0)]);
    let (tables, _) = merge(&folder, &["."]);
    let text = tables["last_to_collectives"].to_string();
    assert!(text.contains("rank 0 has 3 such kernels, rank 1 has 1"), "{text}");
    // This job has no collective, so no rank can arrive last.
    write(&folder, "a.json", "", &[GEMM]);
    let (tables, _) = merge(&folder, &["a.json"]);
    assert!(tables["last_to_collectives"].to_string().contains("no kernel that moves data"), "{tables}");
}

/// Merges the traces of two ranks whose clocks are 11.5 s apart. The module `rank_traces` describes these traces.
#[test]
fn clocks_that_differ_are_aligned_by_the_collectives_and_the_error_is_stated() {
    let folder = folder();
    rank_traces::two_ranks(&folder);
    let (tables, remarks) = merge(&folder, &["."]);
    // The rank that enters a collective last enters each gather 10 us before the gather ends, and each reduce 5 us
    // before the reduce ends.
    let stated =
        "are up to 11.500 s apart; they were aligned by 6 collectives, with an error of at most 10.000 us";
    assert!(remarks.contains(stated), "{remarks}");
    let rows = tables["last_to_collectives"].as_array().unwrap();
    let row = |name: &str| rows.iter().find(|row| row["collective"] == name).unwrap();
    // Rank 1 arrives 20 us after rank 0 at each of three gathers.
    let gather = row(rank_traces::GATHER);
    let figures = ["rank", "last", "of", "behind_next_ns"].map(|key| gather[key].clone());
    assert_eq!(figures, [Value::from(1), 3.into(), 3.into(), 60_000.into()], "{gather}");
    // Rank 0 arrives at the reduce 10 us after rank 1. The error of the aligned clocks is also 10 us, so it is unknown
    // which rank arrived last.
    let reduce = row(rank_traces::REDUCE);
    let reason = reduce["unknown_because"].as_str().unwrap();
    assert_eq!(reason, "no rank was clearly the last to any of 3");
}

/// Verbs that read several files as the ranks of one job, each with the flags that it needs to do so.
const RANK_VERBS: [&[&str]; 7] = [
    &["merge-ranks"],
    &["stragglers"],
    &["what-if", "--ranks-even"],
    &["critical-path"],
    &["deps"],
    &["summary"],
    &["report", "-o", "job.html"],
];

#[test]
fn each_verb_of_ranks_takes_the_flag_that_its_message_proposes() {
    let folder = folder();
    // The ranks of these files are unknown, from both their contents and their names. Both ranks run the same three
    // collectives.
    for (name, gemm) in [("north.json", 5.0), ("south.json", 8.0)] {
        let step = |start: f64| {
            [("gemm", start, gemm), ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", start + 10.0, 2.0)]
        };
        write(&folder, name, "", &[0.0, 20.0, 40.0].map(step).concat());
    }
    for verb in RANK_VERBS {
        let args = [&["-q"], verb, &["north.json", "south.json"]].concat();
        gpuflame(&folder, &args).fails(2, &["north.json", "--assume-order"]);
        gpuflame(&folder, [&args[..], &["--assume-order"]].concat()).ok();
    }
    // The test replaces the files by files without collectives. The next command also compares files, so it needs the
    // same flag.
    for name in ["north.json", "south.json"] {
        write(&folder, name, "", &[GEMM]);
    }
    let args = ["summary", "south.json", "north.json", "--assume-order", "--format", "json"];
    let tables: Value = serde_json::from_str(&gpuflame(&folder, args).ok().stdout).unwrap();
    let next = tables["next"][0]["command"].as_str().unwrap();
    assert!(next.contains("south.json north.json") && next.ends_with(" --assume-order"), "{next}");
    let again: Vec<&str> = next.split(' ').skip(1).collect();
    gpuflame(&folder, again).ok();
}

/// The file of rank 1 was missing, so the user copied the trace of rank 0 under the name of rank 1.
#[test]
fn a_copy_of_a_rank_under_another_name_is_refused() {
    let folder = folder();
    for name in ["rank0.json", "rank1.json"] {
        write(&folder, name, &info(0, 2), &[GEMM]);
    }
    for verb in RANK_VERBS {
        let args = [&["-q"], verb, &["rank0.json", "rank1.json"]].concat();
        gpuflame(&folder, &args).fails(2, &["rank0.json and rank1.json both have rank 0"]);
    }
}
