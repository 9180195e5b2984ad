//! Collects data about each step of the program. The data are the step's duration, the GPU work that began during the
//! step, and the number of the step's launches that have GPU work.
//!
//! If a trace contains the end of a step, the step lasts until this end. If the end is unknown, the step lasts until
//! the next step begins. If the window closes before the next step begins, the end of the step counts as unknown,
//! because the last step of a run must not include the shutdown.
//!
//! The newest [`RECENT`] steps are stored one by one, because the steps of several threads may arrive out of order.
//! Older steps are stored in groups of consecutive steps. All groups have the same number of steps, which is initially
//! one. Whenever there are more than [`MAX_GROUPS`] groups, each two neighbouring groups become one group. Before a
//! step enters a group, its duration is added to the histogram for the steps with the same name. The [`LONGEST`]
//! longest steps are also stored one by one. So the memory of steps is bounded for a run of any length. The result does
//! not depend on the order in which GPU work arrives.

use std::cmp::Reverse;
use std::collections::VecDeque;

use super::communication::is_communication_kernel;
use super::join::Launched;
use super::symbolize::kernel_name;
use gpuflame_model::profile::{LaunchCoverage, Profile, SingleStep, StepGroup, StepKind, StepSeries, add_to};
use gpuflame_model::record::{Activity, CopyKind, Detail, IdMap, Nanos, Step, WindowEdge, map_bytes};

/// Maximum number of groups of steps. All groups together take 290 KB.
const MAX_GROUPS: usize = 1 << 12;
/// Number of newest steps that are stored one by one instead of in groups.
const RECENT: usize = 1 << 8;
/// Maximum number of kinds of steps (steps with the same name). If there are more kinds, steps of further kinds count
/// as steps of the last kind.
const MAX_KINDS: usize = 16;
/// Name of the last kind if that kind represents steps with several names.
const OTHER_KINDS: &str = "[other steps]";
/// Number of longest steps that are stored one by one.
const LONGEST: usize = 32;
/// Maximum number of kernels in the cache that stores which kernels communicate. If a run has more kernels, a kernel
/// that is not in the cache is classified again for each of its activities.
const MAX_KERNELS: usize = 1 << 14;
/// Maximum number of launch contexts in the cache that stores whose launches should have an activity. When this cache
/// is full, it is cleared.
const MAX_CONTEXTS: usize = 1 << 14;

/// Times at which the windows of a run opened and closed, in order of time.
type Windows = [(WindowEdge, Nanos)];

/// Steps of the program so far. See the module's documentation.
#[derive(Clone, Debug, Default)]
pub(super) struct StepSeriesBuilder {
    /// The newest steps, sorted by time.
    recent: VecDeque<OpenStep>,
    /// Index in `recent` of the step to which the last activity was added.
    last: usize,
    grouped: GroupedSteps,
    kinds: Vec<String>,
    /// Whether a kernel communicates, keyed by the id of the kernel's name. The keys are plain integers, so that this
    /// map has the same type as `requires_activity`. A second type of map would add 2 KB to the library.
    communicates: IdMap<u32, bool>,
    /// Whether launches in a launch context should have an activity, keyed by the id of the context.
    requires_activity: IdMap<u32, bool>,
}

/// A step whose end may not be known yet.
#[derive(Clone, Copy, Debug)]
struct OpenStep {
    step: SingleStep,
    coverage: LaunchCoverage,
    /// Time at which the step ended. The field is `None` if the trace or recording does not contain the end; the step
    /// then lasts until the next step begins.
    end: Option<Nanos>,
}

/// Steps that are no longer among the newest, stored in groups of consecutive steps.
#[derive(Clone, Debug, Default)]
struct GroupedSteps {
    groups: Vec<StepGroup>,
    /// Binary logarithm of the number of steps in a group.
    size_bits: u32,
    /// Statistics of each kind of step. The statistics do not contain the names of the kinds.
    kinds: Vec<StepKind>,
    longest: Vec<SingleStep>,
}

