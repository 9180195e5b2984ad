//! Measures launch delays. A launch delay is the time from the API call that launched GPU work to the start of this
//! work on the GPU.

use gpuflame_explain::join::{Launched, Origin, Sink};
use gpuflame_model::profile::{self, Profile};
use gpuflame_model::record::{Activity, CorrelationId, IdMap, Work};

/// Launch delays for each kind of GPU work, collected from joined rows.
#[derive(Debug, Default)]
pub struct LaunchDelays(IdMap<Work, WorkDelays>);

/// Launch delays for one kind of GPU work.
#[derive(Debug, Default)]
pub struct WorkDelays(profile::LaunchDelays);

impl LaunchDelays {
    /// Reads the launch delays from the sums that the recorded process wrote when it exited.
    pub fn from_sums(profile: &Profile) -> Self {
        let mut all = Self::default();
        for of_work in profile.delays() {
            all.0.entry(of_work.work).or_default().0.add(of_work.delays.clone());
        }
        all
    }

    /// Iterates over the launch delays for each kind of GPU work that was launched while recording, in no particular
    /// order.
    pub fn iter(&self) -> impl Iterator<Item = (Work, &WorkDelays)> {
        self.0.iter().map(|(work, delay)| (*work, delay))
    }
}

impl WorkDelays {
    /// Returns the number of measured launch delays, which is at least 1.
    pub fn count(&self) -> u64 {
        self.0.histogram.count()
    }

    /// Returns the total of the launch delays, in ns.
    pub fn sum(&self) -> u64 {
        self.0.sum
    }

    /// Returns the maximum launch delay, in ns.
    pub fn max(&self) -> u64 {
        self.0.max
    }

    /// Returns the number of activities that began before the call that launched them. An activity that begins before
    /// its launch call shows that the clock of the host or of the GPU is wrong.
    pub fn started_before_call(&self) -> u64 {
        self.0.started_before_call
    }

    /// Returns the average launch delay, in ns.
    pub fn average(&self) -> u64 {
        self.sum() / self.count().max(1)
    }

    /// Returns the `percent`th percentile of the launch delays in ns, with an error of at most 0.8 %.
    pub fn percentile(&self, percent: u8) -> u64 {
        self.0.histogram.percentile(percent).min(self.max())
    }
}

impl Sink for LaunchDelays {
    fn activity(&mut self, activity: &Activity, origin: Origin) {
        let (Origin::Launch(launched), Some(_)) = (origin, activity.duration()) else { return };
        self.0.entry(activity.work()).or_default().0.record(launched.time, activity.start);
    }

    fn pending(&mut self, _: CorrelationId, _: Launched) {}
}
