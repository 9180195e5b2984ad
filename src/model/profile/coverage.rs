//! Computes the coverage of a run: the share of launches whose GPU work was recorded. A GPU that runs unrecorded work
//! seems to be idle. So the idle time of a GPU is known only if nearly all GPU work was recorded.

use std::collections::BTreeMap;

use super::sample::{LeafFrame, Sample};
use super::views::{GPU, IDLE, View};
use super::{Profile, add_to, format_nanos};
use crate::record::{ContextId, FrameKind, Missing};

/// Minimum share of launches with an activity, in percent, for which idle time counts as known.
const MIN_COVERED_PERCENT: u64 = 95;
/// Idle time counts as known only if at most one in this number of activities has no times. The number is derived from
/// [`MIN_COVERED_PERCENT`].
const MAX_UNTIMED_PART: u64 = 100 / (100 - MIN_COVERED_PERCENT);
/// Maximum number of steps that a message lists.
const MAX_NAMED_STEPS: usize = 8;

/// Counts of launches with and without recorded GPU work, for the whole run and for each step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Counts of launches in the whole run.
    pub all: LaunchCoverage,
    /// Whether the run is a trace that another tool recorded. In a trace of another tool, steps without GPU work
    /// suggest that GPU work was not recorded. In recordings of gpuflame, steps without GPU work do not suggest this,
    /// because the recordings contain the number of lost records.
    pub is_trace: bool,
    /// Number of steps, or of closed windows if the run has no steps.
    pub steps: u64,
    /// Indices of the steps in which too few launches have an activity. Launches are counted per group of consecutive
    /// steps ([`StepGroup`](super::StepGroup)). So all steps of a group are listed if too few launches of the group
    /// have an activity.
    pub uncovered_steps: Vec<u64>,
    /// Indices of the steps in which nothing ran on a GPU.
    pub empty_steps: Vec<u64>,
    /// Number of activities.
    pub activities: u64,
    /// Number of activities without start or end times.
    pub untimed: u64,
    /// Number of launches without an activity that cannot be in a queue: they were made after the last launch with an
    /// activity, and their thread has waited for the GPU since then. Because of this wait, the work of these launches
    /// must have ended before recording ended.
    pub waited_without_work: u64,
    /// Waits of the host which show that some GPU work was not recorded, if there are any.
    pub late_waits: Option<LateWaits>,
    /// Idle time during which unrecorded GPU work may have run. The field is set only if this time is more than half of
    /// all idle time.
    pub beside_lost: Option<BesideLost>,
}

/// Waits of the host for a GPU that returned long after all recorded GPU work had ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LateWaits {
    /// Number of waits that returned long after all recorded GPU work had ended.
    pub count: u64,
    /// Number of all waits for the GPU, including those that returned long after the recorded work.
    pub waits: u64,
    /// Total time in ns from the end of the recorded work to the return of each wait that returned long after that
    /// work.
    pub nanos: u64,
}

/// Idle time during which a launched kernel did not start, although all recorded work before it on its stream had
/// ended. A launch without an activity was made between the recorded work and the kernel, so the work of this launch
/// may have run during the idle time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BesideLost {
    /// Number of launches without an activity whose work may have run while the kernel did not start.
    pub launches: u64,
    /// Total idle time in ns during which the work of these launches may have run.
    pub nanos: u64,
    /// Total idle time of the run in ns.
    pub idle: u64,
}

/// Counts of launches that should have an activity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaunchCoverage {
    /// Number of launches. Launches that need no activity (such as a launch of an empty graph) are not counted.
    pub launches: u64,
    /// Number of launches that should have an activity but have none.
    pub uncovered: u64,
}

impl LaunchCoverage {
    /// Adds `count` launches. `is_covered` states whether these launches have an activity.
    pub fn add(&mut self, count: u64, is_covered: bool) {
        self.launches = self.launches.saturating_add(count);
        if !is_covered {
            self.uncovered = self.uncovered.saturating_add(count);
        }
    }

    /// Adds the launches of `other`.
    pub fn merge(&mut self, other: Self) {
        self.launches = self.launches.saturating_add(other.launches);
        self.uncovered = self.uncovered.saturating_add(other.uncovered);
    }