impl StepSeriesBuilder {
    /// Adds a step. `windows` contains the openings and closings of windows so far.
    pub(super) fn add_step(&mut self, step: &Step<'_>, windows: &Windows) {
        let (kind, number) = (self.kind(step.name), number_in(step.name).unwrap_or(step.number));
        let begin = step.time;
        let single = SingleStep { number, begin, nanos: 0, kind, work: 0, communication: 0 };
        let at = self.recent.partition_point(|known| known.step.begin <= begin);
        self.recent.insert(at, OpenStep { step: single, coverage: LaunchCoverage::default(), end: step.end });
        if self.recent.len() > RECENT
            && let Some(oldest) = self.recent.pop_front()
        {
            let next = self.recent.front().map(|known| known.step.begin);
            self.grouped.add(&oldest, oldest.end(next, windows));
            self.last = self.last.saturating_sub(1);
        }
    }

    /// Adds a GPU activity to the step during which it began.
    pub(super) fn add_activity(&mut self, activity: &Activity, profile: &Profile) {
        if self.recent.is_empty() {
            return;
        }
        let Some(nanos) = activity.duration() else { return };
        let communicates = self.is_communication(activity, profile);
        let (work, communication) = match self.find_recent(activity.start) {
            Some(at) => {
                let SingleStep { work, communication, .. } = &mut self.recent[at].step;
                (work, communication)
            }
            None => match self.grouped.find(activity.start) {
                Some(StepGroup { work, communication, .. }) => (work, communication),
                None => return,
            },
        };
        add_to(if communicates { communication } else { work }, nanos);
    }

    /// Counts a launch that should have an activity. Launches of copies and fills are ignored, because they may have no
    /// activity. A graph may be empty, so a graph launch counts only if a launch with the same context has had an
    /// activity.
    ///
    /// This function is not inlined, because otherwise its code (1 KB) would be repeated at each call.
    #[inline(never)]
    pub(super) fn add_launch(&mut self, launched: Launched, is_covered: bool, profile: &Profile) {
        if self.recent.is_empty() {
            return;
        }
        let Launched { time, context, .. } = launched;
        if self.requires_activity.len() >= MAX_CONTEXTS {
            self.requires_activity.clear();
        }
        let known = self.requires_activity.get(&context.0).copied();
        let requires = known.unwrap_or_else(|| profile.requires_activity(context))
            || is_covered && profile.launches_graph(context);
        if known != Some(requires) {
            self.requires_activity.insert(context.0, requires);
        }
        if !requires {
            return;
        }
        match self.find_recent(time) {
            Some(at) => self.recent[at].coverage.add(1, is_covered),
            None => {
                if let Some(group) = self.grouped.find(time) {
                    group.coverage.add(1, is_covered);
                }
            }
        }
    }

    /// Returns the index in `recent` of the step that contains `time`.
    fn find_recent(&mut self, time: Nanos) -> Option<usize> {
        let begins = |at: usize| self.recent.get(at).map_or(u64::MAX, |known| known.step.begin.0);
        if !(begins(self.last) <= time.0 && time.0 < begins(self.last + 1)) {
            let after = self.recent.partition_point(|known| known.step.begin <= time);
            self.last = after.checked_sub(1)?;
        }
        let is_over = self.recent[self.last].end.is_some_and(|end| time >= end);
        (!is_over).then_some(self.last)
    }

    fn is_communication(&mut self, activity: &Activity, profile: &Profile) -> bool {
        let kernel = match activity.detail {
            Detail::Kernel(kernel) => kernel.name,
            Detail::Copy(copy) => return copy.kind == CopyKind::PTOP,
            Detail::Set(_) | Detail::Graph => return false,
        };
        if let Some(known) = self.communicates.get(&kernel.0) {
            return *known;
        }
        if self.communicates.len() >= MAX_KERNELS {
            return false;
        }
        let communicates =
            profile.kernel(kernel).is_some_and(|name| is_communication_kernel(&kernel_name(name)));
        self.communicates.insert(kernel.0, communicates);
        communicates
    }

