//! Finds which rank came last to each collective.
//!
//! In a collective, all other ranks wait for the rank that comes last, and the kernel of this rank starts last. The
//! start times of two ranks can be compared only if both ranks used the same clock. The kernels of a collective show
//! whether two ranks used the same clock. No rank leaves a collective before the last rank has entered it, and the data
//! reaches all ranks within microseconds. If the ranks use one clock, the kernels of a collective therefore end at the
//! same time on every rank. Kernels with the same name are paired across ranks: the n-th kernel on one rank with the
//! n-th kernel on every other rank. If the ends of paired kernels are more than [`MAX_END_SPREAD_NS`] apart, the
//! kernels do not belong to one collective, or the clocks of the ranks differ. If the ends of paired kernels do not fit
//! together, the rank that came last is reported as unknown.
//!
//! The ranks whose kernels end at the same time are assumed to be the participants of one collective. The trace need
//! not name process groups, because the ends of the kernels show which ranks form a group.

use std::collections::{BTreeMap, BTreeSet};

/// Maximum time in ns between the ends of a collective's kernels on two ranks.
const MAX_END_SPREAD_NS: i64 = 50_000;
/// The last rank counts as late only if it arrives at least this many ns after the second last rank. Shorter delays are
/// ignored, because many traces round times to whole microseconds.
const MIN_LATENESS_NS: i64 = 1_000;
/// Minimum percentage of kernels with one name whose end must coincide with the end of a kernel on another rank.
const MIN_MATCHED_PERCENT: usize = 90;

/// A kernel that moves data between ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CollectiveKernel {
    /// Start of the kernel, in ns.
    pub start: i64,
    /// End of the kernel, in ns.
    pub end: i64,
    /// Index of the GPU that ran the kernel.
    pub device: u32,
}

/// Kernels of a rank, grouped by name and sorted by start.
pub type CollectiveKernels = BTreeMap<String, Vec<CollectiveKernel>>;

/// Adds `shift` (in ns) to the start and end of all kernels.
pub fn shift_collectives(kernels: &mut CollectiveKernels, shift: i64) {
    for kernel in kernels.values_mut().flatten() {
        (kernel.start, kernel.end) = (kernel.start.saturating_add(shift), kernel.end.saturating_add(shift));
    }
}

/// Number of collectives to which a rank came last, and the time for which the other ranks waited for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lateness {
    /// Number of collectives to which the rank came last.
    pub count: u64,
    /// Total time in ns by which this rank came after the second last rank.
    pub behind_next: u64,
    /// Total time in ns that the other ranks waited for this rank.
    pub others_waited: u64,
}

/// Arrivals at the collectives that have the same kernel name and the same participating ranks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arrivals {
    /// Number of collectives.
    pub count: u64,
    /// Lateness of the ranks that came last to at least one collective. A rank counts as last only if its delay after
    /// the second last rank is large enough. The delay must exceed both the minimum lateness and the time from the
    /// first to the last end of the collective's kernels.
    pub late: BTreeMap<u32, Lateness>,
}

/// Reason why it is unknown which rank came last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotComparable {
    /// Two ranks ran different numbers of kernels. Each field is the pair (rank, number of kernels) of one of these
    /// ranks.
    Counts((u32, u64), (u32, u64)),
    /// The ends of paired kernels on two ranks are too far apart. The fields are the two ranks and the median
    /// difference between the ends in ns.
    Ends(u32, u32, u64),
    /// The rank ran the kernels of this name on several GPUs.
    SeveralGpus(u32),
}

/// The ranks that came last to the collectives with one kernel name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CollectiveArrivals {
    /// Arrivals for each set of participating ranks, the most frequent set first.
    Known(Vec<(BTreeSet<u32>, Arrivals)>),
    /// Reason why it is unknown which rank came last to the collectives.
    Unknown(NotComparable),
}

/// Compares the arrivals of the ranks for each kernel name. Kernel names that occur on only one rank are omitted. A
/// rank counts as late only if it came after the second last rank by more than `clock_error`, in ns.
pub fn compare_arrivals(
    ranks: &BTreeMap<u32, CollectiveKernels>,
    clock_error: i64,
) -> BTreeMap<String, CollectiveArrivals> {
    let min_lateness = clock_error.max(MIN_LATENESS_NS);
    let names: BTreeSet<&String> = ranks.values().flat_map(BTreeMap::keys).collect();
    let compared = names.into_iter().filter_map(|name| {
        let with = ranks.iter().filter_map(|(rank, kernels)| Some((*rank, kernels.get(name)?.as_slice())));
        let with: Vec<(u32, &[CollectiveKernel])> = with.filter(|(_, kernels)| !kernels.is_empty()).collect();
        (with.len() > 1).then(|| (name.clone(), compare_name(&with, min_lateness)))
    });
    compared.collect()
}

