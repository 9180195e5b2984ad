//! Finds the part of the communication time in which ranks only wait for the last rank to enter a collective.
//!
//! No rank leaves a collective before the last rank has entered it. After the last rank has entered a collective, all
//! ranks leave the collective together. So the rank that entered last has the shortest kernel, and the duration of this
//! kernel is the transfer time. On every other rank, the part of the kernel's duration that exceeds the transfer time
//! is waiting time. Waiting times are computed by comparing durations, so the clocks of the ranks may differ. The end
//! times of kernels are used only to find out which kernels belong to one collective.

use std::collections::BTreeSet;

use super::super::arrivals::{CollectiveKernel, CollectiveKernels};
use super::super::communication::WorkClass;
use super::clocks::clock_offset;
use super::thresholds::MIN_RANK_CLOCK_NS;

/// Maximum difference in ns between the ends of a collective's kernels on two ranks. The ends are converted to a common
/// clock before they are compared.
const MAX_END_SPREAD_NS: i64 = 50_000;
/// Minimum percentage of the kernels with one name that must be matched to a kernel on other ranks.
const MIN_MATCHED_PERCENT: usize = 90;

/// A time range as (start, end), in ns.
pub(super) type Span = (i64, i64);

/// Communication of a rank: the rank's collectives, and the periods in which the rank communicated but did not compute.
pub(super) type RankCommunication<'a> = (&'a CollectiveKernels, &'a [Span]);

/// For each rank, returns the total time in ns in which the rank waited in collectives and did not compute. Returns
/// `None` if there are no collectives, or if the collectives of the ranks cannot be matched to each other.
pub(super) fn exposed_waits(ranks: &[RankCommunication<'_>]) -> Option<Vec<u64>> {
    let (first, _) = ranks.first()?;
    let mut waits: Vec<Vec<Span>> = vec![Vec::new(); ranks.len()];
    let mut transfers = waits.clone();
    let clocks = ranks.iter().map(|(rank, _)| {
        let offset = clock_offset(first, rank).unwrap_or(0);
        if offset.unsigned_abs() >= MIN_RANK_CLOCK_NS { offset } else { 0 }
    });
    let clocks: Vec<i64> = clocks.collect();
    let names: BTreeSet<&String> = ranks.iter().flat_map(|(kernels, _)| kernels.keys()).collect();
    if names.is_empty() {
        return None;
    }
    for name in names {
        let of_ranks = ranks.iter().enumerate();
        let with: Vec<(usize, &[CollectiveKernel])> = of_ranks
            .filter_map(|(at, (kernels, _))| Some((at, kernels.get(name)?.as_slice())))
            .filter(|(_, kernels)| !kernels.is_empty())
            .collect();
        let count = with.first().map_or(0, |(_, kernels)| kernels.len());
        let mut matched = 0;
        for number in 0..count {
            let kernels = with.iter().filter_map(|(at, kernels)| Some((*at, *kernels.get(number)?)));
            let mut kernels: Vec<(usize, CollectiveKernel)> = kernels.collect();
            let end = |(at, kernel): &(usize, CollectiveKernel)| kernel.end.saturating_sub(clocks[*at]);
            kernels.sort_by_key(end);
            let end_together = |one: &(usize, CollectiveKernel), next: &(usize, CollectiveKernel)| {
                end(next).saturating_sub(end(one)) <= MAX_END_SPREAD_NS
            };
            for together in kernels.chunk_by(end_together).filter(|together| together.len() > 1) {
                matched += together.len();
                let durations = together.iter().map(|(_, kernel)| kernel.end.saturating_sub(kernel.start));
                let transfer = durations.min().unwrap_or(0).max(0);
                for (at, kernel) in together {
                    let entered = kernel.end.saturating_sub(transfer);
                    waits[*at].push((kernel.start, entered));
                    transfers[*at].push((entered, kernel.end));
                }
            }
        }
        let is_equal = with.iter().all(|(_, kernels)| kernels.len() == count);
        let is_one_gpu =
            with.iter().all(|(_, kernels)| kernels.iter().all(|one| one.device == kernels[0].device));
        if !is_equal || !is_one_gpu || matched * 100 < count * with.len() * MIN_MATCHED_PERCENT {
            return None;
        }
    }
    let exposed = ranks.iter().zip(waits).zip(transfers);
    let sum = |spans: Vec<Span>| spans.iter().map(|(start, end)| end.abs_diff(*start)).sum();
    Some(
        exposed
            .map(|(((_, exposed), waits), transfers)| {
                sum(common(exposed, &without(&union(waits), &union(transfers))))
            })
            .collect(),
    )
}

/// Returns the periods in which a GPU communicated but did not compute. `work` contains the GPU's operations as (start,
/// end, class).
pub(super) fn exposed_spans(work: impl Iterator<Item = (i64, i64, WorkClass)>) -> Vec<Span> {
    let (mut communication, mut computation) = (Vec::new(), Vec::new());
    for (start, end, class) in work {
        match class {
            WorkClass::Communication => communication.push((start, end)),
            WorkClass::Computation => computation.push((start, end)),
            WorkClass::Memory => {}
        }
    }
    without(&union(communication), &union(computation))
}

/// Returns the union of periods, as disjoint periods sorted by start.
fn union(mut spans: Vec<Span>) -> Vec<Span> {
    spans.sort_unstable();
    let mut joined: Vec<Span> = Vec::new();
    for (start, end) in spans.into_iter().filter(|(start, end)| start < end) {
        match joined.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => joined.push((start, end)),
        }
    }
    joined
}

/// Returns the parts of `spans` that are not in `others`. In each list, the periods must be disjoint and sorted.
fn without(spans: &[Span], others: &[Span]) -> Vec<Span> {
    let (mut left, mut first) = (Vec::new(), 0);
    for &(mut start, end) in spans {
        while others.get(first).is_some_and(|other| other.1 <= start) {
            first += 1;
        }
        for other in others[first..].iter().take_while(|other| other.0 < end) {
            if other.0 > start {
                left.push((start, other.0));
            }
            start = start.max(other.1);
        }
        if start < end {
            left.push((start, end));
        }
    }
    left
}

/// Returns the periods that are in both lists. In each list, the periods must be disjoint and sorted.
fn common(spans: &[Span], others: &[Span]) -> Vec<Span> {
    without(spans, &without(spans, others))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periods_are_joined_and_subtracted() {
        let all = union(vec![(50, 60), (0, 10), (5, 20), (20, 30), (40, 40)]);
        assert_eq!(all, [(0, 30), (50, 60)]);
        let others = [(-5, 3), (8, 10), (25, 52), (59, 99)];
        assert_eq!(without(&all, &others), [(3, 8), (10, 25), (52, 59)]);
        assert_eq!(common(&all, &others), [(0, 3), (8, 10), (25, 30), (50, 52), (59, 60)]);
        assert_eq!(without(&all, &[]), all);
        assert!(without(&[], &others).is_empty() && common(&all, &[]).is_empty());
    }

    #[test]
    fn exposed_time_is_communication_without_computation() {
        use WorkClass::{Communication, Computation, Memory};
        let work = [(0, 10, Computation), (5, 20, Communication), (12, 14, Computation), (15, 18, Memory)];
        assert_eq!(exposed_spans(work.into_iter()), [(10, 12), (14, 20)]);
    }
}