    /// Whether enough launches have an activity for idle time to count as known.
    pub fn is_sufficient(self) -> bool {
        let covered = u128::from(self.launches.saturating_sub(self.uncovered));
        covered * 100 >= u128::from(self.launches) * u128::from(MIN_COVERED_PERCENT)
    }
}

impl Coverage {
    /// Returns the reason why idle time is unknown; `None` if idle time is known.
    pub fn doubt(&self) -> Option<String> {
        let mut reasons = Vec::new();
        let LaunchCoverage { launches, uncovered } = self.all;
        if !self.all.is_sufficient() || !self.uncovered_steps.is_empty() {
            reasons.push(format!("{uncovered} of {launches} launches have no activity"));
        }
        if !self.uncovered_steps.is_empty() {
            let (count, steps) = (self.uncovered_steps.len(), self.steps);
            let named = list_steps(&self.uncovered_steps);
            reasons.push(format!("in {count} of {steps} steps ({named}), too few launches have an activity"));
        }
        if self.has_many_empty_steps() {
            let (count, steps) = (self.empty_steps.len(), self.steps);
            reasons.push(format!(
                "{count} of {steps} steps have no GPU work ({})",
                list_steps(&self.empty_steps)
            ));
        }
        let Self { activities, untimed, .. } = self;
        if self.has_many_untimed() {
            reasons.push(format!("{untimed} of {activities} activities have no times"));
        }
        if let Some(LateWaits { count, waits, nanos }) = self.late_waits {
            let nanos = format_nanos(nanos);
            reasons.push(format!(
                "{count} of {waits} waits for the GPU returned long after all recorded work had ended, {nanos} in total"
            ));
        }
        if let Some(BesideLost { launches, nanos, idle }) = self.beside_lost {
            let (nanos, idle) = (format_nanos(nanos), format_nanos(idle));
            reasons.push(format!(
                "{launches} launches without an activity may have run in {nanos} of {idle} that look idle"
            ));
        }
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }

    /// Whether more than 5 % of the activities have no times.
    fn has_many_untimed(&self) -> bool {
        self.untimed.saturating_mul(MAX_UNTIMED_PART) > self.activities
    }
}

impl Coverage {
    /// Whether more than 5 % of the steps have no GPU work. Many steps without GPU work suggest that GPU work was not
    /// recorded.
    fn has_many_empty_steps(&self) -> bool {
        let with_work = self.steps.saturating_sub(self.empty_steps.len() as u64);
        self.is_trace
            && u128::from(with_work) * 100 < u128::from(self.steps) * u128::from(MIN_COVERED_PERCENT)
    }

    /// Formats the indices of the steps in which nothing ran on a GPU, as in: `2, 5 to 7, counted from 0`.
    pub fn list_empty_steps(&self) -> String {
        list_steps(&self.empty_steps)
    }
}

/// Formats step indices as text: `2, 5 to 7, counted from 0`.
fn list_steps(steps: &[u64]) -> String {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for &step in steps {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == step => *last = step,
            _ => runs.push((step, step)),
        }
    }
    let more = runs.len().saturating_sub(MAX_NAMED_STEPS);
    let text = |&(first, last): &(u64, u64)| match first == last {
        true => first.to_string(),
        false => format!("{first} to {last}"),
    };
    let mut named: Vec<_> = runs.iter().take(MAX_NAMED_STEPS).map(text).collect();
    named.extend((more > 0).then(|| format!("{more} more")));
    named.push("counted from 0".to_owned());
    named.join(", ")
}

/// Whether a launch by the API call with this name should have an activity. Launches of graphs, copies and fills may
/// have no activity, because a graph may be empty, and a copy or fill may have a size of 0. A call without a name
/// counts as a kernel launch.
fn requires_activity(call: Option<&str>) -> bool {
    call.is_none_or(|call| call.contains("Launch") && !call.contains("Graph"))
}

impl Profile {
    /// Whether a launch with this context should have an activity.
    pub fn requires_activity(&self, context: ContextId) -> bool {
        requires_activity(self.call_of(context))
    }

    /// Whether a launch with this context launches a graph.
    pub fn launches_graph(&self, context: ContextId) -> bool {
        self.call_of(context).is_some_and(|call| call.contains("GraphLaunch"))
    }