fn compare_name(ranks: &[(u32, &[CollectiveKernel])], min_lateness: i64) -> CollectiveArrivals {
    let unknown = CollectiveArrivals::Unknown;
    let has_several =
        |kernels: &[CollectiveKernel]| kernels.iter().any(|one| one.device != kernels[0].device);
    if let Some((rank, _)) = ranks.iter().find(|(_, kernels)| has_several(kernels)) {
        return unknown(NotComparable::SeveralGpus(*rank));
    }
    let count = |(rank, kernels): &(u32, &[CollectiveKernel])| (*rank, kernels.len() as u64);
    if let Some(other) = ranks.iter().find(|(_, kernels)| kernels.len() != ranks[0].1.len()) {
        return unknown(NotComparable::Counts(count(&ranks[0]), count(other)));
    }
    let all = ranks[0].1.len();
    let (mut matched, mut sets) = (0, BTreeMap::<BTreeSet<u32>, Arrivals>::new());
    for at in 0..all {
        let mut kernels: Vec<(u32, CollectiveKernel)> =
            ranks.iter().map(|(rank, kernels)| (*rank, kernels[at])).collect();
        kernels.sort_by_key(|(rank, kernel)| (kernel.end, *rank));
        let end_together = |one: &(u32, CollectiveKernel), next: &(u32, CollectiveKernel)| {
            next.1.end.saturating_sub(one.1.end) <= MAX_END_SPREAD_NS
        };
        for together in kernels.chunk_by(end_together).filter(|together| together.len() > 1) {
            matched += together.len();
            let set = together.iter().map(|(rank, _)| *rank).collect();
            sets.entry(set).or_default().add(together, min_lateness);
        }
    }
    if matched * 100 < all * ranks.len() * MIN_MATCHED_PERCENT {
        return unknown(most_different(ranks));
    }
    let mut sets: Vec<_> = sets.into_iter().collect();
    sets.sort_by(|a, b| b.1.count.cmp(&a.1.count).then_with(|| a.0.cmp(&b.0)));
    CollectiveArrivals::Known(sets)
}

impl Arrivals {
    fn add(&mut self, kernels: &[(u32, CollectiveKernel)], min_lateness: i64) {
        self.count += 1;
        let ends = kernels.iter().map(|(_, kernel)| kernel.end);
        let spread = ends.clone().max().unwrap_or(0).saturating_sub(ends.min().unwrap_or(0));
        let mut starts: Vec<(i64, u32)> =
            kernels.iter().map(|(rank, kernel)| (kernel.start, *rank)).collect();
        starts.sort_unstable();
        let [.., (second, _), (last, rank)] = starts[..] else { return };
        let behind = last.saturating_sub(second);
        if behind <= spread.max(min_lateness) {
            return;
        }
        let late = self.late.entry(rank).or_default();
        late.count += 1;
        late.behind_next = late.behind_next.saturating_add(behind.unsigned_abs());
        for (start, _) in starts {
            late.others_waited = late.others_waited.saturating_add(last.saturating_sub(start).unsigned_abs());
        }
    }
}

