//! Finds the steady part of a run, in which the program does its repeated work; the time before it is the start-up, and the time
//! after it the shutdown.
//!
//! If the program marks several steps, the part begins with the first step, and ends when the work of the last launch in a step has
//! ended. Otherwise the part is the longest run of a repeated sequence of stacks. A sequence is found without storing launches:
//! a loop launches each of its stacks once per iteration, so the stack that launches kernels for the longest time, at least
//! three times, stands for the loop. If a stack has a pause of more than half of its time, only the launches on one side of the
//! pause count, because the others rather belong to the beginning or the end of the run. Repeated stacks that are launched during at least half of that time belong to the loop as
//! well. The part lasts from their first launch until the work of their last launch has ended. A loop with less than half of all
//! launches of kernels, and less than half of their GPU time, is a detail of the run, such as the layers of a single forward pass: then there
//! is no steady part.
//!
//! Memory grows with the number of stacks. Launches without GPU work are not considered.

use std::collections::hash_map::Entry;

use gpuflame_model::profile::{Profile, StackId, SteadyPart, SteadyRule};
use gpuflame_model::record::{Activity, ContextId, Detail, IdMap, Nanos, Step, map_bytes};

/// Minimum number of launches of the stack that stands for a loop.
const MIN_REPEATS: u64 = 3;

/// Times of the launches and steps so far. See the module's documentation.
#[derive(Clone, Debug, Default)]
pub(super) struct RepeatedLaunches {
    stacks: IdMap<ContextId, StackTimes>,
    steps: Option<StepTimes>,
    /// Time of the newest launch.
    newest: u64,
    /// Latest end of any work.
    latest_end: u64,
}

/// The steady part of the rows so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct FoundPart {
    pub(super) part: SteadyPart,
    /// Whether the part has ended, because later launches do not belong to it.
    pub(super) is_over: bool,
}

/// Launches of a stack, divided at the longest pause between two of them.
#[derive(Clone, Copy, Debug)]
struct StackTimes {
    /// Launches before the longest pause; `None` if there is a single launch.
    before: Option<Launches>,
    /// Launches after the longest pause.
    after: Launches,
    /// Whether the stack launches kernels or graphs.
    computes: bool,
}

/// Launches of a stack in a stretch of time.
#[derive(Clone, Copy, Debug)]
struct Launches {
    /// Times of the first and the last launch.
    first: u64,
    last: u64,
    /// Latest end of the launched work.
    end: u64,
    count: u64,
    /// Longest time between two launches.
    max_pause: u64,
    /// Sum of the durations of the launched work.
    nanos: u64,
}

/// Key of a stack: equal stacks of several threads have the same key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum StackKey {
    Stack(StackId),
    /// The profile does not know the stack.
    Context(ContextId),
}

impl StackKey {
    fn new(context: ContextId, profile: Option<&Profile>) -> Self {
        let known = profile.and_then(|profile| profile.context(context));
        known.map_or(Self::Context(context), |known| Self::Stack(known.stack))
    }
}

/// Steps so far.
#[derive(Clone, Copy, Debug)]
struct StepTimes {
    count: u64,
    first: u64,
    /// Smallest number of a step.
    first_number: u64,
    last: u64,
    /// End of the last step; `None` if it is not known.
    end: Option<u64>,
    /// Latest end of work that was launched in a step, if the ends of steps are known.
    work_end: u64,
}

impl RepeatedLaunches {
    /// Adds a step. Steps whose ends are known must be added before the work.
    pub(super) fn add_step(&mut self, step: &Step<'_>) {
        let (time, end) = (step.time.0, step.end.map(|end| end.0));
        let new =
            StepTimes { count: 0, first: time, first_number: step.number, last: time, end, work_end: 0 };
        let steps = self.steps.get_or_insert(new);
        steps.count += 1;
        steps.first = steps.first.min(time);
        steps.first_number = steps.first_number.min(step.number);
        // A step may arrive after the steps inside of it.
        steps.end = match (steps.end, end) {
            (Some(known), Some(end)) => Some(known.max(end)),
            _ if time >= steps.last => end,
            (known, _) => known,
        };
        steps.last = steps.last.max(time);
    }

