//! The share of launches with GPU work, for each step of a run. Sums do not have times, so the launches and the busy times
//! are collected while rows are joined: 16 bytes per launch and per stretch of busy time.

use std::collections::{BTreeMap, BTreeSet};

use gpuflame_explain::join::{Launched, Origin, Sink};
use gpuflame_model::profile::{Coverage, LaunchCoverage, Profile};
use gpuflame_model::record::{Activity, ContextId, CorrelationId, IdMap, StepSpans, ThreadId};

/// A [`Sink`] that collects launches and busy times.
#[derive(Debug, Default)]
pub struct StepCoverage {
    launches: Vec<LaunchTime>,
    /// Start and end of stretches of GPU work.
    busy: Vec<(u64, u64)>,
}

#[derive(Clone, Copy, Debug)]
struct LaunchTime {
    time: u64,
    context: ContextId,
    is_covered: bool,
}

impl Sink for StepCoverage {
    fn activity(&mut self, activity: &Activity, _origin: Origin) {
        if activity.duration().is_none() {
            return;
        }
        let (start, end) = (activity.start.0, activity.end.0.max(activity.start.0.saturating_add(1)));
        match self.busy.last_mut() {
            Some(last) if start <= last.1 && last.0 <= end => *last = (start.min(last.0), end.max(last.1)),
            _ => self.busy.push((start, end)),
        }
    }

    fn pending(&mut self, _id: CorrelationId, launched: Launched) {
        self.add(launched, false);
    }

    fn matched(&mut self, launched: Launched, _is_graph: bool) {
        self.add(launched, true);
    }
}

impl StepCoverage {
    fn add(&mut self, launched: Launched, is_covered: bool) {
        let Launched { time, context, .. } = launched;
        self.launches.push(LaunchTime { time: time.0, context, is_covered });
    }

    /// Returns the coverage of the whole run and of its steps. `is_trace`: whether another tool recorded the run. If not,
    /// the counts of the whole run come from the profile, so that they equal the counts from the sums of the run.
    pub fn coverage(mut self, profile: &Profile, steps: &StepSpans, is_trace: bool) -> Coverage {
        let mut required: IdMap<ContextId, bool> = IdMap::default();
        self.launches.sort_unstable_by_key(|launch| launch.time);
        let busy = union(self.busy);
        let last_end = busy.last().map_or(0, |(_, end)| *end);
        let thread = |context| profile.context(context).map(|context| context.thread);
        let covered_launches = self.launches.iter().filter(|launch| launch.is_covered);
        let last_covered: BTreeMap<Option<ThreadId>, u64> =
            covered_launches.map(|launch| (thread(launch.context), launch.time)).collect();
        // The last work that a thread launched, while the GPU still ran earlier work, may have been in a queue when
        // recording ended.
        let is_queued = |launch: &LaunchTime| {
            let last = last_covered.get(&thread(launch.context)).copied();
            !launch.is_covered && launch.time < last_end && last.is_some_and(|last| launch.time > last)
        };
        // Contexts that launched graphs whose work was recorded at least once.
        let graphs = self.launches.iter().filter(|launch| launch.is_covered).map(|launch| launch.context);
        let graphs: BTreeSet<ContextId> = graphs.filter(|context| profile.launches_graph(*context)).collect();
        // For each position in the launches, the sums over all launches before it.
        let (mut sums, mut covered) = (vec![LaunchCoverage::default()], vec![0_u64]);
        let mut all = LaunchCoverage::default();
        for launch in &self.launches {
            let context = launch.context;
            let is_required = *required
                .entry(context)
                .or_insert_with(|| profile.requires_activity(context) || graphs.contains(&context));
            if is_required && !is_queued(launch) {
                all.add(1, launch.is_covered);
            }
            sums.push(all);
            covered.push(covered[covered.len() - 1] + u64::from(launch.is_covered));
        }
        let mut spans = steps.spans();
        spans.sort_unstable();
        let all = if is_trace { all } else { profile.coverage().all };
        let mut coverage = Coverage { all, steps: spans.len() as u64, is_trace, ..Coverage::default() };
        for (step, (start, end)) in (0..).zip(spans) {
            let from = self.launches.partition_point(|launch| launch.time < start);
            let to = self.launches.partition_point(|launch| launch.time < end).max(from);
            let in_step = LaunchCoverage {
                launches: sums[to].launches - sums[from].launches,
                uncovered: sums[to].uncovered - sums[from].uncovered,
            };
            let last = busy.partition_point(|(begin, _)| *begin < end);
            let is_busy = last > 0 && busy[last - 1].1 > start;
            if (is_trace || steps.has_steps()) && !in_step.is_sufficient() {
                coverage.uncovered_steps.push(step);
            }
            if !is_busy && covered[to] == covered[from] {
                coverage.empty_steps.push(step);
            }
        }
        // A single step may be a mark before or after the work, and windows that replace missing steps may have no
        // work. Neither is reported as an empty step.
        if coverage.steps < 2 || !steps.has_steps() {
            coverage.empty_steps.clear();
        }
        coverage
    }
}

/// Merges stretches that overlap. Returns the stretches by time.
fn union(mut stretches: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    stretches.sort_unstable();
    let mut merged: Vec<(u64, u64)> = Vec::new();
    for (start, end) in stretches {
        match merged.last_mut() {
            Some(last) if start <= last.1 => last.1 = end.max(last.1),
            _ => merged.push((start, end)),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuflame_model::record::{Nanos, Row, Step};

    fn steps(spans: &[(u64, u64)]) -> StepSpans {
        let mut steps = StepSpans::default();
        for &(start, end) in spans {
            let (time, end) = (Nanos(start), Some(Nanos(end)));
            steps.add_row(&Row::Step(Step { time, end, thread: ThreadId(1), number: 1, name: "" }));
        }
        steps
    }

    #[test]
    fn steps_with_lost_launches_and_steps_without_work_are_found() {
        let mut sums = StepCoverage::default();
        let launch = |time| Launched { time: Nanos(time), duration: 1, context: ContextId::NONE };
        // Step 0 has two launches that ran. Step 1 has no launch. One of two launches of step 2 was lost.
        for time in [10, 20, 210] {
            sums.matched(launch(time), false);
        }
        sums.pending(CorrelationId(4), launch(220));
        let steps = steps(&[(0, 100), (100, 200), (200, 300)]);
        let coverage = sums.coverage(&Profile::default(), &steps, true);
        assert_eq!(coverage.all, LaunchCoverage { launches: 4, uncovered: 1 });
        assert_eq!((coverage.steps, coverage.empty_steps, coverage.uncovered_steps), (3, vec![1], vec![2]));
    }

    #[test]
    fn work_in_a_queue_at_the_end_is_not_missing() {
        let launch = |time| Launched { time: Nanos(time), duration: 1, context: ContextId::NONE };
        let mut sums = StepCoverage::default();
        sums.matched(launch(10), false);
        // The GPU works until 500. A launch before that may be in a queue; a launch after that has lost its work.
        sums.busy.push((100, 500));
        sums.pending(CorrelationId(2), launch(400));
        sums.pending(CorrelationId(3), launch(600));
        let coverage = sums.coverage(&Profile::default(), &StepSpans::default(), true);
        assert_eq!(coverage.all, LaunchCoverage { launches: 2, uncovered: 1 });
    }

    #[test]
    fn stretches_that_overlap_are_merged() {
        assert_eq!(union(vec![(5, 7), (1, 3), (2, 4), (4, 5)]), [(1, 7)]);
    }
}