    /// Returns the index of the kind of steps with this name. A number at the end of the name is ignored, because this
    /// number is the step's sequence number.
    fn kind(&mut self, name: &str) -> u8 {
        let name = name.trim_end_matches(|c: char| c.is_ascii_digit()).trim_end_matches([' ', '#', '_', ':']);
        let known = self.kinds.iter().position(|kind| kind == name);
        let at = known.unwrap_or(self.kinds.len()).min(MAX_KINDS - 1);
        if at == self.kinds.len() {
            self.kinds.push(if at == MAX_KINDS - 1 { OTHER_KINDS } else { name }.to_owned());
        }
        at as u8
    }

    /// Returns the data about all steps so far.
    pub(super) fn series(&self, windows: &Windows) -> StepSeries {
        let mut grouped = self.grouped.clone();
        for (at, known) in self.recent.iter().enumerate() {
            let next = self.recent.get(at + 1).map(|known| known.step.begin);
            grouped.add(known, known.end(next, windows));
        }
        let mut nameless = grouped.kinds.into_iter();
        let kind = |name: &String| StepKind { name: name.clone(), ..nameless.next().unwrap_or_default() };
        let kinds = self.kinds.iter().map(kind).collect();
        StepSeries { groups: grouped.groups, kinds, longest: grouped.longest }
    }

    pub(super) fn heap_bytes(&self) -> usize {
        let durations = self.grouped.kinds.iter().map(|kind| kind.durations.heap_bytes());
        self.recent.capacity() * size_of::<OpenStep>()
            + self.grouped.groups.capacity() * size_of::<StepGroup>()
            + map_bytes(&self.communicates)
            + map_bytes(&self.requires_activity)
            + durations.sum::<usize>()
    }
}

impl OpenStep {
    /// Returns the time at which the step ended; `None` if this time is unknown. `next` is the time at which the next
    /// step began.
    fn end(&self, next: Option<Nanos>, windows: &Windows) -> Option<Nanos> {
        let begin = self.step.begin;
        let later = &windows[windows.partition_point(|(_, time)| *time < begin)..];
        let closed = later.iter().find(|(edge, _)| *edge == WindowEdge::Close).map(|(_, time)| *time);
        let next = next.filter(|next| closed.is_none_or(|closed| *next <= closed));
        self.end.or(next).map(|end| end.max(begin))
    }
}

impl GroupedSteps {
    /// Adds a step that began after all steps in the existing groups.
    fn add(&mut self, open: &OpenStep, end: Option<Nanos>) {
        let OpenStep { mut step, coverage, .. } = *open;
        let SingleStep { number, begin, kind, work, communication, .. } = step;
        if let Some(end) = end {
            step.nanos = end.0 - begin.0;
            self.count_duration(step);
        }
        let (end, kind) = (end.unwrap_or(begin), Some(kind));
        let group = StepGroup { number, begin, end, steps: 1, kind, work, communication, coverage };
        match self.groups.last_mut() {
            Some(last) if last.steps < 1 << self.size_bits => *last = merged(last, &group),
            _ => self.groups.push(group),
        }
        if self.groups.len() > MAX_GROUPS {
            let last = self.groups.pop();
            let pairs = self.groups.as_chunks().0.iter();
            self.groups = pairs.map(|[first, second]| merged(first, second)).chain(last).collect();
            self.size_bits += 1;
        }
    }

    fn count_duration(&mut self, step: SingleStep) {
        let kind = usize::from(step.kind);
        if self.kinds.len() <= kind {
            self.kinds.resize_with(kind + 1, Default::default);
        }
        let sums = &mut self.kinds[kind];
        sums.count += 1;
        add_to(&mut sums.nanos, step.nanos);
        sums.durations.record(step.nanos);
        if step.nanos > sums.max || sums.count == 1 {
            (sums.max, sums.longest) = (step.nanos, step.number);
        }
        let is_longer =
            |one: &SingleStep| (Reverse(one.nanos), one.begin) < (Reverse(step.nanos), step.begin);
        let at = self.longest.partition_point(is_longer);
        if at < LONGEST {
            self.longest.truncate(LONGEST - 1);
            self.longest.insert(at, step);
        }
    }

    /// Returns the group of steps that contains `time`.
    fn find(&mut self, time: Nanos) -> Option<&mut StepGroup> {
        let after = self.groups.partition_point(|group| group.begin <= time);
        let group = &mut self.groups[after.checked_sub(1)?];
        (time < group.end).then_some(group)
    }
}