    /// Adds work that was launched at `time` by this stack.
    pub(super) fn add(&mut self, activity: &Activity, context: ContextId, time: u64) {
        let (end, computes) = (activity.end.0, matches!(activity.detail, Detail::Kernel(_) | Detail::Graph));
        if let Some(steps) = &mut self.steps
            && time >= steps.first
            && steps.end.is_some_and(|end| time < end)
        {
            steps.work_end = steps.work_end.max(end);
        }
        (self.newest, self.latest_end) = (self.newest.max(time), self.latest_end.max(end));
        if context.is_others() || context < ContextId::FIRST {
            return;
        }
        let nanos = activity.duration().unwrap_or(0);
        let new = Launches { first: time, last: time, end, count: 1, max_pause: 0, nanos };
        match self.stacks.entry(context) {
            Entry::Vacant(entry) => {
                entry.insert(StackTimes { before: None, after: new, computes });
            }
            Entry::Occupied(mut entry) => {
                entry.get_mut().add(&new);
                entry.get_mut().computes |= computes;
            }
        }
    }

    /// Returns the steady part so far. Contexts that have the same stack in `profile`, on any threads, count as one. Only stacks
    /// that were launched first at or after `since` are considered.
    pub(super) fn find(&self, since: u64, profile: Option<&Profile>) -> Option<FoundPart> {
        if self.steps.is_some_and(|steps| steps.count > 1) {
            return self.find_steps().filter(|found| found.part.begin.0 >= since);
        }
        let mut stacks: Vec<(StackKey, StackTimes)> =
            self.stacks.iter().map(|(&context, times)| (StackKey::new(context, profile), *times)).collect();
        // Equal stacks are merged in an order that does not depend on the order of the map, because the result depends on it.
        stacks.sort_unstable_by_key(|(key, times)| {
            let all = times.all();
            (*key, all.first, all.last, all.count, all.nanos)
        });
        stacks.dedup_by(|(key, times), (kept, sum)| {
            let is_same = key == kept;
            if is_same {
                sum.merge(times);
            }
            is_same
        });
        stacks.retain(|(_, stack)| stack.all().first >= since);
        let stacks: Vec<_> = stacks.iter().map(|(_, stack)| *stack).collect();
        find_loop(&stacks, self.newest)
    }

    fn find_steps(&self) -> Option<FoundPart> {
        let steps = self.steps?;
        let end = match steps.end {
            Some(_) => steps.work_end,
            None if self.newest < steps.first => return None,
            None => self.latest_end,
        };
        // A program that was in its second step or later when recording began has no start-up in the recording.
        let begin = if steps.first_number > 1 { 0 } else { steps.first };
        let part = SteadyPart { rule: SteadyRule::Steps, begin: Nanos(begin), end: Nanos(end) };
        let is_over = steps.end.is_some_and(|end| self.newest >= end);
        (end > begin).then_some(FoundPart { part, is_over })
    }

    /// Replaces each context by the one that `context` returns for it. Stacks that were merged into others are forgotten.
    pub(super) fn rename(&mut self, context: impl Fn(ContextId) -> ContextId) {
        for (id, times) in std::mem::take(&mut self.stacks) {
            let id = context(id);
            if !id.is_others() {
                self.stacks.entry(id).and_modify(|sum| sum.merge(&times)).or_insert(times);
            }
        }
    }

    pub(super) fn heap_bytes(&self) -> usize {
        map_bytes(&self.stacks)
    }
}

impl Launches {
    /// Adds other launches. The result does not depend on which of both is added to the other.
    fn append(&mut self, other: &Self) {
        let pause = self.first.max(other.first).saturating_sub(self.last.min(other.last));
        self.max_pause = self.max_pause.max(other.max_pause).max(pause);
        self.first = self.first.min(other.first);
        self.last = self.last.max(other.last);
        self.end = self.end.max(other.end);
        self.count += other.count;
        self.nanos = self.nanos.saturating_add(other.nanos);
    }

    fn span(&self) -> u64 {
        self.last - self.first
    }

    /// Whether there are at least three launches, again and again over the whole time.
    fn repeat(&self) -> bool {
        self.count >= MIN_REPEATS && self.span() > 0 && self.max_pause <= self.span() / 2
    }
}

impl StackTimes {
    /// Adds an activity.
    fn add(&mut self, new: &Launches) {
        let is_launch = new.first != self.after.first && new.first != self.after.last;
        if !is_launch {
            // Each activity of a graph launch has the launch's time.
            self.after.end = self.after.end.max(new.end);
            self.after.nanos = self.after.nanos.saturating_add(new.nanos);
            return;
        }
        let pause = new.first.saturating_sub(self.after.last);
        let longest = self.before.map_or(0, |before| self.after.first.saturating_sub(before.last));
        if pause > longest {
            self.before = Some(self.all());
            self.after = *new;
        } else {
            self.after.append(new);
        }
    }

