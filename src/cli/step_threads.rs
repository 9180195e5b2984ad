//! Maps the starts and ends of steps to the threads that marked them.

use std::collections::BTreeMap;

use gpuflame_model::record::{Row, ThreadId};

/// The threads that marked the starts and ends of steps, keyed by the marked time in ns since 1970.
#[derive(Clone, Debug, Default)]
pub(super) struct StepThreads(BTreeMap<u64, ThreadId>);

impl StepThreads {
    pub(super) fn add_row(&mut self, row: &Row<'_>) {
        if let Row::Step(step) = row {
            let times = [Some(step.time), step.end];
            self.0.extend(times.into_iter().flatten().map(|time| (time.0, step.thread)));
        }
    }
    /// Returns the thread that marked, at the given time, the start or end of a step.
    pub(super) fn at(&self, time: u64) -> Option<ThreadId> {
        self.0.get(&time).copied()
    }
}
