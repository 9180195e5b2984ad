//! Finds the straggler of a job. The straggler is the rank for which the other ranks wait.
//!
//! The rank that enters a collective last does not wait, and all other ranks wait for it. A rank may be last because
//! its GPU had more work or because its CPU launched late. Waiting counts as communication time, so the straggler is
//! the rank with the least communication time. If not all ranks communicate, the straggler is the rank with the most
//! work. A rank is reported only if its steps differ significantly from the steps of the other ranks, with at least ten
//! steps on each side. Step durations are compared by their positions in sorted order. Sums of step durations are not
//! compared, because the first step would dominate a sum: in the first step, a rank may wait longer for the straggler
//! than in all later steps together. Clocks of different ranks are never compared.

use super::communication::CommunicationFilter;
use super::mann_whitney::{differ_at_one_percent, mean_positions};
use gpuflame_model::profile::{StepGroup, StepSeries, add_to};
use gpuflame_model::record::Work;

/// GPU time of a rank, split into work and communication.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RankTime {
    /// Total time of all GPU work except communication, in ns.
    pub work: u64,
    /// Total time of kernels that move data between ranks, in ns. Most of the communication time is waiting time.
    pub communication: u64,
    /// Durations of work and of communication in each step.
    pub steps: StepTimes,
}

/// Durations of work and of communication in each step of a rank.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepTimes {
    /// Durations of work other than communication, one per step, in ns.
    pub work: Vec<u64>,
    /// Durations of communication, one per step, in ns.
    pub communication: Vec<u64>,
}

/// Minimum number of steps on each side of a comparison.
const MIN_STEPS: usize = 10;

impl RankTime {
    /// Adds the steps of a run. In a run with thousands of steps, the steps are in groups. For each group of steps, the
    /// average of the group is added once.
    pub fn add_steps(&mut self, series: &StepSeries) {
        let steps = |group: &StepGroup| group.steps.max(1);
        self.steps.work.extend(series.groups.iter().map(|group| group.work / steps(group)));
        let communication = |group: &StepGroup| group.communication / steps(group);
        self.steps.communication.extend(series.groups.iter().map(communication));
    }

    /// Adds each window in `windows`, given as (start, end), as a step. Each operation in `ops` is given as (start,
    /// duration, whether the operation communicates).
    pub fn add_windows(&mut self, ops: &mut [(u64, u64, bool)], windows: &[(u64, u64)]) {
        ops.sort_unstable();
        for &(begin, end) in windows {
            let first = ops.partition_point(|op| op.0 < begin);
            let (mut work, mut communication) = (0, 0);
            for &(_, nanos, communicates) in ops[first..].iter().take_while(|op| op.0 < end) {
                add_to(if communicates { &mut communication } else { &mut work }, nanos);
            }
            self.steps.work.push(work);
            self.steps.communication.push(communication);
        }
    }

    /// Adds the times from another window or another process of this rank.
    pub fn merge(&mut self, mut other: Self) {
        add_to(&mut self.work, other.work);
        add_to(&mut self.communication, other.communication);
        self.steps.work.append(&mut other.steps.work);
        self.steps.communication.append(&mut other.steps.communication);
    }

    /// Adds `nanos` ns of GPU time that the operation `work` with the name `name` took.
    pub fn add(&mut self, work: Work, name: &str, nanos: u64) {
        let is_communication = CommunicationFilter::default().is_communication(work, name);
        add_to(if is_communication { &mut self.communication } else { &mut self.work }, nanos);
    }
}

/// Result of comparing one rank with the other ranks of the job.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RankComparison {
    /// Difference in percent between this rank and the median of all ranks, in communication time or in work time. The
    /// difference is `None` if the median is 0.
    pub to_median_percent: Option<f64>,
    /// Whether the rank is the straggler, and why.
    pub verdict: StragglerVerdict,
}

/// Result of the comparison for one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StragglerVerdict {
    /// The rank is not the straggler.
    NotStraggler,
    /// The rank is the straggler by communication time. A rank for which the other ranks wait has the shortest
    /// communication time.
    OthersWait,
    /// The rank is the straggler by work time. The rank has the most work. Work times are compared if some ranks do not
    /// communicate.
    MostWork,
    /// The rank is the straggler by communication or work time, but the difference may be chance, or there are too few
    /// steps.
    Unsure,
}

impl StragglerVerdict {
    /// Returns the text with which reports mark the rank.
    pub fn mark(self) -> &'static str {
        match self {
            Self::NotStraggler | Self::Unsure => "",
            Self::OthersWait => "<- others wait for it",
            Self::MostWork => "<- most work",
        }
    }
}

/// Compares the ranks of a job. The returned list is in the order of `ranks`.
pub fn compare_ranks(ranks: &[&RankTime]) -> Vec<RankComparison> {
    let all_communicate = ranks.iter().all(|rank| rank.communication > 0);
    let compared = |rank: &RankTime| if all_communicate { rank.communication } else { rank.work };
    let totals: Vec<u64> = ranks.iter().map(|rank| compared(rank)).collect();
    let (Some(&min), Some(&max)) = (totals.iter().min(), totals.iter().max()) else { return Vec::new() };
    let median_total = median(&totals);
    let steps: Vec<&[u64]> = ranks
        .iter()
        .map(|rank| if all_communicate { &*rank.steps.communication } else { &*rank.steps.work })
        .collect();
    let has_steps = steps.iter().all(|steps| steps.len() >= MIN_STEPS);
    let standings = match has_steps {
        true => mean_positions(&steps),
        false => totals.iter().map(|&nanos| nanos as f64).collect(),
    };
    let straggling = match all_communicate {
        true => standings.iter().copied().fold(f64::INFINITY, f64::min),
        false => standings.iter().copied().fold(0.0, f64::max),
    };
    let is_sure = |at: usize| {
        let others = [&steps[..at], &steps[at + 1..]].concat().concat();
        has_steps
            && differ_at_one_percent(steps[at], &others)
            && is_large_difference(median(steps[at]), median(&others))
    };
    let verdict = |at: usize| match all_communicate {
        _ if min == max || standings[at] != straggling => StragglerVerdict::NotStraggler,
        _ if !is_sure(at) => StragglerVerdict::Unsure,
        true => StragglerVerdict::OthersWait,
        false => StragglerVerdict::MostWork,
    };
    let percent = |nanos: u64| {
        let median = median_total as f64;
        (median > 0.0).then(|| 100.0 * (nanos as f64 - median) / median)
    };
    (0..ranks.len())
        .map(|at| RankComparison { to_median_percent: percent(totals[at]), verdict: verdict(at) })
        .collect()
}

