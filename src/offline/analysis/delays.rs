//! Measures launch delays: the time between the call that launched work and the start of the work on the GPU.

use gpuflame_explain::join::{Launched, Origin, Sink};
use gpuflame_model::record::{Activity, CorrelationId, IdMap, Work};
use gpuflame_model::stats::Histogram;

/// Launch delays by kind of work, collected from joined rows.
#[derive(Debug, Default)]
pub struct LaunchDelays(IdMap<Work, WorkDelays>);

/// Launch delays of one kind of work.
#[derive(Debug, Default)]
pub struct WorkDelays {
    histogram: Histogram,
    /// Sum of the delays, in ns.
    pub sum: u64,
    /// Maximum delay, in ns.
    pub max: u64,
    /// Number of activities that began before their call, which shows that one of the two clocks is wrong.
    pub started_before_call: u64,
}

impl LaunchDelays {
    /// Iterates over the kinds of work that were launched while recording, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (Work, &WorkDelays)> {
        self.0.iter().map(|(work, delay)| (*work, delay))
    }
}

impl WorkDelays {
    /// Returns the number of delays, at least one.
    pub fn count(&self) -> u64 {
        self.histogram.count()
    }

    /// Returns the average delay, in ns.
    pub fn average(&self) -> u64 {
        self.sum / self.count().max(1)
    }

    /// Returns the `percent`th percentile of the delays, in ns, within 0.8 %.
    pub fn percentile(&self, percent: u8) -> u64 {
        self.histogram.percentile(percent).min(self.max)
    }
}

impl Sink for LaunchDelays {
    fn activity(&mut self, activity: &Activity, origin: Origin) {
        let (Origin::Launch(launched), Some(_)) = (origin, activity.duration()) else { return };
        let delay = self.0.entry(activity.work()).or_default();
        let wait = activity.start.since(launched.time);
        delay.started_before_call += u64::from(activity.start < launched.time);
        delay.histogram.record(wait);
        delay.sum = delay.sum.saturating_add(wait);
        delay.max = delay.max.max(wait);
    }

    fn pending(&mut self, _: CorrelationId, _: Launched) {}
}
