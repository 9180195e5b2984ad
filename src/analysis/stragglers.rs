//! Which rank of a job holds the others up.
//!
//! Who comes last to a collective waits for nobody in it, and all others wait for him, whether his GPU had more
//! work or his CPU was late with launches: the straggler is who spends least time in communication. Where not all
//! communicate it is who has most work. He is named only where that is no chance: where his steps differ from those of the
//! others, over ten of each and more. Nothing is compared between the clocks of two ranks.

use super::communication::Told;
use super::welch::{Durations, differ};
use crate::profile::add_to;
use crate::record::Work;

/// A rank's GPU time, by what it was spent on.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Time {
    /// What is no communication, ns.
    pub work: u64,
    /// Kernels that move data between ranks, ns; most of it they wait.
    pub communication: u64,
    /// The same of each step.
    pub steps: Steps,
}

/// What the steps of a rank took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Steps {
    /// What is no communication.
    pub work: Durations,
    /// Communication.
    pub communication: Durations,
}

/// So many steps of each side say something.
const ENOUGH: u64 = 10;

impl Time {
    /// Takes in what the steps took: of each operation its start, how long it took, and whether it communicates; of each
    /// step when it began and ended.
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

    /// Both together: windows or processes of one rank.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let steps = Steps {
            work: self.steps.work.and(other.steps.work),
            communication: self.steps.communication.and(other.steps.communication),
        };
        let communication = self.communication.saturating_add(other.communication);
        Self { work: self.work.saturating_add(other.work), communication, steps }
    }

    /// Adds GPU time of a kind of work, whose name is `name`.
    pub fn add(&mut self, work: Work, name: &str, nanos: u64) {
        let is_communication = Told::default().is_communication(work, name);
        add_to(if is_communication { &mut self.communication } else { &mut self.work }, nanos);
    }
}

/// How a rank stands among all.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Standing {
    /// How much more or less it has than ranks usually have, percent, of what ranks are compared by. `None`: they
    /// usually have none.
    pub to_median_percent: Option<f64>,
    /// Whether the others wait for it.
    pub held: Held,
}

/// Whether a rank is the straggler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// No rank holds the others up.
    Nobody,
    /// It communicates least, since the others wait for it in theirs.
    OthersWait,
    /// It has most work, and not all communicate.
    MostWork,
    /// It would be one of the two, if that were more than chance, or there were more steps.
    Unsure,
}

impl Held {
    /// What a report says of it.
    pub fn words(self) -> &'static str {
        match self {
            Self::Nobody | Self::Unsure => "",
            Self::OthersWait => "<- others wait for it",
            Self::MostWork => "<- most work",
        }
    }
}

/// How each rank stands, in the order of `ranks`.
pub fn standings(ranks: &[Time]) -> Vec<Standing> {
    let all_communicate = ranks.iter().all(|rank| rank.communication > 0);
    let compared = |rank: &Time| if all_communicate { rank.communication } else { rank.work };
    let mut sorted: Vec<u64> = ranks.iter().map(compared).collect();
    sorted.sort_unstable();
    let (Some(&least), Some(&most)) = (sorted.first(), sorted.last()) else { return Vec::new() };
    let median = sorted[(sorted.len() - 1) / 2];
    let steps = |rank: &Time| if all_communicate { rank.steps.communication } else { rank.steps.work };
    let is_sure = |at: usize| {
        let own = steps(&ranks[at]);
        let others = ranks.iter().enumerate().filter(|(other, _)| *other != at);
        let others = others.map(|(_, rank)| steps(rank)).reduce(Durations::and).unwrap_or_default();
        own.count >= ENOUGH && others.count >= ENOUGH && differ(own, others)
    };
    let standing = |(at, rank): (usize, &Time)| Standing {
        to_median_percent: (median > 0)
            .then(|| 100.0 * (compared(rank) as f64 - median as f64) / median as f64),
        held: match all_communicate {
            _ if least == most => Held::Nobody,
            true if rank.communication > least => Held::Nobody,
            false if rank.work < most => Held::Nobody,
            _ if !is_sure(at) => Held::Unsure,
            true => Held::OthersWait,
            false => Held::MostWork,
        },
    };
    ranks.iter().enumerate().map(standing).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::NameId;

    /// Ten steps, each of which takes the tenth of what there is, and in turn `spread` more and less.
    fn steps(nanos: u64, spread: u64) -> Durations {
        let mut durations = Durations::default();
        (0..10).for_each(|step| {
            durations.add(if step % 2 == 0 { nanos / 10 + spread } else { nanos / 10 - spread })
        });
        durations
    }

    fn time(work: u64, communication: u64, spread: u64) -> Time {
        let steps = Steps { work: steps(work, 0), communication: steps(communication, spread) };
        Time { work, communication, steps }
    }

    fn held(ranks: &[(u64, u64)]) -> Vec<Held> {
        let ranks: Vec<_> = ranks.iter().map(|&(work, communication)| time(work, communication, 0)).collect();
        standings(&ranks).iter().map(|standing| standing.held).collect()
    }

    #[test]
    fn nobody_is_named_where_it_may_be_chance_or_steps_are_few() {
        let held = |ranks: &[Time]| standings(ranks).iter().map(|one| one.held).collect::<Vec<_>>();
        let near = [time(10, 1000, 40), time(10, 990, 40), time(10, 1010, 40)];
        assert_eq!(held(&near), [Held::Nobody, Held::Unsure, Held::Nobody]);
        let far = [time(10, 1000, 40), time(10, 500, 40), time(10, 1010, 40)];
        assert_eq!(held(&far), [Held::Nobody, Held::OthersWait, Held::Nobody]);
        let without = far.map(|rank| Time { steps: Steps::default(), ..rank });
        assert_eq!(held(&without), [Held::Nobody, Held::Unsure, Held::Nobody]);
    }

    #[test]
    fn the_others_wait_for_who_waits_least() {
        use Held::{MostWork, Nobody, OthersWait};
        assert_eq!(held(&[(10, 50), (90, 20), (20, 40)]), [Nobody, OthersWait, Nobody]);
        assert_eq!(held(&[(10, 50), (90, 0), (20, 40)]), [Nobody, MostWork, Nobody], "one is alone");
        assert_eq!(held(&[(10, 5), (90, 5)]), [Nobody, Nobody], "none stands out");
        assert_eq!(held(&[]), []);
    }

    #[test]
    fn the_median_of_an_even_number_is_the_lower_one() {
        let ranks = [10, 20, 30, 40].map(|work| Time { work, ..Time::default() });
        let percents = standings(&ranks).iter().map(|one| one.to_median_percent).collect::<Vec<_>>();
        assert_eq!(percents, [Some(-50.0), Some(0.0), Some(50.0), Some(100.0)]);
        assert_eq!(standings(&[Time::default()])[0].to_median_percent, None);
    }

    #[test]
    fn only_kernels_communicate() {
        let mut time = Time::default();
        time.add(Work::Kernel(NameId(1)), "ncclDevKernel_AllReduce", 3);
        time.add(Work::Kernel(NameId(2)), "gemm", 5);
        time.add(Work::Set, "[nccl]", 7);
        assert_eq!((time.work, time.communication), (12, 3));
    }
}