/// Returns the two ranks whose kernel ends differ most. For each rank, the median difference from the kernel ends of
/// the first rank is used.
fn most_different(ranks: &[(u32, &[CollectiveKernel])]) -> NotComparable {
    let median = |kernels: &[CollectiveKernel]| {
        let ends = kernels.iter().zip(ranks[0].1);
        let mut differences: Vec<i64> = ends.map(|(one, first)| one.end.saturating_sub(first.end)).collect();
        differences.sort_unstable();
        differences[differences.len() / 2]
    };
    let mut offsets: Vec<(i64, u32)> = ranks.iter().map(|(rank, kernels)| (median(kernels), *rank)).collect();
    offsets.sort_unstable();
    let (first, last) = (offsets[0], offsets[offsets.len() - 1]);
    NotComparable::Ends(first.1, last.1, last.0.saturating_sub(first.0).unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kernels of one rank, each as (start, end) in us.
    fn rank(kernels: &[(i64, i64)]) -> CollectiveKernels {
        let kernel =
            |&(start, end): &(i64, i64)| CollectiveKernel { start: start * 1000, end: end * 1000, device: 0 };
        [("all".to_owned(), kernels.iter().map(kernel).collect())].into()
    }

    fn compare(ranks: &[&[(i64, i64)]]) -> CollectiveArrivals {
        let ranks = (0..).zip(ranks.iter().map(|kernels| rank(kernels))).collect();
        compare_arrivals(&ranks, 0).remove("all").expect("two ranks have it")
    }

    /// A rank that came last, as four values. The first two values are the rank and how often it came last. The third
    /// value is the total time in us by which the rank came after the second last rank. The fourth value is the total
    /// time in us that the other ranks waited.
    type Late = (u32, u64, u64, u64);

    /// Returns the ranks, the number of collectives and the ranks that came last.
    fn known(arrivals: CollectiveArrivals) -> Vec<(Vec<u32>, u64, Vec<Late>)> {
        let CollectiveArrivals::Known(sets) = arrivals else { panic!("{arrivals:?}") };
        let late = |(rank, late): (&u32, &Lateness)| {
            (*rank, late.count, late.behind_next / 1000, late.others_waited / 1000)
        };
        sets.iter()
            .map(|(set, all)| (set.iter().copied().collect(), all.count, all.late.iter().map(late).collect()))
            .collect()
    }

    #[test]
    fn the_rank_that_starts_last_is_counted_with_its_delay_and_the_wait_of_other_ranks() {
        // In the first collective, rank 2 comes 30 us after rank 0 and 50 us after rank 1. In the second collective,
        // rank 0 comes last. In the third collective, no rank is clearly last, because the ends of the kernels differ
        // by 3 us.
        let arrivals = compare(&[
            &[(20, 60), (190, 200), (300, 321)],
            &[(0, 60), (100, 201), (301, 320)],
            &[(50, 61), (110, 200), (303, 323)],
        ]);
        assert_eq!(known(arrivals), [(vec![0, 1, 2], 3, vec![(0, 1, 80, 170), (2, 1, 30, 80)])]);
    }

    #[test]
    fn ranks_whose_kernels_end_together_are_one_process_group() {
        // Ranks 0 and 1 form one process group, and ranks 2 and 3 form another process group.
        let arrivals = compare(&[
            &[(0, 100), (1000, 1100)],
            &[(90, 100), (1090, 1100)],
            &[(400, 500), (1400, 1500)],
            &[(410, 500), (1490, 1500)],
        ]);
        let expected = [(vec![0, 1], 2, vec![(1, 2, 180, 180)]), (vec![2, 3], 2, vec![(3, 2, 100, 100)])];
        assert_eq!(known(arrivals), expected);
    }

    #[test]
    fn clocks_apart_and_different_numbers_of_kernels_give_no_answer() {
        let apart = compare(&[&[(0, 100), (200, 300)], &[(7000, 7090), (7200, 7291)]]);
        assert_eq!(apart, CollectiveArrivals::Unknown(NotComparable::Ends(0, 1, 6_991_000)));
        let counts = compare(&[&[(0, 100)], &[(0, 100), (200, 300)]]);
        assert_eq!(counts, CollectiveArrivals::Unknown(NotComparable::Counts((0, 1), (1, 2))));
        let mut two = rank(&[(0, 100), (50, 100)]);
        two.get_mut("all").unwrap()[1].device = 1;
        let compared = compare_arrivals(&[(0, two), (1, rank(&[(0, 100), (0, 100)]))].into(), 0);
        assert_eq!(compared["all"], CollectiveArrivals::Unknown(NotComparable::SeveralGpus(0)));
        assert!(
            compare_arrivals(&[(0, rank(&[(0, 100)])), (1, CollectiveKernels::new())].into(), 0).is_empty()
        );
    }

    #[test]
    fn extreme_times_stop_nothing() {
        let extremes = [(i64::MIN, i64::MAX), (i64::MAX, i64::MIN)];
        let kernel = |&(start, end): &(i64, i64)| CollectiveKernel { start, end, device: 0 };
        let kernels: CollectiveKernels = [("all".to_owned(), extremes.iter().map(kernel).collect())].into();
        let ranks = [(0, kernels.clone()), (1, kernels), (2, rank(&[(0, 1), (2, 3)]))].into();
        assert_eq!(compare_arrivals(&ranks, 0).len(), 1);
    }
}