    /// Adds the launches of an equal stack. A pause of both is kept.
    fn merge(&mut self, other: &Self) {
        self.computes |= other.computes;
        let (mut before, mut after) = (self.all(), self.after);
        if let (Some(mine), Some(theirs)) = (self.before, other.before)
            && mine.last.max(theirs.last) < self.after.first.min(other.after.first)
        {
            before = mine;
            before.append(&theirs);
            after.append(&other.after);
            (self.before, self.after) = (Some(before), after);
            return;
        }
        before.append(&other.all());
        (self.before, self.after) = (None, before);
    }

    /// All launches.
    fn all(&self) -> Launches {
        let Some(mut all) = self.before else { return self.after };
        all.append(&self.after);
        all
    }

    /// The launches that repeat: all, or those on one side of the longest pause.
    fn repeating(&self) -> Option<Launches> {
        let all = self.all();
        let sides = [self.before, Some(self.after)].into_iter().flatten().filter(Launches::repeat);
        if all.repeat() { Some(all) } else { sides.max_by_key(|side| (side.count, side.first)) }
    }
}

/// Returns the longest loop of these stacks. `newest` is the time of the newest launch of any stack.
fn find_loop(stacks: &[StackTimes], newest: u64) -> Option<FoundPart> {
    let repeating = || stacks.iter().filter_map(|stack| Some((stack.computes, stack.repeating()?)));
    let leader = repeating().filter(|(computes, _)| *computes).map(|(_, launches)| launches);
    let leader = leader.max_by_key(|launches| (launches.span(), launches.count, launches.end))?;
    let is_of_loop = |(_, launches): &(bool, Launches)| {
        let both = launches.last.min(leader.last).saturating_sub(launches.first.max(leader.first));
        both >= leader.span() / 2
    };
    let (mut begin, mut end, mut own) = (leader.first, leader.end, (0, 0));
    for (computes, launches) in repeating().filter(is_of_loop) {
        (begin, end) = (begin.min(launches.first), end.max(launches.end));
        own = add_kernels(own, computes, &launches);
    }
    let all = stacks.iter().fold((0, 0), |sum, stack| add_kernels(sum, stack.computes, &stack.all()));
    if 2 * own.0 < all.0 && 2 * own.1 < all.1 {
        return None;
    }
    let part = SteadyPart { rule: SteadyRule::Repeated, begin: Nanos(begin), end: Nanos(end) };
    Some(FoundPart { part, is_over: newest > leader.last.saturating_add(leader.max_pause.saturating_mul(2)) })
}

/// Adds the launches of kernels and their GPU time.
fn add_kernels((count, nanos): (u128, u128), computes: bool, launches: &Launches) -> (u128, u128) {
    match computes {
        true => (count + u128::from(launches.count), nanos + u128::from(launches.nanos)),
        false => (count, nanos),
    }
}

/// Times at which the account of all devices is divided, so that the idle time before and after each of them is known.
#[derive(Clone, Debug, Default)]
pub(super) struct Cuts(Vec<u64>);

impl Cuts {
    /// Adds a cut. The time after it must not be accounted for yet.
    pub(super) fn add(&mut self, time: u64) {
        if let Err(at) = self.0.binary_search(&time) {
            self.0.insert(at, time);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the last cut at or before `time`; 0 if there is none.
    pub(super) fn before(&self, time: u64) -> u64 {
        self.0.partition_point(|cut| *cut <= time).checked_sub(1).map_or(0, |at| self.0[at])
    }

    /// Returns the first cut at or after `time`.
    pub(super) fn after(&self, time: u64) -> Option<u64> {
        self.0.get(self.0.partition_point(|cut| *cut < time)).copied()
    }

    /// Divides `from..to` at the cuts, and passes each piece to `each`, in order of time.
    pub(super) fn split(&self, from: u64, to: u64, each: &mut dyn FnMut(CutPiece)) {
        let mut at = self.0.partition_point(|cut| *cut <= from);
        let mut start = from;
        while start < to {
            let since = at.checked_sub(1).map_or(0, |before| self.0[before]);
            let end = self.0.get(at).map_or(to, |next| to.min(*next));
            each(CutPiece { since, from: start, to: end });
            (start, at) = (end, at + 1);
        }
    }
}

/// A piece of time between two cuts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CutPiece {
    /// Last cut at or before the piece; 0 if there is none.
    pub(super) since: u64,
    pub(super) from: u64,
    pub(super) to: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuflame_model::record::testing::{copy, kernel};
    use gpuflame_model::record::{ContextFlags, CopyKind, Frame, ModuleEpoch, Row, ThreadId};

    const MS: u64 = 1_000_000;

    /// Adds launches of a stack at these times in ms, each with 1 ms of work that begins at once.
    fn add(launches: &mut RepeatedLaunches, stack: u32, times: impl IntoIterator<Item = u64>) {
        for time in times {
            launches.add(&kernel(1, time * MS, (time + 1) * MS), ContextId(stack), time * MS);
        }
    }

    fn steady(launches: &RepeatedLaunches) -> Option<(u64, u64)> {
        let found = launches.find(0, None)?.part;
        Some((found.begin.0 / MS, found.end.0 / MS))
    }

    fn step(time: u64, end: Option<u64>, number: u64) -> Step<'static> {
        let (time, end) = (Nanos(time * MS), end.map(|end| Nanos(end * MS)));
        Step { time, end, thread: ThreadId(1), number, name: "" }
    }