    fn call_of(&self, context: ContextId) -> Option<&str> {
        let leaf = self.context(context).and_then(|context| self.stack(context.stack).next())?;
        match self.frames()[leaf.index()].kind() {
            FrameKind::Label(id) => self.label(id),
            _ => None,
        }
    }

    /// Computes the coverage of the whole run. The profile's [`RowFacts`](super::RowFacts) contain the number of
    /// launches with an activity. Launches without an activity are counted from the profile's samples. Launches whose
    /// work was probably still in a queue when recording ended are not counted. Sums that earlier versions wrote
    /// contain no [`RowFacts`](super::RowFacts). For such sums, `matched` is used as the number of launches with
    /// activities.
    pub fn count_coverage(&mut self, matched: u64) {
        let facts = self.row_facts.unwrap_or_default();
        let mut all = LaunchCoverage::default();
        all.add(self.row_facts.map_or(matched, |facts| facts.covered_launches), true);
        let samples = self.samples(&GPU).iter();
        let is_pending =
            |sample: &&Sample| sample.leaf.frames().any(|leaf| leaf == LeafFrame::Missing(Missing::Pending));
        let (mut launches, mut graphs) = (0_u64, BTreeMap::<ContextId, u64>::new());
        for sample in samples.clone().filter(is_pending) {
            match sample.site.launch() {
                Ok(context) if self.launches_graph(context) => {
                    add_to(graphs.entry(context).or_default(), sample.count());
                }
                Ok(context) if !self.requires_activity(context) => {}
                _ => add_to(&mut launches, sample.count()),
            }
        }
        // Graph launches count only if a launch with the same context has an activity, because a graph may be empty.
        let mut of_graphs = 0;
        for sample in samples.filter(|sample| sample.device.is_some()) {
            let context = sample.site.launch().unwrap_or(ContextId::NONE);
            if let Some(count) = graphs.get_mut(&context) {
                add_to(&mut of_graphs, std::mem::take(count));
            }
        }
        all.add(launches.saturating_sub(facts.queued), false);
        all.add(of_graphs.saturating_sub(facts.queued_graphs), false);
        let (steps, uncovered_steps) = (self.step_count(), self.step_series().uncovered_steps());
        self.set_coverage(Coverage { all, steps, uncovered_steps, ..Coverage::default() });
    }

    /// Returns the number of steps of the run. In a run without steps, closed windows count as steps, as in
    /// [`StepSpans`](crate::record::StepSpans). Returns 0 if the number of steps is unknown.
    pub fn step_count(&self) -> u64 {
        match self.steps().count {
            0 => self.row_facts.map_or(0, |facts| facts.closed_windows),
            count => count,
        }
    }

    /// Returns the samples of `view` that outputs show. If idle time is unknown, outputs show no samples of the idle
    /// view.
    pub fn shown_samples(&self, view: &View) -> &[Sample] {
        if *view == IDLE && self.idle_doubt().is_some() { &[] } else { self.samples(view) }
    }

