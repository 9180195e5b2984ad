//! Tests questions that the recorded data cannot answer. The summary's JSON must contain the reason why there is no
//! answer, and must not contain an answer.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::cases::{Case, cases};
use crate::programs::{PROGRAMS, Program, STRENGTHS};
use crate::support::command::gpuflame;
use crate::support::scratch;

struct Summary(Value);

impl Summary {
    fn read(folder: &Path, files: &[&str]) -> Self {
        let args = [&["summary"], files, &["--format", "json"]].concat();
        Self(serde_json::from_str(&gpuflame(folder, args).ok().stdout).unwrap())
    }

    /// Summarises the traces of the first `ranks` ranks of a case.
    fn of(name: &str, ranks: usize) -> Self {
        let case: &Case = cases().iter().find(|case| case.name == name).unwrap();
        let folder = scratch("withheld");
        let files = case.write(&folder);
        let files: Vec<&str> = files.iter().take(ranks).map(String::as_str).collect();
        let summary = Self::read(&folder, &files);
        fs::remove_dir_all(folder).unwrap();
        summary
    }

    /// Summarises the file that gpuflame writes if it runs without options. In that run, the cost of the fault is
    /// `percent` % of the run.
    fn of_program(id: &str, percent: u64) -> Self {
        let program: &Program = PROGRAMS.iter().find(|program| program.id == id).unwrap();
        let recorded = program.record_sums(percent);
        Self::read(&recorded.done.folder, &["out.gfr"])
    }

    fn has_finding(&self, id: &str) -> bool {
        self.0["findings"].as_array().unwrap().iter().any(|row| row["id"] == id)
    }

    /// Returns the reason why the value `what` is unknown, or the command that would record it.
    fn reason(&self, what: &str) -> &str {
        let rows = self.0["not_recorded"].as_array().unwrap();
        let row = rows.iter().find(|row| row["not_recorded"].as_str().unwrap().contains(what));
        row.unwrap_or_else(|| panic!("nothing about {what}: {:#}", self.0))["recorded_by"].as_str().unwrap()
    }

    fn text(&self) -> String {
        self.0.to_string()
    }
}

/// "Why was the GPU idle?" 11.5 % of the launches have no GPU work in the trace. Therefore the GPU may have run work
/// without a record at times at which it seems idle.
#[test]
fn why_a_gpu_was_idle_if_work_is_missing() {
    let summary = Summary::of("launches_without_activity-middle", 1);
    let answer = summary.0["answers"][1]["answer"].as_str().unwrap();
    assert!(answer.starts_with("idle time is unknown: ") && answer.contains("have no activity"), "{answer}");
    assert!(summary.0["idle_causes"].is_null() && summary.0["idle_places"].is_null());
    assert!(summary.text().contains("critical path: unknown, because too many launches have no activity"));
    assert!(!summary.text().contains("predicted: "), "{}", summary.text());
    assert!(summary.reason("launch_bound").starts_with("idle time is unknown: "));
    let costs = summary.0["findings"].as_array().unwrap();
    assert!(costs.iter().all(|row| row["result"] == "BAD"), "{costs:?}");
}

/// Verbs that print the idle time of streams or the parts of the critical path warn that GPU work is missing.
#[test]
fn verbs_without_a_place_for_the_doubt_print_a_remark() {
    let case = cases().iter().find(|case| case.name == "launches_without_activity-middle").unwrap();
    let folder = scratch("withheld");
    let files = case.write(&folder);
    for verb in [&["states"][..], &["timeline"], &["critical-path"], &["causal"], &["what-if", "--graphs"]] {
        let done = gpuflame(&folder, [verb, &[&files[0]]].concat()).ok();
        for said in ["launches have no activity", "so the GPU may have worked where it seems to be idle"] {
            assert!(done.stderr.contains(said), "{verb:?}: {}", done.stderr);
        }
    }
    fs::remove_dir_all(folder).unwrap();
}

/// "What did the host do in the pauses?" No thread was sampled, so only the CUDA calls before and after the pauses are
/// known.
#[test]
fn what_the_host_did_between_two_calls_without_samples() {
    // On a busy machine, the GPU is also idle while a call waits for a processor. Therefore the planted pauses are long
    // enough to be most of the idle time.
    let summary = Summary::of_program("pauses", STRENGTHS[2]);
    assert!(summary.reason("what the host did in ").contains("gpuflame run --cpu-samples 99 --off-cpu"));
    assert!(summary.reason("gc_pauses").contains("--cpu-samples 99"));
    // The function that pauses, `write_log`, calls no CUDA function.
    assert!(!summary.text().contains("write_log"), "{}", summary.text());
}

/// "Which rank is late?" The file of a single rank cannot answer this question.
#[test]
fn which_rank_is_late_from_the_file_of_one_rank() {
    let summary = Summary::of("straggler-middle", 1);
    assert_eq!(summary.reason("straggler"), "give the files of all ranks of the job");
    assert!(!["straggler", "imbalance", "clocks_of_ranks"].iter().any(|id| summary.has_finding(id)));
    assert!(!summary.text().contains("rank 1"), "{}", summary.text());
}

/// "By how much does rank 1 start its collectives later than rank 0?" This is unknown, because the clocks of the two
/// ranks are 5 ms apart.
#[test]
fn which_rank_is_earlier_if_clocks_differ() {
    let summary = Summary::of("clocks_disagree-ranks", 2);
    assert!(summary.has_finding("clocks_of_ranks") && !summary.has_finding("straggler"));
    assert!(summary.text().contains("do not compare times between ranks"), "{}", summary.text());
}

/// "Which steps were slow?" A file of sums does not contain durations of single kernels.
#[test]
fn which_steps_had_slow_kernels_from_sums() {
    let summary = Summary::of_program("slow_steps", STRENGTHS[1]);
    assert_eq!(summary.reason("slow_steps"), "`gpuflame run --rows COMMAND`");
    assert!(!summary.has_finding("slow_steps") && !summary.has_finding("late_slowdown"));
}
