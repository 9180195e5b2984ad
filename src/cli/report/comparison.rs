//! Describes the differences between a run and an older run.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use gpuflame_export::percent;
use gpuflame_model::profile::{format_nanos, saturating_sum};
use gpuflame_offline::analysis::{Durations, Finding, Severity};

use super::super::measured_part::MeasuredPart;
use super::bars::DeviceBar;
use super::job::Job;

/// Durations of one kernel, copy direction or fill in both runs.
#[derive(Clone, Copy)]
pub(super) struct KernelChange<'a> {
    pub(super) name: &'a str,
    pub(super) before: Durations,
    pub(super) now: Durations,
}

/// Returns the kernels, copies and fills whose count or time differs between the runs, sorted by the difference in
/// time, largest first.
pub(super) fn kernel_changes<'a>(job: &'a Job, old: &'a Job) -> Vec<KernelChange<'a>> {
    let names: BTreeSet<&String> = job.work.kernels.keys().chain(old.work.kernels.keys()).collect();
    let durations =
        |of: &Job, name: &String| of.work.kernels.get(name).map_or(Durations::default(), |row| row.durations);
    let mut all: Vec<KernelChange<'_>> = names
        .into_iter()
        .map(|name| KernelChange { name, before: durations(old, name), now: durations(job, name) })
        .filter(|change| (change.before.count, change.before.nanos) != (change.now.count, change.now.nanos))
        .collect();
    all.sort_by_key(|change| (Reverse(change.before.nanos.abs_diff(change.now.nanos)), change.name));
    all
}

/// Returns the sentences about the changes of length, busy share, GPU work and findings since the older run.
pub(super) fn sentences(job: &Job, old: &Job) -> Vec<String> {
    let busy = |of: &Job| {
        let bars = || of.ranks.iter().flat_map(|rank| &rank.bars);
        let sum = |part: fn(&DeviceBar) -> u64| saturating_sum(bars().map(part));
        percent(sum(|bar| bar.busy), sum(|bar| bar.window))
    };
    let busy_words = || match [job, old].iter().all(|of| of.ranks.iter().all(|rank| !rank.bars.is_empty())) {
        true => format!("GPUs busy {:.1} %, before {:.1} %; ", busy(job), busy(old)),
        false => String::new(),
    };
    let work = |of: &Job| saturating_sum(of.work.kernels.values().map(|row| row.nanos));
    let title = old.title();
    let mut all = vec![format!(
        "compared with {title}: {}; {}GPU work {}",
        lengths(job.part, old.part),
        busy_words(),
        with_change(work(job), work(old))
    )];
    let steps = |of: &Job| saturating_sum(of.ranks.iter().map(|rank| rank.step_count));
    if let (now @ 1.., before @ 1..) = (steps(job), steps(old))
        && now != before
    {
        all.push(format!(
            "{now} steps were recorded, before {before}; GPU work of a step {}",
            with_change(work(job) / now, work(old) / before)
        ));
    }
    let costs = |of: &Job| -> BTreeSet<&'static str> {
        of.findings.iter().filter(is_cost).map(|finding| finding.id).collect()
    };
    let (now, before) = (costs(job), costs(old));
    for (ids, words) in [(&now - &before, "new findings"), (&before - &now, "findings that are gone")] {
        if !ids.is_empty() {
            let ids: Vec<&str> = ids.into_iter().collect();
            all.push(format!("{words}: {}", ids.join(", ")));
        }
    }
    all
}

fn is_cost(finding: &&Finding) -> bool {
    finding.severity == Severity::Cost
}

/// Returns the lengths of the measured parts of both runs, in words. The text includes the change in length if both
/// measured parts are of the same kind.
fn lengths(now: MeasuredPart, before: MeasuredPart) -> String {
    match now.name() == before.name() {
        true => format!("length {}", with_change(now.nanos, before.nanos)),
        false => format!(
            "length {} of {}, before {} of {}",
            format_nanos(now.nanos),
            now.name(),
            format_nanos(before.nanos),
            before.name()
        ),
    }
}

/// Returns a duration with its change since the older run: `12.000 ms, before 10.000 ms (+20.0 %)`.
fn with_change(now: u64, before: u64) -> String {
    let change = match before {
        0 => String::new(),
        _ => format!(" ({:+.1} %)", 100.0 * (now as f64 - before as f64) / before as f64),
    };
    format!("{}, before {}{change}", format_nanos(now), format_nanos(before))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_has_a_sign() {
        assert_eq!(with_change(12_000_000, 10_000_000), "12.000 ms, before 10.000 ms (+20.0 %)");
        assert_eq!(with_change(5_000, 10_000), "5.000 us, before 10.000 us (-50.0 %)");
        assert_eq!(with_change(5_000, 0), "5.000 us, before 0 ns");
    }
}