    /// Returns the reason why idle time is unknown; `None` if idle time is known.
    pub fn idle_doubt(&self) -> Option<String> {
        self.coverage().doubt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{Leaf, RowFacts, SampleSite, StepTotals};
    use crate::record::{ContextFlags, DeviceId, Frame, LabelId, Row, ThreadId, Work};

    fn coverage(launches: u64, uncovered: u64) -> Coverage {
        Coverage { all: LaunchCoverage { launches, uncovered }, ..Coverage::default() }
    }

    #[test]
    fn idle_time_is_unknown_below_95_percent_of_the_launches() {
        assert_eq!(coverage(0, 0).doubt(), None);
        assert_eq!(coverage(20, 1).doubt(), None);
        assert_eq!(coverage(20, 18).doubt().unwrap(), "18 of 20 launches have no activity");
        assert_eq!(coverage(100, 6).doubt().unwrap(), "6 of 100 launches have no activity");
        assert!(coverage(u64::MAX, u64::MAX).doubt().is_some());
    }

    #[test]
    fn steps_without_gpu_work_are_listed() {
        let steps = Coverage { is_trace: true, steps: 8, empty_steps: vec![2, 4, 5, 6], ..coverage(4, 0) };
        assert_eq!(Coverage { is_trace: false, ..steps.clone() }.doubt(), None);
        assert_eq!(steps.doubt().unwrap(), "4 of 8 steps have no GPU work (2, 4 to 6, counted from 0)");
        let steps = Coverage { steps: 3, uncovered_steps: vec![1], ..coverage(100, 2) };
        let expected = "2 of 100 launches have no activity; in 1 of 3 steps (1, counted from 0), too few launches have an activity";
        assert_eq!(steps.doubt().unwrap(), expected);
    }

    #[test]
    fn idle_time_is_unknown_if_more_than_5_percent_of_the_activities_have_no_times() {
        let untimed = |untimed| Coverage { activities: 100, untimed, ..Coverage::default() }.doubt();
        assert_eq!(untimed(5), None);
        assert_eq!(untimed(6).unwrap(), "6 of 100 activities have no times");
    }

    #[test]
    fn waits_and_gaps_from_which_missing_work_follows_are_reasons() {
        let late_waits = Some(LateWaits { count: 3, waits: 4, nanos: 2_000_000 });
        let beside_lost = Some(BesideLost { launches: 2, nanos: 6_000_000, idle: 10_000_000 });
        let expected = "3 of 4 waits for the GPU returned long after all recorded work had ended, 2.000 ms in total; \
                        2 launches without an activity may have run in 6.000 ms of 10.000 ms that look idle";
        assert_eq!(Coverage { late_waits, beside_lost, ..Coverage::default() }.doubt().unwrap(), expected);
    }

    #[test]
    fn graph_launches_copies_and_fills_may_have_no_activity() {
        let calls = ["cudaLaunchKernel", "cuLaunchKernelEx", "hipExtModuleLaunchKernel"];
        assert!(calls.into_iter().all(|call| requires_activity(Some(call))));
        let calls = ["cudaGraphLaunch", "cudaMemcpyAsync", "cuMemsetD8Async"];
        assert!(!calls.into_iter().any(|call| requires_activity(Some(call))));
        assert!(requires_activity(None));
    }
    #[test]
    fn launches_in_a_queue_and_graphs_that_never_ran_do_not_count() {
        let mut profile = Profile::default();
        for (id, call) in
            [(1, "cudaLaunchKernel"), (2, "cudaGraphLaunch"), (3, "cudaGraphLaunch"), (4, "cudaMemcpy")]
        {
            profile.push(&Row::Label { id: LabelId(id), text: call });
            let (thread, flags, frames) = (ThreadId(1), ContextFlags(0), [Frame::label(LabelId(id))]);
            profile.push(&Row::Context { id: ContextId(id + 10), thread, flags, frames: &frames });
        }
        let sample = |context, leaf, count| Sample {
            device: (leaf != Leaf::PENDING).then_some(DeviceId(0)),
            values: [0, count, 0, 0],
            ..Sample::new(SampleSite::Context(ContextId(context)), leaf)
        };
        // In this test, the graph that context 12 launched has run, and the graph that context 13 launched may be
        // empty.
        let mut samples = vec![sample(12, Leaf::work(Work::Set), 1)];
        samples.extend(
            [(11, 7), (12, 5), (13, 90), (14, 90)].map(|(id, count)| sample(id, Leaf::PENDING, count)),
        );
        profile.set_samples(&GPU, samples);
        let facts = RowFacts { covered_launches: 10, queued: 4, queued_graphs: 2, ..RowFacts::default() };
        profile.set_row_facts(Some(facts));
        profile.count_coverage(1000);
        assert_eq!(profile.coverage().all, LaunchCoverage { launches: 16, uncovered: 6 });
        profile.set_row_facts(None);
        profile.count_coverage(1000);
        assert_eq!(profile.coverage().all, LaunchCoverage { launches: 1012, uncovered: 12 });
    }

    #[test]
    fn windows_count_as_steps_of_a_run_without_steps() {
        let mut profile = Profile::default();
        assert_eq!(profile.step_count(), 0, "unknown");
        profile.set_row_facts(Some(RowFacts { closed_windows: 3, ..RowFacts::default() }));
        assert_eq!(profile.step_count(), 3);
        profile.set_steps(StepTotals { count: 9, ..StepTotals::default() });
        assert_eq!(profile.step_count(), 9);
    }
}
