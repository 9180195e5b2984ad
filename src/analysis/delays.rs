//! How long work waited between the call that launched it and its start on the GPU.

use crate::join::{Launched, Origin, Sink};
use crate::record::{Activity, CorrelationId, IdMap, Work};
use crate::stats::Histogram;

/// Delays by kind of work, gathered from what is joined.
#[derive(Debug, Default)]
pub struct Delays(IdMap<Work, Delay>);

/// The delays of one kind of work.
#[derive(Debug, Default)]
pub struct Delay {
    waits: Histogram,
    /// Their sum, ns.
    pub sum: u64,
    /// The longest, ns.
    pub longest: u64,
    /// So many began before the call did: one of the two clocks is to be doubted.
    pub early: u64,
}

impl Delays {
    /// Those of each kind of work that was launched while we looked, in no order.
    pub fn each(&self) -> impl Iterator<Item = (Work, &Delay)> {
        self.0.iter().map(|(work, delay)| (*work, delay))
    }
}

impl Delay {
    /// How many there are, at least one.
    pub fn count(&self) -> u64 {
        self.waits.count()
    }

    /// The average, ns.
    pub fn average(&self) -> u64 {
        self.sum / self.count().max(1)
    }

    /// The `percent`th percentile, ns, within 0.8 %.
    pub fn percentile(&self, percent: u8) -> u64 {
        self.waits.percentile(percent).min(self.longest)
    }
}

impl Sink for Delays {
    fn activity(&mut self, activity: &Activity, origin: Origin) {
        let (Origin::Launch(launched), Some(_)) = (origin, activity.duration()) else { return };
        let delay = self.0.entry(activity.work()).or_default();
        let wait = activity.start.since(launched.time);
        delay.early += u64::from(activity.start < launched.time);
        delay.waits.record(wait);
        delay.sum = delay.sum.saturating_add(wait);
        delay.longest = delay.longest.max(wait);
    }

    fn pending(&mut self, _: CorrelationId, _: Launched) {}
}