/// Minimum difference between the median step durations, in percent. A smaller difference between steps is ignored even
/// if it is statistically significant.
const MIN_DIFFERENCE_PERCENT: u64 = 5;

fn is_large_difference(one: u64, other: u64) -> bool {
    u128::from(one.abs_diff(other)) * 100 >= u128::from(one.max(other)) * u128::from(MIN_DIFFERENCE_PERCENT)
}

/// Returns the lower median of `values`, or 0 if there are no values.
pub fn median(values: &[u64]) -> u64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len().saturating_sub(1) / 2).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuflame_model::record::NameId;

    /// Returns the durations of ten steps. Each step takes a tenth of `nanos`, alternately plus and minus `spread`.
    fn steps(nanos: u64, spread: u64) -> Vec<u64> {
        (0..10).map(|step| if step % 2 == 0 { nanos / 10 + spread } else { nanos / 10 - spread }).collect()
    }

    fn compare(ranks: &[RankTime]) -> Vec<RankComparison> {
        compare_ranks(&ranks.iter().collect::<Vec<_>>())
    }

    fn time(work: u64, communication: u64, spread: u64) -> RankTime {
        let steps = StepTimes { work: steps(work, 0), communication: steps(communication, spread) };
        RankTime { work, communication, steps }
    }

    fn verdicts(ranks: &[(u64, u64)]) -> Vec<StragglerVerdict> {
        let ranks: Vec<_> = ranks.iter().map(|&(work, communication)| time(work, communication, 0)).collect();
        compare(&ranks).iter().map(|comparison| comparison.verdict).collect()
    }

    #[test]
    fn no_straggler_is_named_if_it_may_be_chance_or_there_are_few_steps() {
        let verdicts = |ranks: &[RankTime]| compare(ranks).iter().map(|one| one.verdict).collect::<Vec<_>>();
        let near = [time(10, 1000, 40), time(10, 990, 40), time(10, 1010, 40)];
        assert_eq!(
            verdicts(&near),
            [StragglerVerdict::NotStraggler, StragglerVerdict::Unsure, StragglerVerdict::NotStraggler]
        );
        let far = [time(10, 1000, 20), time(10, 500, 20), time(10, 1010, 20)];
        assert_eq!(
            verdicts(&far),
            [StragglerVerdict::NotStraggler, StragglerVerdict::OthersWait, StragglerVerdict::NotStraggler]
        );
        let without = far.clone().map(|rank| RankTime { steps: StepTimes::default(), ..rank });
        assert_eq!(
            verdicts(&without),
            [StragglerVerdict::NotStraggler, StragglerVerdict::Unsure, StragglerVerdict::NotStraggler]
        );
    }

    #[test]
    fn a_first_step_that_waits_for_the_start_of_the_straggler_does_not_hide_it() {
        let (mut early, late) = (time(10, 1000, 0), time(10, 20, 0));
        let mut late = RankTime { communication: 755_018, ..late };
        late.steps.communication[0] = 755_000;
        early.steps.communication[0] = 6;
        use StragglerVerdict::{NotStraggler, OthersWait};
        let verdicts: Vec<_> = compare(&[early, late]).iter().map(|one| one.verdict).collect();
        assert_eq!(verdicts, [NotStraggler, OthersWait]);
    }

    #[test]
    fn the_straggler_is_the_rank_that_communicates_least() {
        use StragglerVerdict::{MostWork, NotStraggler, OthersWait};
        assert_eq!(verdicts(&[(10, 50), (90, 20), (20, 40)]), [NotStraggler, OthersWait, NotStraggler]);
        assert_eq!(
            verdicts(&[(10, 50), (90, 0), (20, 40)]),
            [NotStraggler, MostWork, NotStraggler],
            "one rank does not communicate"
        );
        assert_eq!(verdicts(&[(10, 5), (90, 5)]), [NotStraggler, NotStraggler], "all are equal");
        assert_eq!(verdicts(&[]), []);
    }

    #[test]
    fn the_median_of_an_even_number_of_ranks_is_the_lower_one() {
        let ranks = [10, 20, 30, 40].map(|work| RankTime { work, ..RankTime::default() });
        let percents = compare(&ranks).iter().map(|one| one.to_median_percent).collect::<Vec<_>>();
        assert_eq!(percents, [Some(-50.0), Some(0.0), Some(50.0), Some(100.0)]);
        assert_eq!(compare(&[RankTime::default()])[0].to_median_percent, None);
    }

    #[test]
    fn only_kernels_count_as_communication() {
        let mut time = RankTime::default();
        time.add(Work::Kernel(NameId(1)), "ncclDevKernel_AllReduce", 3);
        time.add(Work::Kernel(NameId(2)), "gemm", 5);
        time.add(Work::Set, "[nccl]", 7);
        assert_eq!((time.work, time.communication), (12, 3));
    }
}
