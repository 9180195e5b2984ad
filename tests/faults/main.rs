//! Tests runs with planted faults. The cause, the culprit and the cost of each fault are known, because the run is
//! simulated. The tests in this file check the simulated runs. The tests in `findings` check whether gpuflame finds the
//! faults.

#[path = "../support/mod.rs"]
mod support;

mod busy_streams;
mod cases;
mod findings;
mod harder;
mod hardware;
mod late_hosts;
mod list;
mod measure;
mod other_tool;
mod pictures;
mod predicted_gains;
mod programs;
mod same_figures;
mod traces;
mod training_loop;
mod withheld;

use std::collections::BTreeSet;
use std::fs;

use cases::{Case, cases, healthy};
use list::FAULTS;
use measure::{Slice, busy, impossible, is_gpu_work, length, slices};
use programs::{HEALTHY_NS, PROGRAMS, Program, STRENGTHS};
use support::command::gpuflame;
use support::scratch;
use training_loop::{Plan, SHARES, Shows};

/// Returns the slices of a run's traces, one list per rank.
fn recorded(plan: &Plan) -> Vec<Vec<Slice>> {
    let folder = scratch("faults");
    let names = plan.simulate(true).write(&folder);
    let texts = names.iter().map(|name| fs::read_to_string(folder.join(name)).unwrap());
    let ranks = texts.map(|text| slices(&text)).collect();
    fs::remove_dir_all(folder).unwrap();
    ranks
}

