//! Computes, for each step of a run, the share of launches whose GPU work was recorded. Launch times and busy times are
//! collected while rows are joined, because stored sums contain no times.

use std::collections::BTreeMap;

use super::device_waits::{DeviceWaits, WaitCalls};
use super::packed_times::{LaunchTimes, Stretches};
use gpuflame_explain::join::{Launched, Origin, Sink};
use gpuflame_export::compose::call;
use gpuflame_model::profile::{Coverage, LateWaits, LaunchCoverage, Profile};
use gpuflame_model::record::{
    Activity, ContextId, CorrelationId, DeviceId, GpuContextId, IdMap, Row, StepSpans, ThreadId,
};

/// A wait for a GPU counts as late if it returns more than this many ns after the end of the recorded work. In the
/// traces examined so far, a wait returns 5 to 100 us after the awaited work has ended.
const MIN_LATE_NS: u64 = 200_000;
/// Minimum number of late waits for the conclusion that some GPU work was not recorded. A single wait can be late for
/// many reasons, so a few late waits prove nothing.
const MIN_LATE_WAITS: u64 = 3;
/// Denominator N of a share: late waits are reported only if they take more than 1/N of the time from the first to the
/// last GPU work. Shorter late waits prove nothing, because a waiting thread is sometimes preempted.
const MIN_LATE_PART: u64 = 2;
/// Denominator that replaces [`MIN_LATE_PART`] if different launches of the same graph led to different numbers of
/// activities. The number of activities per launch of a graph should not vary, so less late waiting suffices as
/// evidence that rows are missing.
const MIN_LATE_PART_OF_GRAPHS: u64 = 10;

/// A [`Sink`] that collects launch times and the times in which the GPU was busy.
#[derive(Debug, Default)]
pub struct StepCoverage {
    launches: LaunchTimes,
    /// Stretches of time in which the GPU was busy.
    busy: Stretches,
    waits: WaitCalls,
    place: WorkPlace,
    graph_sizes: GraphSizes,
    activities: u64,
    untimed: u64,
    has_host_functions: bool,
}

/// Substrings of the names of API calls that submit host functions to streams.
const HOST_FUNCTION_CALLS: [&str; 2] = ["LaunchHostFunc", "StreamAddCallback"];

/// Device and CUDA context of the GPU work, if all GPU work belongs to one CUDA context.
#[derive(Debug, Default)]
enum WorkPlace {
    #[default]
    Nowhere,
    One(DeviceId, GpuContextId),
    Several,
}

impl WorkPlace {
    fn add(&mut self, device: DeviceId, context: GpuContextId) {
        match *self {
            Self::Nowhere => *self = Self::One(device, context),
            Self::One(known_device, known_context) if (known_device, known_context) == (device, context) => {}
            _ => *self = Self::Several,
        }
    }
}

/// Minimum and maximum number of activities per launch, for each launch context (stack and API call). The activities of
/// one launch are counted together only if they follow each other in the data.
#[derive(Debug, Default)]
struct GraphSizes {
    last: Option<(Launched, u32)>,
    of_stacks: IdMap<ContextId, (u32, u32)>,
}

impl GraphSizes {
    fn add(&mut self, launched: Launched) {
        match &mut self.last {
            Some((last, count)) if *last == launched => *count += 1,
            last => {
                if let Some((last, count)) = last.replace((launched, 1)) {
                    Self::note(&mut self.of_stacks, last.context, count);
                }
            }
        }
    }

    fn note(of_stacks: &mut IdMap<ContextId, (u32, u32)>, context: ContextId, count: u32) {
        let known = of_stacks.entry(context).or_insert((count, count));
        *known = (known.0.min(count), known.1.max(count));
    }

    /// Whether graph launches from one launch context led to different numbers of activities, for any launch context.
    fn differ(mut self, profile: &Profile) -> bool {
        if let Some((last, count)) = self.last.take() {
            Self::note(&mut self.of_stacks, last.context, count);
        }
        self.of_stacks.iter().any(|(context, (least, most))| least < most && profile.launches_graph(*context))
    }
}

/// Facts about a stack that made launches.
#[derive(Clone, Copy)]
struct LaunchFacts {
    /// Whether each launch by this stack must lead to GPU work.
    is_required: bool,
    /// Time of the last launch of the stack's thread for which GPU work was recorded.
    last_covered: Option<u64>,
    thread: Option<ThreadId>,
}

