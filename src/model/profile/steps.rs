//! Stores the steps of a run with their durations and GPU work, in a form whose size does not depend on the number of
//! steps.

use super::LaunchCoverage;
use crate::record::Nanos;
use crate::sorting;
use crate::stats::Histogram;

/// Steps of a run, in order of time. Empty if the program marks no steps.
#[derive(Clone, Debug, Default)]
pub struct StepSeries {
    /// Groups of consecutive steps. Each group has one step unless the run has thousands of steps.
    pub groups: Vec<StepGroup>,
    /// Kinds of steps, in order of their first step.
    pub kinds: Vec<StepKind>,
    /// The longest steps, longest first.
    pub longest: Vec<SingleStep>,
}

impl StepSeries {
    /// Returns the `percent`th percentile of the durations of a kind of steps, by nearest rank, in ns. The result is
    /// exact if each group has one step, and otherwise as exact as [`Histogram::percentile`].
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

    /// Returns the numbers, counted from 0, of all steps in groups that have too few launches with an activity.
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
    /// Number of the first step in its process, counted from 1.
    pub number: u64,
    /// Beginning of the first step.
    pub begin: Nanos,
    /// End of the last step, or its beginning if the end is unknown.
    pub end: Nanos,
    /// Number of steps.
    pub steps: u64,
    /// Index of the steps' kind in [`StepSeries::kinds`]; `None` if the group has steps of several kinds.
    pub kind: Option<u8>,
    /// Sum of the durations, in ns, of all work except communication that began during the steps. Time in which several
    /// works overlap counts several times.
    pub work: u64,
    /// Sum of the durations of communication that began during the steps, in ns.
    pub communication: u64,
    /// Launches during the steps.
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
    /// Name of the ranges that began the steps, without a number at its end; empty if calls of `gpuflame_step()` began
    /// them.
    pub name: String,
    /// Number of steps whose durations are known. (In a recording, the end of the last step before a window closes is
    /// unknown.)
    pub count: u64,
    /// Sum of the durations, in ns.
    pub nanos: u64,
    /// Duration of the longest step, in ns.
    pub max: u64,
    /// Number of the longest step in its process, counted from 1.
    pub longest: u64,
    /// Durations, in ns.
    pub durations: Histogram,
}

/// A single step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SingleStep {
    /// Number of the step in its process, counted from 1.
    pub number: u64,
    /// Beginning of the step.
    pub begin: Nanos,
    /// Duration in ns.
    pub nanos: u64,
    /// Index of the step's kind in [`StepSeries::kinds`].
    pub kind: u8,
    /// Work during the step, as in [`StepGroup::work`].
    pub work: u64,
    /// Communication during the step, as in [`StepGroup::communication`].
    pub communication: u64,
}
