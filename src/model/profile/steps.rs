//! Stores the durations and the GPU work of a run's steps. The memory for the steps is bounded for any number of steps.

use super::LaunchCoverage;
use crate::record::Nanos;
use crate::sorting;
use crate::stats::Histogram;

/// Steps of a run, in order of time. There are none if the program marks no steps.
#[derive(Clone, Debug, Default)]
pub struct StepSeries {
    /// Groups of consecutive steps. Each group has one step unless the run has thousands of steps.
    pub groups: Vec<StepGroup>,
    /// Kinds of steps (steps with the same name), in the order in which they first occurred.
    pub kinds: Vec<StepKind>,
    /// The longest steps, longest first.
    pub longest: Vec<SingleStep>,
}

impl StepSeries {
    /// Returns the `percent`th percentile of the durations of one kind of steps, by nearest rank, in ns. The result is
    /// exact if each group has one step. If groups have several steps, the result has the error of
    /// [`Histogram::percentile`].
    pub fn percentile(&self, kind: usize, percent: u8) -> u64 {
        let is_of_kind = |group: &&StepGroup| group.kind.map(usize::from) == Some(kind) && group.nanos() > 0;
        let mut durations: Vec<u64> = self.groups.iter().filter(is_of_kind).map(StepGroup::nanos).collect();
        if durations.len() as u64 != self.kinds[kind].count {
            return self.kinds[kind].durations.percentile(percent);
        }
        sorting::sort(&mut durations);
        let rank = (durations.len() * usize::from(percent)).div_ceil(100).max(1);
        durations.get(rank - 1).copied().unwrap_or(0)
    }

    /// Returns the indices of all steps in groups in which too few launches have an activity.
    pub(super) fn uncovered_steps(&self) -> Vec<u64> {
        let (mut numbers, mut before) = (Vec::new(), 0);
        for group in &self.groups {
            let from = before;
            before += group.steps;
            if !group.coverage.is_sufficient() {
                numbers.extend(from..before);
            }
        }
        numbers
    }
}

/// A group of consecutive steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepGroup {
    /// Sequence number of the group's first step in the process. The first step of the process has the number 1.
    pub number: u64,
    /// Time at which the first step began.
    pub begin: Nanos,
    /// Time at which the last step ended. If this end is unknown, the field contains the time at which the last step
    /// began.
    pub end: Nanos,
    /// Number of steps in this group.
    pub steps: u64,
    /// Index in [`StepSeries::kinds`] of the kind of all steps in the group. The index is `None` if the group has steps
    /// of several kinds.
    pub kind: Option<u8>,
    /// Total duration in ns of all GPU work except communication that began during the steps. Time during which several
    /// activities overlap counts several times.
    pub work: u64,
    /// Total duration in ns of all communication kernels that began during the steps.
    pub communication: u64,
    /// Counts of launches with and without GPU work during the steps.
    pub coverage: LaunchCoverage,
}

impl StepGroup {
    /// Returns the time from the beginning of the first step to the end of the last step, in ns.
    pub fn nanos(&self) -> u64 {
        self.end.0.saturating_sub(self.begin.0)
    }
}

/// Steps with the same name.
#[derive(Clone, Debug, Default)]
pub struct StepKind {
    /// Name of the NVTX ranges that began the steps, without the number at the end of the name. The name is empty if
    /// calls of `gpuflame_step()` began the steps.
    pub name: String,
    /// Number of steps with a known duration. (If gpuflame recorded the run, the duration of the last step before a
    /// window closes is unknown.)
    pub count: u64,
    /// Total duration of the steps in ns.
    pub nanos: u64,
    /// Duration of the longest step, in ns.
    pub max: u64,
    /// Sequence number of the longest step in the process. The first step of the process has the number 1.
    pub longest: u64,
    /// Distribution of the steps' durations in ns.
    pub durations: Histogram,
}

/// A single step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SingleStep {
    /// Sequence number of the step in the process. The first step of the process has the number 1.
    pub number: u64,
    /// Time at which the step began.
    pub begin: Nanos,
    /// Duration of the step in ns.
    pub nanos: u64,
    /// Index of the step's kind in [`StepSeries::kinds`].
    pub kind: u8,
    /// Total duration in ns of the GPU work that began during the step, as in [`StepGroup::work`].
    pub work: u64,
    /// Total duration in ns of the communication kernels that began during the step, as in
    /// [`StepGroup::communication`].
    pub communication: u64,
}
