//! Measures how long the steps of a run take in a replay.

use super::found_path::FoundPath;
use gpuflame_offline::analysis::{HostTime, Schedule};

/// A step, or another time range of the recorded run between two times of the host.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReplayedStep {
    begin: HostTime,
    end: HostTime,
}

impl ReplayedStep {
    /// Finds the time ranges of `spans` in the run. A span is (start, end) in ns since 1970.
    pub(super) fn find(found: &FoundPath, spans: &[(u64, u64)]) -> Vec<Self> {
        let threads = &found.explained.facts.step_threads;
        let times = spans.iter().flat_map(|(from, to)| [*from, *to]);
        let times: Vec<_> = times.map(|time| (time, threads.at(time))).collect();
        let found = HostTime::find(&found.path, &times);
        found.chunks_exact(2).map(|two| Self { begin: two[0], end: two[1] }).collect()
    }

    /// Returns the recorded duration of the step in ns.
    pub(super) fn recorded(&self) -> u64 {
        self.end.recorded() - self.begin.recorded()
    }

    /// Returns the duration of the step in a schedule, in ns; `None` if the run has no calls.
    pub(super) fn duration_in(&self, schedule: &Schedule) -> Option<u64> {
        Some(self.end.time_in(schedule)?.saturating_sub(self.begin.time_in(schedule)?))
    }
}