    #[test]
    fn the_longest_loop_is_found_with_all_of_its_stacks() {
        let mut launches = RepeatedLaunches::default();
        // Start-up: single launches, and a loop of 100 ms. Then 100 iterations of 10 ms with three stacks, one of which is
        // launched in an inner loop, and another loop after them.
        add(&mut launches, 10, [5]);
        add(&mut launches, 11, (0..50).map(|at| 100 + 2 * at));
        for step in 0..100 {
            add(&mut launches, 20, [1000 + 10 * step]);
            add(&mut launches, 21, [1002 + 10 * step, 1003 + 10 * step, 1004 + 10 * step]);
            add(&mut launches, 22, [1007 + 10 * step]);
        }
        add(&mut launches, 30, (0..20).map(|at| 2100 + 10 * at));
        add(&mut launches, 31, [2500]);
        assert_eq!(steady(&launches), Some((1000, 1998)));
    }

    #[test]
    fn a_loop_that_pauses_or_begins_with_a_copy_is_one_loop() {
        let mut launches = RepeatedLaunches::default();
        let loads = (0..20).map(|at| 100 * at + 500 * (at / 10));
        for time in loads {
            launches.add(&copy(1, CopyKind::HTOD, 1, time * MS, (time + 1) * MS), ContextId(20), time * MS);
            add(&mut launches, 21, [time + 50]);
        }
        assert_eq!(steady(&launches), Some((0, 2451)));
    }

    #[test]
    fn copies_alone_and_two_launches_are_no_loop() {
        let mut launches = RepeatedLaunches::default();
        for time in 0..100 {
            launches.add(&copy(1, CopyKind::HTOD, 1, time * MS, (time + 1) * MS), ContextId(20), time * MS);
        }
        add(&mut launches, 21, [200, 300]);
        assert_eq!(steady(&launches), None);
        add(&mut launches, 21, [400]);
        assert_eq!(steady(&launches), Some((200, 401)));
    }

    #[test]
    fn a_loop_with_few_launches_and_little_gpu_time_is_no_steady_part() {
        let mut launches = RepeatedLaunches::default();
        add(&mut launches, 20, (0..10).map(|at| 100 + at));
        (0..11).for_each(|at| add(&mut launches, 100 + at, [200 + 10 * u64::from(at)]));
        assert_eq!(steady(&launches), None);
        // The loop now has most of the GPU time.
        launches.add(&kernel(1, 120 * MS, 140 * MS), ContextId(20), 110 * MS);
        assert_eq!(steady(&launches), Some((100, 140)));
    }

    #[test]
    fn a_loop_whose_iterations_run_on_several_threads_is_one_loop() {
        let (mut launches, mut profile) = (RepeatedLaunches::default(), Profile::default());
        (0..10).for_each(|at| add(&mut launches, 20 + at, [u64::from(at)]));
        assert_eq!(steady(&launches), None);
        for id in 20..30 {
            let (flags, frames) = (ContextFlags::default(), &[Frame::native(1, ModuleEpoch(0))]);
            profile.push(&Row::Context { id: ContextId(id), thread: ThreadId(id), flags, frames });
        }
        let found = launches.find(0, Some(&profile)).unwrap().part;
        assert_eq!((found.begin, found.end, found.rule), (Nanos(0), Nanos(10 * MS), SteadyRule::Repeated));
    }

