//! Finds the straggler: the rank of a job that the other ranks wait for.
//!
//! The rank that enters a collective last waits for no other rank, and all other ranks wait for it, whether its GPU
//! had more work or its CPU was late with launches. So the straggler is the rank with the least communication time.
//! If not all ranks communicate, the straggler is the rank with the most work. A rank is named only if the difference
//! is not due to chance: its steps must differ significantly from the steps of the other ranks, with at least ten
//! steps on each side. Clocks of different ranks are never compared.

use super::communication::CommunicationFilter;
use super::welch::{Durations, differ_at_one_percent};
use gpuflame_model::profile::add_to;
use gpuflame_model::record::Work;

/// GPU time of a rank, split into work and communication.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RankTime {
    /// Time of work other than communication, in ns.
    pub work: u64,
    /// Time of kernels that move data between ranks, in ns; most of this time is waiting.
    pub communication: u64,
    /// Work and communication per step.
    pub steps: StepTimes,
}

/// Durations of a rank's steps.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepTimes {
    /// Durations of work other than communication, one per step.
    pub work: Durations,
    /// Durations of communication, one per step.
    pub communication: Durations,
}

/// Minimum number of steps on each side of a comparison.
const MIN_STEPS: u64 = 10;

impl RankTime {
    /// Adds steps, each given as (start, end). An operation is given as (start, duration, whether it communicates).
    pub fn add_steps(&mut self, ops: &mut [(u64, u64, bool)], steps: &[(u64, u64)]) {
        ops.sort_unstable();
        for &(begin, end) in steps {
            let first = ops.partition_point(|op| op.0 < begin);
            let (mut work, mut communication) = (0, 0);
            for &(_, nanos, communicates) in ops[first..].iter().take_while(|op| op.0 < end) {
                add_to(if communicates { &mut communication } else { &mut work }, nanos);
            }
            self.steps.work.add(work);
            self.steps.communication.add(communication);
        }
    }

    /// Returns the sum of `self` and `other`, which are windows or processes of one rank.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let steps = StepTimes {
            work: self.steps.work.and(other.steps.work),
            communication: self.steps.communication.and(other.steps.communication),
        };
        let communication = self.communication.saturating_add(other.communication);
        Self { work: self.work.saturating_add(other.work), communication, steps }
    }

    /// Adds GPU time of a kind of work named `name`.
    pub fn add(&mut self, work: Work, name: &str, nanos: u64) {
        let is_communication = CommunicationFilter::default().is_communication(work, name);
        add_to(if is_communication { &mut self.communication } else { &mut self.work }, nanos);
    }
}

/// A rank compared with all ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RankComparison {
    /// Difference in percent between this rank and the median rank, in the time by which the ranks are compared
    /// (communication or work). `None` if the median is 0.
    pub to_median_percent: Option<f64>,
    /// Whether the rank is the straggler.
    pub verdict: StragglerVerdict,
}

/// Result of the comparison for one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StragglerVerdict {
    /// The rank is not the straggler.
    NotStraggler,
    /// The rank is the straggler by communication: it communicates least, because the other ranks wait for it.
    OthersWait,
    /// The rank is the straggler by work: it has the most work, and not all ranks communicate.
    MostWork,
    /// The rank is a straggler by one of the criteria, but the difference may be chance, or there are too few steps.
    Unsure,
}

impl StragglerVerdict {
    /// Returns the mark for reports.
    pub fn mark(self) -> &'static str {
        match self {
            Self::NotStraggler | Self::Unsure => "",
            Self::OthersWait => "<- others wait for it",
            Self::MostWork => "<- most work",
        }
    }
}

/// Compares the ranks. The results are in the order of `ranks`.
pub fn compare_ranks(ranks: &[RankTime]) -> Vec<RankComparison> {
    let all_communicate = ranks.iter().all(|rank| rank.communication > 0);
    let compared = |rank: &RankTime| if all_communicate { rank.communication } else { rank.work };
    let mut sorted: Vec<u64> = ranks.iter().map(compared).collect();
    sorted.sort_unstable();
    let (Some(&min), Some(&max)) = (sorted.first(), sorted.last()) else { return Vec::new() };
    let median = sorted[(sorted.len() - 1) / 2];
    let steps = |rank: &RankTime| if all_communicate { rank.steps.communication } else { rank.steps.work };
    let is_sure = |at: usize| {
        let own = steps(&ranks[at]);
        let others = ranks.iter().enumerate().filter(|(other, _)| *other != at);
        let others = others.map(|(_, rank)| steps(rank)).reduce(Durations::and).unwrap_or_default();
        own.count >= MIN_STEPS && others.count >= MIN_STEPS && differ_at_one_percent(own, others)
    };
    let comparison = |(at, rank): (usize, &RankTime)| RankComparison {
        to_median_percent: (median > 0)
            .then(|| 100.0 * (compared(rank) as f64 - median as f64) / median as f64),
        verdict: match all_communicate {
            _ if min == max => StragglerVerdict::NotStraggler,
            true if rank.communication > min => StragglerVerdict::NotStraggler,
            false if rank.work < max => StragglerVerdict::NotStraggler,
            _ if !is_sure(at) => StragglerVerdict::Unsure,
            true => StragglerVerdict::OthersWait,
            false => StragglerVerdict::MostWork,
        },
    };
    ranks.iter().enumerate().map(comparison).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuflame_model::record::NameId;

    /// Returns ten steps, each a tenth of `nanos`, alternately plus and minus `spread`.
    fn steps(nanos: u64, spread: u64) -> Durations {
        let mut durations = Durations::default();
        (0..10).for_each(|step| {
            durations.add(if step % 2 == 0 { nanos / 10 + spread } else { nanos / 10 - spread })
        });
        durations
    }

    fn time(work: u64, communication: u64, spread: u64) -> RankTime {
        let steps = StepTimes { work: steps(work, 0), communication: steps(communication, spread) };
        RankTime { work, communication, steps }
    }

    fn verdicts(ranks: &[(u64, u64)]) -> Vec<StragglerVerdict> {
        let ranks: Vec<_> = ranks.iter().map(|&(work, communication)| time(work, communication, 0)).collect();
        compare_ranks(&ranks).iter().map(|comparison| comparison.verdict).collect()
    }

    #[test]
    fn no_straggler_is_named_if_it_may_be_chance_or_there_are_few_steps() {
        let verdicts =
            |ranks: &[RankTime]| compare_ranks(ranks).iter().map(|one| one.verdict).collect::<Vec<_>>();
        let near = [time(10, 1000, 40), time(10, 990, 40), time(10, 1010, 40)];
        assert_eq!(
            verdicts(&near),
            [StragglerVerdict::NotStraggler, StragglerVerdict::Unsure, StragglerVerdict::NotStraggler]
        );
        let far = [time(10, 1000, 40), time(10, 500, 40), time(10, 1010, 40)];
        assert_eq!(
            verdicts(&far),
            [StragglerVerdict::NotStraggler, StragglerVerdict::OthersWait, StragglerVerdict::NotStraggler]
        );
        let without = far.map(|rank| RankTime { steps: StepTimes::default(), ..rank });
        assert_eq!(
            verdicts(&without),
            [StragglerVerdict::NotStraggler, StragglerVerdict::Unsure, StragglerVerdict::NotStraggler]
        );
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
        let percents = compare_ranks(&ranks).iter().map(|one| one.to_median_percent).collect::<Vec<_>>();
        assert_eq!(percents, [Some(-50.0), Some(0.0), Some(50.0), Some(100.0)]);
        assert_eq!(compare_ranks(&[RankTime::default()])[0].to_median_percent, None);
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
