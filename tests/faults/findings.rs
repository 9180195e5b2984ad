//! Tests that `gpuflame summary` finds the planted faults, in the order of their costs and with the right culprits, and finds
//! nothing in healthy runs.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::cases::{Case, Truth, cases, healthy};
use crate::programs::{PROGRAMS, Program, STRENGTHS};
use crate::support::command::gpuflame;
use crate::support::scratch;

/// A finding in the output of `gpuflame summary`.
struct Found {
    is_bad: bool,
    id: String,
    cost_ns: u64,
    text: String,
}

fn findings(folder: &Path, files: &[String]) -> Vec<Found> {
    let files = files.iter().map(String::as_str);
    let args: Vec<&str> = ["summary"].into_iter().chain(files).chain(["--format", "json"]).collect();
    let summary: Value = serde_json::from_str(&gpuflame(folder, args).ok().stdout).unwrap();
    let rows = summary["findings"].as_array().unwrap();
    let text = |row: &Value, key: &str| row[key].as_str().unwrap_or_default().to_owned();
    rows.iter()
        .map(|row| Found {
            is_bad: row["result"] == "BAD",
            id: text(row, "id"),
            cost_ns: row["cost_ns"].as_u64().unwrap_or(0),
            text: text(row, "culprit") + " " + &text(row, "why"),
        })
        .collect()
}

fn found_in(case: &Case) -> Vec<Found> {
    let folder = scratch("findings");
    let files = case.write(&folder);
    let found = findings(&folder, &files);
    fs::remove_dir_all(folder).unwrap();
    found
}

/// Returns the ids of the findings that name a fault. If a fault is in the records of the trace, these are the ids of
/// record checks.
fn ids(fault: &str) -> &[&str] {
    match fault {
        "launches_without_activity" => &["launch_coverage"],
        "impossible_times" => &["impossible_duration", "times_backwards"],
        "clocks_disagree" => &["starts_before_launch", "clocks_of_ranks"],
        _ => &[],
    }
}

/// Returns the finding about a fault, and its position among the findings of the same kind (kinds: bad records, lost
/// time).
fn position<'a>(found: &'a [Found], fault: &str) -> Option<(usize, &'a Found)> {
    let of_records = !ids(fault).is_empty();
    let mut same_sort = found.iter().filter(|finding| finding.is_bad == of_records).enumerate();
    same_sort.find(|(_, finding)| finding.id == fault || ids(fault).contains(&&*finding.id))
}

/// Returns whether the finding names the culprit. The finding must name one of the culprit's functions; if the right
/// answer specifies a rank and a GPU, the finding must also name these.
fn names_culprit(finding: &Found, truth: &Truth) -> bool {
    let culprit = truth.culprit;
    let function = |place: &&&str| {
        let name = place.rsplit(": ").next().unwrap_or(place);
        finding.text.contains(name.split(" object at").next().unwrap_or(name))
    };
    (culprit.functions.is_empty() || culprit.functions.iter().any(|place| function(&place)))
        && culprit.rank.is_none_or(|rank| finding.text.contains(&format!("rank {rank}")))
        && culprit
            .device
            .is_none_or(|device| truth.id != "idle_gpu" || finding.text.contains(&format!("GPU {device}")))
}

/// Describes the mistakes in the findings about a case: a fault that is not among the first two findings, or a wrong
/// culprit.
fn mistakes(case: &Case) -> Vec<String> {
    let found = found_in(case);
    let list = || {
        found
            .iter()
            .map(|one| format!("{} {} ns {}", one.id, one.cost_ns, one.text))
            .collect::<Vec<_>>()
            .join("\n    ")
    };
    let mut wrong = Vec::new();
    let mut last = None;
    for truth in &case.truth {
        match position(&found, truth.id) {
            Some((at, finding)) if at < 2 && names_culprit(finding, truth) => {
                if ids(truth.id).is_empty() && last.is_some_and(|last| at < last) {
                    wrong.push(format!("{}: {} is named too early\n    {}", case.name, truth.id, list()));
                }
                last = Some(at);
            }
            _ => wrong.push(format!("{}: {} is not named\n    {}", case.name, truth.id, list())),
        }
    }
    wrong
}

/// Cases in which gpuflame cannot name the fault, and cases in which the fault has no visible effect. Each case is
/// listed with the reason.
const EXCEPTIONS: [(&str, &str); 4] = [
    ("gc_pauses-automatic", "nothing in the trace says that the collector ran; the pauses are named"),
    (
        "launches_without_activity-after-data_loader_late",
        "too many launches lack GPU work, so idle time is unknown",
    ),
    (
        "fragmented_copies-after-allocation_in_loop",
        "the copies overlap with kernels; only the whole run is longer",
    ),
    (
        "tiny_kernels-after-data_loader_late",
        "the time between the kernels is named launch-bound, in the same function",
    ),
];

fn is_exception(case: &Case) -> bool {
    EXCEPTIONS.iter().any(|(name, _)| *name == case.name)
}

fn assert_few(wrong: &[String], most: usize) {
    assert!(wrong.len() <= most, "{} wrong, of at most {most}:\n{}", wrong.len(), wrong.join("\n"));
}