/// Returns the number at the end of a step's name, such as 1011 for `ProfilerStep#1011`. The number in the name is the
/// program's own count of its steps.
fn number_in(name: &str) -> Option<u64> {
    name[name.trim_end_matches(|c: char| c.is_ascii_digit()).len()..].parse().ok()
}

/// Merges two neighbouring groups of steps into one.
fn merged(first: &StepGroup, second: &StepGroup) -> StepGroup {
    let mut coverage = first.coverage;
    coverage.merge(second.coverage);
    StepGroup {
        coverage,
        end: second.end.max(first.end),
        steps: first.steps.saturating_add(second.steps),
        kind: first.kind.filter(|_| first.kind == second.kind),
        work: first.work.saturating_add(second.work),
        communication: first.communication.saturating_add(second.communication),
        ..*first
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuflame_model::record::testing::{copy, kernel};
    use gpuflame_model::record::{ContextFlags, ContextId, Frame, LabelId, NameId, Row, ThreadId};

    const WINDOW: [(WindowEdge, Nanos); 2] =
        [(WindowEdge::Open, Nanos(5)), (WindowEdge::Close, Nanos(1 << 40))];

    fn step(number: u64, time: u64, end: Option<u64>, name: &str) -> Step<'_> {
        Step { time: Nanos(time), end: end.map(Nanos), thread: ThreadId(1), number, name }
    }

    /// Returns the data about `count` steps with one kernel of 40 ns each. Each step takes 100 ns, except the step
    /// `at`, which takes `long` ns.
    fn run(count: u64, at: u64, long: u64) -> StepSeries {
        let (mut builder, profile) = (StepSeriesBuilder::default(), Profile::default());
        let mut time = 1000;
        for number in 1..=count {
            builder.add_step(&step(number, time, None, ""), &WINDOW);
            builder.add_activity(&kernel(1, time + 10, time + 50), &profile);
            time += if number == at { long } else { 100 };
        }
        builder.add_step(&step(count + 1, time, None, ""), &WINDOW);
        let mut series = builder.series(&[WINDOW[0], (WindowEdge::Close, Nanos(time + 5))]);
        let last = series.groups.pop_if(|last| last.number == count + 1);
        assert!(last.is_some_and(|last| last.nanos() == 0), "the end of the last step is not known");
        series
    }

    #[test]
    fn a_few_steps_are_kept_one_by_one() {
        let series = run(10, 4, 700);
        assert_eq!(series.groups.len(), 10);
        assert!(series.groups.iter().all(|group| (group.steps, group.work) == (1, 40)));
        assert_eq!(series.groups.iter().map(StepGroup::nanos).collect::<Vec<_>>()[2..5], [100, 700, 100]);
        let kind = &series.kinds[0];
        assert_eq!((kind.count, kind.nanos, kind.max, kind.longest), (10, 9 * 100 + 700, 700, 4));
        assert_eq!((kind.durations.percentile(50), series.longest[0].number), (100, 4));
    }

    #[test]
    fn many_steps_form_groups_of_equal_size_and_none_is_lost() {
        let count = 100_000;
        let series = run(count, 51_234, 9_000);
        let sizes: Vec<u64> = series.groups.iter().map(|group| group.steps).collect();
        // With 32 steps per group, 100,000 steps fit into 4,096 groups.
        assert_eq!(sizes, vec![32; 3125]);
        assert!(series.groups.iter().all(|group| group.work == 32 * 40));
        let kind = &series.kinds[0];
        assert_eq!((kind.count, kind.nanos), (count, (count - 1) * 100 + 9_000));
        assert_eq!((series.longest[0].number, series.longest[0].nanos), (51_234, 9_000));
        let contiguous = series.groups.windows(2).all(|pair| pair[0].end == pair[1].begin);
        assert!(contiguous && series.groups[0].number == 1 && series.groups[1].number == 33);
    }

    #[test]
    fn steps_with_one_name_are_one_kind_and_their_ends_may_be_known() {
        let (mut builder, profile) = (StepSeriesBuilder::default(), Profile::default());
        let names = ["ProfilerStep#1", "ProfilerStep#2", "eval", "step[bs=32]", "step[bs=64]"];
        for (name, time) in names.iter().zip((0..).step_by(100)) {
            builder.add_step(&step(1, time, Some(time + 60), name), &[]);
        }
        builder.add_activity(&kernel(1, 130, 150), &profile);
        // The kernel runs between the end of one step and the beginning of the next step.
        builder.add_activity(&kernel(1, 170, 190), &profile);
        let series = builder.series(&[]);
        let kinds: Vec<_> = series.kinds.iter().map(|kind| (&*kind.name, kind.count, kind.nanos)).collect();
        let expected =
            [("ProfilerStep", 2, 120), ("eval", 1, 60), ("step[bs=32]", 1, 60), ("step[bs=64]", 1, 60)];
        assert_eq!(kinds, expected);
        assert_eq!(series.groups.iter().map(|group| group.work).collect::<Vec<_>>(), [0, 20, 0, 0, 0]);
    }

    #[test]
    fn communication_and_work_are_summed_separately() {
        let (mut builder, mut profile) = (StepSeriesBuilder::default(), Profile::default());
        profile.push(&gpuflame_model::record::Row::Name {
            id: NameId(1),
            text: "ncclDevKernel_AllReduce_Sum_f32",
        });
        builder.add_step(&step(1, 100, None, ""), &WINDOW);
        builder.add_activity(&kernel(1, 110, 150), &profile);
        builder.add_activity(&copy(1, CopyKind::PTOP, 8, 160, 163), &profile);
        builder.add_activity(&copy(1, CopyKind::HTOD, 8, 170, 177), &profile);
        let group = builder.series(&WINDOW).groups[0];
        assert_eq!((group.work, group.communication), (7, 43));
    }

    #[test]
    fn launches_count_for_the_step_in_which_they_were_made() {
        let mut builder = StepSeriesBuilder::default();
        let mut profile = Profile::default();
        for (id, call) in [(1, "cudaLaunchKernel"), (2, "cudaGraphLaunch"), (3, "cudaMemcpyAsync")] {
            profile.push(&Row::Label { id: LabelId(id), text: call });
            let (thread, flags, frames) = (ThreadId(1), ContextFlags(0), [Frame::label(LabelId(id))]);
            profile.push(&Row::Context { id: ContextId(id + 10), thread, flags, frames: &frames });
        }
        for number in 1..=4 {
            builder.add_step(&step(number, 100 * number, None, ""), &WINDOW);
        }
        let launch = |time, context| Launched { time: Nanos(time), duration: 5, context: ContextId(context) };
        // The launch of a copy need not have an activity, and neither need the launch of a graph that has not run yet.
        for (time, context, is_covered) in [
            (99, 11, false),
            (110, 11, true),
            (120, 12, false),
            (130, 13, false),
            (199, 11, false),
            (200, 12, true),
            (310, 12, false),
            (320, 11, true),
            (330, 11, true),
        ] {
            builder.add_launch(launch(time, context), is_covered, &profile);
        }
        let groups = builder.series(&WINDOW).groups;
        let counts: Vec<_> =
            groups.iter().map(|group| (group.coverage.launches, group.coverage.uncovered)).collect();
        assert_eq!(counts, [(2, 1), (1, 0), (3, 1), (0, 0)]);
        profile.set_step_series(builder.series(&WINDOW));
        profile.count_coverage(6);
        assert_eq!(profile.coverage().uncovered_steps, [0, 2]);
        let sums = merged(&groups[0], &groups[2]);
        assert_eq!(sums.coverage, LaunchCoverage { launches: 5, uncovered: 2 });
    }

    #[test]
    fn a_step_without_an_end_is_not_counted_and_steps_may_arrive_out_of_order() {
        let mut builder = StepSeriesBuilder::default();
        for time in [300, 100, 200] {
            builder.add_step(&step(time / 100, time, None, ""), &WINDOW[..1]);
        }
        let series = builder.series(&WINDOW[..1]);
        assert_eq!((series.kinds[0].count, series.kinds[0].nanos), (2, 200));
        assert_eq!(series.groups.iter().map(|group| group.number).collect::<Vec<_>>(), [1, 2, 3]);
    }
}
