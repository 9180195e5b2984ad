//! The share of launches with GPU work, for each step of a run. Sums do not have times, so the launches and the busy times
//! are collected while rows are joined.

use std::collections::BTreeMap;

use super::packed_times::{LaunchTimes, Stretches};
use gpuflame_explain::join::{Launched, Origin, Sink};
use gpuflame_model::profile::{Coverage, LaunchCoverage, Profile};
use gpuflame_model::record::{Activity, ContextId, CorrelationId, IdMap, StepSpans, ThreadId};

/// A [`Sink`] that collects launches and busy times.
#[derive(Debug, Default)]
pub struct StepCoverage {
    launches: LaunchTimes,
    /// Stretches of GPU work.
    busy: Stretches,
}

/// Facts about a stack that launches.
#[derive(Clone, Copy)]
struct LaunchFacts {
    /// Whether its launches have work.
    is_required: bool,
    /// Time of the last launch of its thread whose work is in the data.
    last_covered: Option<u64>,
}

/// Sums over the launches before a time, and the end of the last work that begins before it.
#[derive(Clone, Copy, Default)]
struct Before {
    sum: LaunchCoverage,
    covered: u64,
    busy_until: u64,
}

impl Sink for StepCoverage {
    fn activity(&mut self, activity: &Activity, _origin: Origin) {
        if activity.duration().is_none() {
            return;
        }
        let (start, end) = (activity.start.0, activity.end.0.max(activity.start.0.saturating_add(1)));
        self.busy.push((start, end));
    }

    fn pending(&mut self, _id: CorrelationId, launched: Launched) {
        self.launches.push(launched, false);
    }

    fn matched(&mut self, launched: Launched, _is_graph: bool) {
        self.launches.push(launched, true);
    }
}

impl StepCoverage {
    /// Returns the coverage of the whole run and of its steps. `is_trace`: whether another tool recorded the run. If not,
    /// the counts of the whole run come from the profile, so that they equal the counts from the sums of the run.
    pub fn coverage(self, profile: &Profile, steps: &StepSpans, is_trace: bool) -> Coverage {
        let mut spans = steps.spans();
        spans.sort_unstable();
        let mut bounds: Vec<u64> = spans.iter().flat_map(|(start, end)| [*start, *end]).collect();
        bounds.sort_unstable();
        bounds.dedup();
        let mut before = vec![Before::default(); bounds.len()];
        let last_end = self.note_busy(&bounds, &mut before);
        let all = self.note_launches(profile, last_end, &bounds, &mut before);
        let before =
            |time: u64| bounds.binary_search(&time).map_or_else(|_| Before::default(), |at| before[at]);
        let all = if is_trace { all } else { profile.coverage().all };
        let mut coverage = Coverage { all, steps: spans.len() as u64, is_trace, ..Coverage::default() };
        for (step, (start, end)) in (0..).zip(spans) {
            let (from, to) = (before(start), before(end.max(start)));
            let in_step = LaunchCoverage {
                launches: to.sum.launches - from.sum.launches,
                uncovered: to.sum.uncovered - from.sum.uncovered,
            };
            let is_busy = before(end).busy_until > start;
            if (is_trace || steps.has_steps()) && !in_step.is_sufficient() {
                coverage.uncovered_steps.push(step);
            }
            if !is_busy && to.covered == from.covered {
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

    /// Notes for each bound until when the last stretch of GPU work lasts that begins before it; 0 if there is none. Returns the
    /// end of all work.
    fn note_busy(&self, bounds: &[u64], before: &mut [Before]) -> u64 {
        let (mut next, mut until) = (0, 0);
        self.busy.each_merged(|start, end| {
            while bounds.get(next).is_some_and(|bound| *bound <= start) {
                before[next].busy_until = until;
                next += 1;
            }
            until = end;
        });
        before[next..].iter_mut().for_each(|one| one.busy_until = until);
        until
    }

    /// Notes for each bound the launches before it. Returns all launches.
    fn note_launches(
        &self,
        profile: &Profile,
        last_end: u64,
        bounds: &[u64],
        before: &mut [Before],
    ) -> LaunchCoverage {
        let facts = self.launch_facts(profile);
        let (mut next, mut all, mut covered) = (0, LaunchCoverage::default(), 0);
        self.launches.each_in_order(|launch| {
            while bounds.get(next).is_some_and(|bound| *bound <= launch.time) {
                (before[next].sum, before[next].covered) = (all, covered);
                next += 1;
            }
            let Some(facts) = facts.get(&launch.context) else { return };
            // The last work that a thread launched, while the GPU still ran earlier work, may have been in a queue when
            // recording ended.
            let is_queued = !launch.is_covered
                && launch.time < last_end
                && facts.last_covered.is_some_and(|last| launch.time > last);
            if facts.is_required && !is_queued {
                all.add(1, launch.is_covered);
            }
            covered += u64::from(launch.is_covered);
        });
        before[next..].iter_mut().for_each(|one| (one.sum, one.covered) = (all, covered));
        all
    }

    fn launch_facts(&self, profile: &Profile) -> IdMap<ContextId, LaunchFacts> {
        // By stack: the last launch whose work is in the data.
        let mut last: IdMap<ContextId, Option<u64>> = IdMap::default();
        for launch in self.launches.iter() {
            let known = last.entry(launch.context).or_default();
            *known = (*known).max(launch.is_covered.then_some(launch.time));
        }
        let thread = |context: ContextId| profile.context(context).map(|context| context.thread);
        let mut of_thread: BTreeMap<Option<ThreadId>, Option<u64>> = BTreeMap::new();
        for (context, time) in &last {
            let known = of_thread.entry(thread(*context)).or_default();
            *known = (*known).max(*time);
        }
        let facts = |(context, time): (ContextId, Option<u64>)| {
            // Graphs whose work was recorded at least once.
            let is_graph = time.is_some() && profile.launches_graph(context);
            let is_required = profile.requires_activity(context) || is_graph;
            let last_covered = of_thread.get(&thread(context)).copied().flatten();
            (context, LaunchFacts { is_required, last_covered })
        };
        last.into_iter().map(facts).collect()
    }
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
}