    #[test]
    fn steps_take_precedence_over_loops() {
        let mut launches = RepeatedLaunches::default();
        add(&mut launches, 10, (0..50).map(|at| 10 * at));
        [600, 700]
            .into_iter()
            .zip(1..)
            .for_each(|(time, number)| launches.add_step(&step(time, None, number)));
        assert_eq!(steady(&launches), None, "nothing was launched in a step");
        add(&mut launches, 11, [650, 750]);
        assert_eq!(steady(&launches), Some((600, 751)));
        // Step 5 was in progress when recording began.
        let mut launches = RepeatedLaunches::default();
        [600, 700]
            .into_iter()
            .zip(6..)
            .for_each(|(time, number)| launches.add_step(&step(time, None, number)));
        add(&mut launches, 11, [550, 750]);
        assert_eq!(steady(&launches), Some((0, 751)));
        // A single step may be a mark before or after the work.
        let mut launches = RepeatedLaunches::default();
        launches.add_step(&step(600, None, 1));
        add(&mut launches, 11, [550, 650]);
        assert_eq!(steady(&launches), None);
    }

    #[test]
    fn a_first_step_long_before_the_loop_is_start_up() {
        let mut launches = RepeatedLaunches::default();
        // The forward pass has a stack of its own in the warm-up; the backward pass runs on another thread and has not.
        add(&mut launches, 10, [0]);
        add(&mut launches, 20, [2]);
        for step in 0..40 {
            add(&mut launches, 11, [2500 + 4 * step]);
            add(&mut launches, 20, [2502 + 4 * step]);
        }
        assert_eq!(steady(&launches), Some((2500, 2659)));
        // One more step at the end of the run is its shutdown.
        add(&mut launches, 12, [9000]);
        assert_eq!(steady(&launches), Some((2500, 2659)));
    }

    #[test]
    fn a_last_step_long_after_the_loop_is_shutdown() {
        let mut launches = RepeatedLaunches::default();
        for step in 0..40 {
            add(&mut launches, 11, [4 * step]);
            add(&mut launches, 20, [2 + 4 * step]);
        }
        add(&mut launches, 20, [9000]);
        assert_eq!(steady(&launches), Some((0, 159)));
    }

    #[test]
    fn a_stack_of_the_beginning_and_the_end_of_a_run_is_no_loop() {
        let mut launches = RepeatedLaunches::default();
        add(&mut launches, 10, [0, 4000, 9000]);
        assert_eq!(steady(&launches), None);
        add(&mut launches, 20, (0..100).map(|at| 3000 + 20 * at));
        assert_eq!(steady(&launches), Some((3000, 4981)));
    }

    #[test]
    fn a_step_that_arrives_after_the_steps_inside_of_it_has_its_own_end() {
        let mut launches = RepeatedLaunches::default();
        launches.add_step(&step(110, Some(120), 2));
        launches.add_step(&step(100, Some(200), 1));
        add(&mut launches, 10, [115, 180]);
        assert_eq!(steady(&launches), Some((100, 181)));
    }

    #[test]
    fn work_of_stacks_that_are_not_known_belongs_to_its_step() {
        for end in [None, Some(200)] {
            let mut launches = RepeatedLaunches::default();
            launches.add_step(&step(100, end, 1));
            launches.add_step(&step(150, end, 2));
            add(&mut launches, 10, [160]);
            launches.add(&kernel(1, 170 * MS, 190 * MS), ContextId::OTHERS, 170 * MS);
            assert_eq!(steady(&launches), Some((100, 190)), "{end:?}");
        }
    }

    #[test]
    fn work_after_the_end_of_the_last_step_is_not_in_it() {
        let mut launches = RepeatedLaunches::default();
        launches.add_step(&step(100, Some(150), 1));
        launches.add_step(&step(150, Some(200), 2));
        add(&mut launches, 10, [50, 120, 180, 250, 300]);
        assert_eq!(steady(&launches), Some((100, 181)));
    }

    #[test]
    fn time_is_divided_at_cuts() {
        let mut cuts = Cuts::default();
        [50, 20, 50].into_iter().for_each(|cut| cuts.add(cut));
        let split = |from, to| {
            let mut pieces = Vec::new();
            cuts.split(from, to, &mut |piece| pieces.push((piece.since, piece.from, piece.to)));
            pieces
        };
        assert_eq!(split(10, 60), [(0, 10, 20), (20, 20, 50), (50, 50, 60)]);
        assert_eq!(split(20, 50), [(20, 20, 50)]);
        assert_eq!(split(30, 30), []);
        assert_eq!((cuts.before(49), cuts.after(21), cuts.after(51)), (20, Some(50), None));
    }
}