/// Asserts that the list `wrong`, which contains mistakes, is empty. If the list is not empty, prints its lines.
fn assert_none(wrong: &[String]) {
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// Returns whether the share `found` differs from the share `wanted` by less than a quarter of `wanted`.
fn is_near(found: f64, wanted: f64) -> bool {
    (found / wanted - 1.0).abs() < 0.25
}

fn is_data_fault(case: &Case) -> bool {
    case.plan.planted.iter().any(|planted| planted.fault.shows == Shows::Records)
}

#[test]
fn each_fault_has_three_strengths_and_a_larger_partner() {
    let mut wrong = Vec::new();
    for fault in FAULTS {
        let is_mine = |case: &&Case| {
            let planted = case.plan.planted[0].fault;
            planted.id == fault.id && planted.variety.is_empty()
        };
        let mine: Vec<_> = cases().iter().filter(is_mine).collect();
        assert_eq!(mine.len(), 4, "{}", fault.id);
        let is_right = |share, wanted| fault.shows == Shows::Records || is_near(share, wanted);
        for (case, wanted) in mine.iter().zip(SHARES) {
            if !is_right(case.truth[0].share, wanted) {
                wrong.push(format!("{}: {:.4} of the run, not {wanted}", case.name, case.truth[0].share));
            }
        }
        let [first, second] = &mine[3].truth[..] else { panic!("two faults") };
        let is_ordered = (first.id, second.id) == (fault.partner, fault.id) && first.share > 0.2;
        if !is_ordered || !is_right(second.share, SHARES[1]) {
            wrong.push(format!(
                "{}: {} {:.4} {} {:.4}",
                mine[3].name, first.id, first.share, second.id, second.share
            ));
        }
    }
    assert_none(&wrong);
}

#[test]
fn varieties_have_the_middle_strength() {
    let is_variety = |case: &&Case| !case.plan.planted[0].fault.variety.is_empty();
    let mut wrong = Vec::new();
    for case in cases().iter().filter(is_variety).filter(|case| !is_data_fault(case)) {
        if !is_near(case.truth[0].share, SHARES[1]) {
            wrong.push(format!("{}: {:.4} of the run", case.name, case.truth[0].share));
        }
    }
    assert_none(&wrong);
}

/// The cost in `truth` is the difference in duration between the runs with and without the fault. This test measures
/// the same cost in the traces of both runs. If the fault makes a GPU wait, the cost is the additional time without
/// kernels of the model. If the fault makes kernels slower, the cost is the additional time with such kernels. Without
/// the fault every GPU is always busy, so only the fault makes a GPU wait.
#[test]
fn costs_equal_sums_over_the_traces() {
    let mut wrong = Vec::new();
    for case in cases().iter().filter(|case| case.plan.planted.len() == 1) {
        let (with, without) = (recorded(&case.plan), recorded(&case.plan.without(0)));
        wrong.extend(idle_gpus(&case.name, &without));
        let (fault, cost) = (case.plan.planted[0].fault, case.truth[0].cost_ns);
        let difference = |of: &dyn Fn(&[Slice]) -> i64| of(&with[0]) - of(&without[0]);
        let longest = |ranks: &[Vec<Slice>]| ranks.iter().map(|rank| length(rank)).max().unwrap();
        assert_eq!(longest(&with) - longest(&without), cost, "{}", case.name);
        let (found, wanted) = match fault.shows {
            Shows::Idle => (difference(&|slices| length(slices) - busy(slices, 0, fault.own_kernels)), cost),
            Shows::Busy => (difference(&|slices| busy(slices, 0, fault.own_kernels)), cost),
            // GPU 0 runs the work of GPU 1 after its own work, so GPU 1 waits for twice the lost time.
            Shows::SecondIdle => (difference(&|slices| length(slices) - busy(slices, 1, None)), 2 * cost),
            Shows::Records => continue,
        };
        if !is_near(found as f64, wanted as f64) {
            wrong.push(format!("{}: {found} of {wanted} ns", case.name));
        }
    }
    assert_none(&wrong);
}

#[test]
fn records_are_missing_or_wrong_as_planted() {
    let is_alone = |case: &&Case| is_data_fault(case) && case.plan.planted.len() == 1;
    for case in cases().iter().filter(is_alone).filter(|case| case.name != "clocks_disagree-ranks") {
        let planted = case.plan.planted[0];
        let (wrong, right) = (recorded(&case.plan).remove(0), recorded(&case.plan.without(0)).remove(0));
        let kernels = |slices: &[Slice]| {
            let mut kernels: Vec<_> = slices
                .iter()
                .filter(|slice| slice.category == "kernel")
                .map(|slice| (slice.correlation.unwrap(), slice.start, slice.end - slice.start))
                .collect();
            kernels.sort_unstable();
            kernels
        };
        let (wrong, right) = (kernels(&wrong), kernels(&right));
        let is_wrong = |ns: i64| !(0..=1_000_000_000_000).contains(&ns);
        let count = match planted.fault.id {
            "launches_without_activity" => right.len() - wrong.len(),
            "impossible_times" => wrong.iter().filter(|(_, _, ns)| is_wrong(*ns)).count(),
            _ => {
                assert!(
                    wrong.iter().zip(&right).all(|(wrong, right)| right.1 - wrong.1 == planted.amount as i64)
                );
                continue;
            }
        };
        let wanted = planted.amount * right.len() as f64;
        assert!((count as f64 / wanted - 1.0).abs() < 0.5, "{}: {count} of {wanted} records", case.name);
    }
}

/// Each trace is possible on a GPU: the work of a stream is in order, kernels start after their launches, and a wait
/// lasts at least as long as the work for which it waits.
#[test]
fn runs_are_physically_possible() {
    let mut wrong = Vec::new();
    for case in cases().iter().filter(|case| !is_data_fault(case)).chain(&healthy()) {
        for slices in recorded(&case.plan) {
            assert!(slices.iter().any(is_gpu_work));
            wrong.extend(impossible(&slices).first().map(|first| format!("{}: {first}", case.name)));
        }
    }
    assert_none(&wrong);
}

#[test]
fn traces_are_small_and_only_planted_damage_is_bad() {
    let mut wrong = Vec::new();
    for case in cases().iter().chain(&healthy()) {
        let folder = scratch("faults");
        for name in case.write(&folder) {
            let size = fs::metadata(folder.join(&name)).unwrap().len();
            if size >= 2_000_000 {
                wrong.push(format!("{}: {size} bytes", case.name));
            }
            if case.name.contains("-middle") || case.truth.is_empty() {
                let info = gpuflame(&folder, ["info", &name]).ok().stdout;
                assert!(info.contains("a JSON trace (Chrome, Kineto)"), "{}:\n{info}", case.name);
            }
            let check = gpuflame(&folder, ["check", &name]).ok().stdout;
            let bad: Vec<_> = check.lines().filter(|line| line.starts_with("BAD")).collect();
            if !is_data_fault(case) && !bad.is_empty() {
                wrong.push(format!("{}: {bad:?}", case.name));
            }
        }
        fs::remove_dir_all(folder).unwrap();
    }
    assert_none(&wrong);
}

#[test]
fn another_seed_changes_the_times_and_not_the_truth() {
    let mut wrong = Vec::new();
    for case in cases().iter().filter(|case| case.name.ends_with("-middle")) {
        let other = case.with_seed(case.plan.seed + 7_000);
        assert_ne!(other.plan.length_ns(), case.plan.length_ns(), "{}", case.name);
        let (one, two) = (&case.truth[0], &other.truth[0]);
        assert_eq!((one.id, one.culprit), (two.id, two.culprit));
        if one.cost_ns != two.cost_ns && !is_near(one.share, two.share) {
            wrong.push(format!("{}: {:.4} and {:.4} of the run", case.name, one.share, two.share));
        }
    }
    assert_none(&wrong);
}

#[test]
fn the_clock_of_one_rank_is_ahead() {
    let case = cases().iter().find(|case| case.name == "clocks_disagree-ranks").unwrap();
    let (with, without) = (recorded(&case.plan), recorded(&case.plan.without(0)));
    for (rank, ns) in [(0, 0), (1, 5_000_000)] {
        let mut pairs = with[rank].iter().zip(&without[rank]).filter(|(slice, _)| slice.category != "Trace");
        assert!(pairs.all(|(late, slice)| late.start - slice.start == ns && late.end - slice.end == ns));
    }
}

/// Returns, for each GPU, the share of the time from its first to its last kernel in which the GPU is busy.
fn busy_shares(slices: &[Slice]) -> Vec<f64> {
    let kernels: Vec<_> = slices.iter().filter(|slice| slice.category == "kernel").collect();
    let devices: BTreeSet<_> = kernels.iter().map(|slice| slice.place.0).collect();
    let share = |device: u64| {
        let kernels = || kernels.iter().filter(|slice| slice.place.0 == device);
        let start = kernels().map(|slice| slice.start).min().unwrap();
        let end = kernels().map(|slice| slice.end).max().unwrap();
        busy(slices, device, None) as f64 / (end - start) as f64
    };
    devices.into_iter().map(share).collect()
}

/// Describes the ranks whose GPU is busy for less than 95 % of the time.
fn idle_gpus(name: &str, ranks: &[Vec<Slice>]) -> Vec<String> {
    let shares = ranks.iter().map(|slices| busy_shares(slices)).enumerate();
    let idle = shares.filter(|(_, shares)| shares.iter().any(|share| *share < 0.95));
    idle.map(|(rank, shares)| format!("{name} rank {rank}: work in {shares:.3?} of the run")).collect()
}

#[test]
fn healthy_runs_keep_their_gpus_busy() {
    let runs = healthy();
    assert!(runs.len() >= 12 && runs.iter().all(|case| case.truth.is_empty()));
    let wrong: Vec<_> = runs.iter().flat_map(|case| idle_gpus(&case.name, &recorded(&case.plan))).collect();
    assert_none(&wrong);
}

/// Asserts that each fault costs the planted share of the run. The costs are from the truth file of the simulated CUDA
/// stack.
fn assert_costs(programs: &[Program]) {
    let mut wrong = Vec::new();
    for program in programs {
        // In a run without the fault, the program has no threads that compete with the launching thread for a
        // processor. If the launching thread waited for a processor in such a run, programs other than this one were
        // using the processors.
        let right = program.record(STRENGTHS[1], true);
        let mut costs = vec![right.cost_ns.saturating_sub(right.waited_ns)];
        for percent in STRENGTHS {
            let recorded = program.record(percent, false);
            let (cost, wanted) = (recorded.cost_ns as f64, (HEALTHY_NS * percent / (100 - percent)) as f64);
            costs.push(recorded.cost_ns);
            let is_right = match program.is_exact() {
                true => is_near(cost, wanted),
                // The cost of a starved thread depends on how the operating system divides the processor between
                // threads.
                false => program.id == "starved_thread" || cost > wanted * 0.75,
            };
            let check = gpuflame(&recorded.done.folder, ["check", "out.gfr"]).ok().stdout;
            if !is_right || check.contains("\nBAD") || !program.is_named(&recorded.done) {
                wrong.push(format!("{} {percent} %: {cost} of {wanted} ns\n{check}", program.id));
            }
        }
        assert!(program.line() > 1);
        if costs[0] > costs[3] / 2 {
            wrong.push(format!("{}: {costs:?} ns", program.id));
        }
    }
    assert_none(&wrong);
}

#[test]
fn programs_have_the_planted_cost() {
    assert_costs(&PROGRAMS[..PROGRAMS.len() / 2]);
}

#[test]
fn further_programs_have_the_planted_cost() {
    assert_costs(&PROGRAMS[PROGRAMS.len() / 2..]);
}

#[test]
fn programs_have_a_larger_cost_next_to_the_fault() {
    for program in PROGRAMS.iter().filter(|program| program.partner.is_some()) {
        let recorded = program.record_combined();
        assert!(is_near(recorded.lengthened_ns as f64, (HEALTHY_NS * 40 / 60) as f64), "{}", program.id);
        // If the launching thread waited for a processor, usually programs other than this one were using the
        // processors, so the wait is not part of the fault's cost. Only in the case `starved_thread` is this wait the
        // fault. The cost of `starved_thread` depends on how the operating system divides the processor between
        // threads.
        let cost_ns = recorded.cost_ns.saturating_sub(recorded.waited_ns);
        let is_smaller = program.id == "starved_thread" || cost_ns < recorded.lengthened_ns;
        assert!(recorded.cost_ns > 0 && is_smaller, "{}: {} ns", program.id, recorded.cost_ns);
    }
}

/// There are 26 faults. Two faults are visible only in a program that gpuflame records, not in a trace.
#[test]
fn the_list_is_complete() {
    let in_traces: BTreeSet<_> = FAULTS.iter().map(|fault| fault.id).collect();
    let in_programs: BTreeSet<_> = PROGRAMS.iter().map(|program| program.id).collect();
    assert_eq!((in_traces.len(), in_traces.union(&in_programs).count()), (24, 26));
    assert!(PROGRAMS.iter().all(|program| in_traces.contains(program.id) || program.partner.is_some()));
}

#[test]
#[ignore = "writes all traces and recordings into the folder that FAULTS_FOLDER names"]
fn write_all_cases() {
    let folder = std::env::var_os("FAULTS_FOLDER")
        .map(std::path::PathBuf::from)
        .expect("FAULTS_FOLDER names a folder");
    for case in cases().iter().chain(&healthy()) {
        let folder = folder.join(&case.name);
        fs::create_dir_all(&folder).unwrap();
        case.write(&folder);
        fs::write(folder.join("truth.txt"), format!("{:#?}\n", case.truth)).unwrap();
    }
    for (program, percent) in PROGRAMS.iter().flat_map(|program| STRENGTHS.map(|percent| (program, percent)))
    {
        let Program { id, function, device, .. } = program;
        let recorded = program.record(percent, false);
        let folder = folder.join(format!("program-{id}-{percent}"));
        fs::create_dir_all(&folder).unwrap();
        fs::copy(recorded.done.folder.join("out.gfr"), folder.join("out.gfr")).unwrap();
        let truth = format!(
            "{id}: {function} (faults.c:{}), device {device:?}, {} ns",
            program.line(),
            recorded.cost_ns
        );
        fs::write(folder.join("truth.txt"), truth + "\n").unwrap();
    }
}