/// Counts of the launches made before a given time, and the latest end of all GPU work that began before this time.
#[derive(Clone, Copy, Default)]
struct Before {
    sum: LaunchCoverage,
    covered: u64,
    busy_until: u64,
}

impl Sink for StepCoverage {
    fn activity(&mut self, activity: &Activity, origin: Origin) {
        self.activities += 1;
        if let Origin::Launch(launched) = origin {
            self.graph_sizes.add(launched);
        }
        if activity.duration().is_none() {
            self.untimed += 1;
            return;
        }
        self.place.add(activity.device, activity.context);
        let (start, end) = (activity.start.0, activity.end.0.max(activity.start.0.saturating_add(1)));
        self.busy.push((start, end));
    }

    fn pending(&mut self, _id: CorrelationId, launched: Launched) {
        self.launches.push(launched, false);
    }

    fn matched(&mut self, launched: Launched, _is_graph: bool) {
        self.launches.push(launched, true);
    }

    fn host(&mut self, row: &Row<'_>) {
        self.waits.add(row);
    }
}

impl StepCoverage {
    /// Notes that the program submitted host functions to streams. Call `note_host_functions` if the calls that submit
    /// host functions are not in the rows but in other data.
    pub fn note_host_functions(&mut self) {
        self.has_host_functions = true;
    }

    /// Returns the launch coverage of the whole run and of its steps. `is_trace` means that another tool recorded the
    /// run. If `is_trace` is false, the counts of the whole run are read from the profile. The profile's counts equal
    /// the counts in the stored sums.
    pub fn coverage(mut self, profile: &Profile, steps: &StepSpans, is_trace: bool) -> Coverage {
        let mut spans = steps.spans();
        spans.sort_unstable();
        let mut bounds: Vec<u64> = spans.iter().flat_map(|(start, end)| [*start, *end]).collect();
        bounds.sort_unstable();
        bounds.dedup();
        let mut before = vec![Before::default(); bounds.len()];
        let last_end = self.note_busy(&bounds, &mut before);
        let waits = match self.place {
            // Late waits are evaluated only for traces, because the stored sums of a recording do not list single
            // waits. An analysis of stored sums must give the same answers as an analysis of rows.
            WorkPlace::One(..) if is_trace => self.waits.of_devices(profile),
            // If the run has several CUDA contexts, the data does not show for which CUDA context a thread waited.
            _ => DeviceWaits::default(),
        };
        let (all, waited_without_work) =
            self.note_launches(profile, (last_end, &waits), &bounds, &mut before);
        let before =
            |time: u64| bounds.binary_search(&time).map_or_else(|_| Before::default(), |at| before[at]);
        let all = if is_trace { all } else { profile.coverage().all };
        let has_graphs_of_two_sizes = is_trace && std::mem::take(&mut self.graph_sizes).differ(profile);
        // A wait also lasts until the host functions in the streams have finished. Host functions are not GPU work, so
        // waits for host functions do not show that rows are missing.
        let late_waits = self.late_waits(&waits, has_graphs_of_two_sizes);
        let late_waits = late_waits.filter(|_| !self.submits_host_functions(profile));
        let Self { activities, untimed, .. } = self;
        // Activities without times are counted only for traces, because the stored sums of a recording do not count
        // such activities. An analysis of rows must give the same answers as an analysis of stored sums.
        let untimed = if is_trace { untimed } else { 0 };
        let steps_count = spans.len() as u64;
        let mut coverage = Coverage {
            all,
            steps: steps_count,
            is_trace,
            activities,
            untimed,
            waited_without_work,
            late_waits,
            ..Coverage::default()
        };
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
        // If a run has only one step, this step may be a mark before or after the GPU work. If there are no steps, a
        // window replaces them, and the window may contain no GPU work. Therefore a step or window without GPU work is
        // not reported as an empty step if it is the only step or window of the run.
        if coverage.steps < 2 || !steps.has_steps() {
            coverage.empty_steps.clear();
        }
        coverage
    }

    /// For each bound, stores the end of the last stretch of GPU work that begins before the bound, or 0 if no such
    /// stretch exists. Returns the time at which the last GPU work ended.
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

    /// Whether the program submitted host functions to streams.
    fn submits_host_functions(&self, profile: &Profile) -> bool {
        let submits = |call: &str| HOST_FUNCTION_CALLS.iter().any(|part| call.contains(part));
        self.has_host_functions || self.launches.iter().any(|launch| submits(call(profile, launch.context)))
    }