/// In middle strength, a fault costs 12 % of the run.
#[test]
fn faults_in_middle_strength_are_named_with_their_culprit() {
    let middle =
        cases().iter().filter(|case| !case.name.ends_with("-weak") && !case.name.ends_with("-strong"));
    let wrong: Vec<_> = middle.filter(|case| !is_exception(case)).flat_map(mistakes).collect();
    assert_few(&wrong, 0);
}

#[test]
fn strong_faults_are_named_with_their_culprit() {
    let strong = cases().iter().filter(|case| case.name.ends_with("-strong"));
    assert_few(&strong.flat_map(mistakes).collect::<Vec<_>>(), 0);
}

/// A weak fault costs 3 % of the run, and the visible part of this cost may be even smaller. Therefore gpuflame must
/// name most weak faults, but need not name all of them.
#[test]
fn most_weak_faults_are_named() {
    let weak: Vec<_> = cases().iter().filter(|case| case.name.ends_with("-weak")).collect();
    let wrong: Vec<_> = weak.iter().flat_map(|case| mistakes(case)).collect();
    assert_few(&wrong, weak.len() / 4);
}

#[test]
fn nothing_is_found_in_healthy_runs() {
    let wrong: Vec<_> = healthy()
        .iter()
        .flat_map(|case| {
            found_in(case)
                .into_iter()
                .map(|finding| format!("{}: {} {}", case.name, finding.id, finding.text))
        })
        .collect();
    assert_few(&wrong, 0);
}

/// The planted cost of a fault is the time by which the run would be shorter without the fault.
#[test]
fn costs_are_near_the_planted_ones() {
    let mut wrong = Vec::new();
    for case in cases().iter().filter(|case| case.name.ends_with("-middle")) {
        let truth = &case.truth[0];
        let Some((_, finding)) =
            position(&found_in(case), truth.id).map(|(at, finding)| (at, finding.cost_ns))
        else {
            continue;
        };
        let ratio = finding as f64 / truth.cost_ns as f64;
        if ids(truth.id).is_empty() && !(0.6..1.6).contains(&ratio) {
            wrong.push(format!("{}: {ratio:.2} of the planted cost", case.name));
        }
    }
    assert_few(&wrong, 0);
}

fn mistake_of_program(program: &Program, strength: u64) -> Option<String> {
    let recorded = program.record(strength, false);
    let found = findings(&recorded.done.folder, &["out.gfr".to_owned()]);
    // A pause may have two findings: one for the part of the pause that samples cover, and one for the rest of the
    // pause.
    let named = found.iter().filter(|finding| !finding.is_bad).take(2).any(|finding| {
        let gpu = program.device.is_none_or(|device| finding.text.contains(&format!("GPU {device}")));
        finding.id == program.id && gpu && finding.text.contains(program.function)
    });
    // The Linux kernel may refuse to sample. If there are no samples, these faults have no visible effect.
    let is_refused = recorded.done.stderr.contains("perf_event_open");
    (!named && !is_refused).then(|| {
        let list: Vec<_> =
            found.iter().map(|one| format!("{} {} ns {}", one.id, one.cost_ns, one.text)).collect();
        format!("{} {strength} %:\n    {}", program.id, list.join("\n    "))
    })
}

/// Runs a program up to three times, until the findings about a run have no mistakes. If the findings about every run
/// have mistakes, returns the mistakes in the findings about the last run. A single run is not enough, because on a
/// busy machine a program also waits for a processor.
fn repeated_mistake(program: &Program) -> Option<String> {
    let mut last = None;
    for _ in 0..3 {
        last = Some(mistake_of_program(program, STRENGTHS[1])?);
    }
    last
}

#[test]
fn faults_of_programs_are_named_with_their_function() {
    let wrong: Vec<_> = PROGRAMS.iter().filter_map(repeated_mistake).collect();
    assert_few(&wrong, 0);
}

/// Tests the same cases with different noise, derived from another seed. The seed of this noise is in `FAULTS_SEED`,
/// which is derived from the hash of a commit.
#[test]
#[ignore = "long: `.ci/long` runs it with the seed in FAULTS_SEED"]
fn other_runs_of_the_cases_are_named_as_well() {
    let seed = std::env::var("FAULTS_SEED").ok().and_then(|text| u64::from_str_radix(&text, 16).ok());
    let first = seed.expect("FAULTS_SEED is a hexadecimal number") % 1_000_003;
    let (mut wrong, mut all) = (Vec::new(), 0);
    for round in 0..4 {
        for case in cases().iter().filter(|case| !case.name.ends_with("-weak") && !is_exception(case)) {
            all += 1;
            wrong.extend(mistakes(&case.with_seed(case.plan.seed + first + 1_000 * round)));
        }
        for case in &healthy() {
            all += 1;
            let found = found_in(&case.with_seed(case.plan.seed + first + 1_000 * round));
            wrong.extend(
                found.into_iter().map(|finding| format!("{}: {} {}", case.name, finding.id, finding.text)),
            );
        }
    }
    assert_few(&wrong, all / 50);
}
