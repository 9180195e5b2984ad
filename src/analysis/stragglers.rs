//! Which rank of a job holds the others up.
//!
//! Who comes last to a collective waits for nobody in it, and all others wait for him, whether his GPU had more
//! work or his CPU was late with launches: the straggler is who spends least time in communication. Where not all
//! communicate it is who has most work. Nothing is compared between the clocks of two ranks.

use super::communication::Told;
use crate::record::Work;

/// A rank's GPU time, by what it was spent on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Time {
    /// What is no communication, ns.
    pub work: u64,
    /// Kernels that move data between ranks, ns; most of it they wait.
    pub communication: u64,
}

impl Time {
    /// Adds GPU time of a kind of work, whose name is `name`.
    pub fn add(&mut self, work: Work, name: &str, nanos: u64) {
        let is_communication = Told::default().is_communication(work, name);
        *(if is_communication { &mut self.communication } else { &mut self.work }) += nanos;
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
}

impl Held {
    /// What a report says of it.
    pub fn words(self) -> &'static str {
        match self {
            Self::Nobody => "",
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
    let standing = |rank: &Time| Standing {
        to_median_percent: (median > 0)
            .then(|| 100.0 * (compared(rank) as f64 - median as f64) / median as f64),
        held: match all_communicate {
            _ if least == most => Held::Nobody,
            true if rank.communication == least => Held::OthersWait,
            false if rank.work == most => Held::MostWork,
            _ => Held::Nobody,
        },
    };
    ranks.iter().map(standing).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::NameId;

    fn held(ranks: &[(u64, u64)]) -> Vec<Held> {
        let ranks: Vec<_> = ranks.iter().map(|&(work, communication)| Time { work, communication }).collect();
        standings(&ranks).iter().map(|standing| standing.held).collect()
    }

    #[test]
    fn the_others_wait_for_who_waits_least() {
        use Held::{MostWork, Nobody, OthersWait};
        assert_eq!(held(&[(10, 50), (90, 2), (20, 40)]), [Nobody, OthersWait, Nobody]);
        assert_eq!(held(&[(10, 50), (90, 0), (20, 40)]), [Nobody, MostWork, Nobody], "one is alone");
        assert_eq!(held(&[(10, 5), (90, 5)]), [Nobody, Nobody], "none stands out");
        assert_eq!(held(&[]), []);
    }

    #[test]
    fn the_median_of_an_even_number_is_the_lower_one() {
        let ranks = [10, 20, 30, 40].map(|work| Time { work, communication: 0 });
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
        assert_eq!(time, Time { work: 12, communication: 3 });
    }
}