    /// Returns the sums of the late waits, which are waits for the GPU that returned long after all recorded work had
    /// ended. Returns `None` if the late waits do not show that GPU work was not recorded, because they are too few or
    /// their total time is too short.
    fn late_waits(&self, waits: &DeviceWaits, has_graphs_of_two_sizes: bool) -> Option<LateWaits> {
        let waits = waits.by_start();
        let mut late = LateWaits { count: 0, waits: waits.len() as u64, nanos: 0 };
        let (mut first, mut until, mut next) = (None, 0, 0);
        let mut returned = 0_u64;
        // Counts the late waits that returned before `time`, the time at which the next GPU work begins.
        let mut note = |until: u64, time: u64| {
            while let Some(&(start, end)) = waits.get(next).filter(|(_, end)| *end <= time) {
                // Time in which several threads wait at once is counted only once.
                let nanos = end.saturating_sub(start.max(until).max(returned));
                if until > 0 && nanos > MIN_LATE_NS {
                    late.count += 1;
                    late.nanos = late.nanos.saturating_add(nanos);
                }
                returned = returned.max(end);
                next += 1;
            }
        };
        self.busy.each_merged(|start, end| {
            first = first.or(Some(start));
            note(until, start);
            until = end;
        });
        note(until, u64::MAX);
        let window = returned.max(until).saturating_sub(first?);
        let part = if has_graphs_of_two_sizes { MIN_LATE_PART_OF_GRAPHS } else { MIN_LATE_PART };
        let is_often = late.count >= MIN_LATE_WAITS && late.count.saturating_mul(2) > late.waits;
        (is_often && late.nanos.saturating_mul(part) > window).then_some(late)
    }

    /// For each bound (a time), stores the counts of the launches made before the bound. Returns the counts of all
    /// launches, and the number of launches whose work had ended according to `waits` but was not recorded.
    fn note_launches(
        &self,
        profile: &Profile,
        (last_end, waits): (u64, &DeviceWaits),
        bounds: &[u64],
        before: &mut [Before],
    ) -> (LaunchCoverage, u64) {
        let facts = self.launch_facts(profile);
        let (mut next, mut all, mut covered) = (0, LaunchCoverage::default(), 0);
        let mut waited = 0;
        self.launches.each_in_order(|launch| {
            while bounds.get(next).is_some_and(|bound| *bound <= launch.time) {
                (before[next].sum, before[next].covered) = (all, covered);
                next += 1;
            }
            let Some(facts) = facts.get(&launch.context) else { return };
            // If the GPU still ran earlier work when recording ended, the last work that a thread launched may still
            // have been queued. If a thread waited for the work that it launched last, this work was no longer queued
            // when recording ended.
            let is_over = || facts.thread.is_some_and(|one| waits.end_after(one, launch.time).is_some());
            let mut is_queued = !launch.is_covered
                && launch.time < last_end
                && facts.last_covered.is_some_and(|last| launch.time > last);
            if is_queued && is_over() {
                (is_queued, waited) = (false, waited + 1);
            }
            if facts.is_required && !is_queued {
                all.add(1, launch.is_covered);
            }
            covered += u64::from(launch.is_covered);
        });
        before[next..].iter_mut().for_each(|one| (one.sum, one.covered) = (all, covered));
        (all, waited)
    }

    fn launch_facts(&self, profile: &Profile) -> IdMap<ContextId, LaunchFacts> {
        // Time of the last launch whose GPU work was recorded, for each launch context (stack and API call).
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
            // A graph launch must lead to work if the work of this graph was recorded at least once.
            let is_graph = time.is_some() && profile.launches_graph(context);
            let is_required = profile.requires_activity(context) || is_graph;
            let last_covered = of_thread.get(&thread(context)).copied().flatten();
            (context, LaunchFacts { is_required, last_covered, thread: thread(context) })
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
        // Step 0 has two launches with GPU work. Step 1 has no launch. Step 2 has two launches, and the GPU work of one
        // of the two launches was not recorded.
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
        // The GPU is busy until the time 500. If a launch was made before the time 500, its work may still be queued.
        // If a launch was made after the time 500, its work was not recorded.
        sums.busy.push((100, 500));
        sums.pending(CorrelationId(2), launch(400));
        sums.pending(CorrelationId(3), launch(600));
        let coverage = sums.coverage(&Profile::default(), &StepSpans::default(), true);
        assert_eq!(coverage.all, LaunchCoverage { launches: 2, uncovered: 1 });
    }
}
