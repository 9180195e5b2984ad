//! Finds the steady part of a run, in which the program repeats the same work. The time before the steady part is the
//! start-up, and the time after it is the shutdown.
//!
//! If the program marks more than one step, the steady part begins with the first step. The steady part ends when the
//! work of the last launch in a step has ended. If the program marks no or one step, the steady part is the longest
//! loop that launches GPU work from the same stacks in each iteration. The longest loop is found in the following way,
//! without storing single launches:
//!
//! 1. Each stack in a loop launches work at least once per iteration, so one stack can represent the loop. The
//!    representative is chosen among the stacks that launch kernels at least three times. The stack with the longest
//!    time between its first and its last launch is tried first.
//! 2. If more than half of this time passes between the stack's first and second launch, the first launch belongs to
//!    the start-up (for example to a warm-up step). In the same way, the last launch may belong to the shutdown.
//! 3. Another stack with several launches belongs to the loop if the time from its first to its last launch covers at
//!    least half of the loop's time.
//! 4. The steady part begins with the first launch of any of these stacks, and ends when the work of their last launch
//!    has ended.
//! 5. The stacks of the loop must launch at least half of the run's kernels. Alternatively, their kernels must have at
//!    least half of the GPU time of all kernels. If neither holds, the loop is only a detail of the run (such as the
//!    layers of a single forward pass), or the stack represents only a part of the loop. The stack with the next
//!    longest time from first to last launch is then tried. If no stack represents half of the run's kernels or GPU
//!    time, the run has no steady part.
//!
//! The result does not depend on the order in which GPU work arrives. A live session and a later reading of the
//! recording deliver GPU work in different orders, but must find the same steady part.
//!
//! The memory for the search grows with the number of stacks. Launches without GPU work are ignored.

use gpuflame_model::profile::{Profile, StackId, SteadyPart, SteadyRule};
use gpuflame_model::record::{Activity, ContextId, Detail, IdMap, Nanos, Step, map_bytes};

/// Minimum number of times that the stack which represents a loop must be launched.
const MIN_REPEATS: usize = 3;

/// Times of all launches and steps so far, by stack. See the module's documentation.
#[derive(Clone, Debug, Default)]
pub(super) struct RepeatedLaunches {
    stacks: IdMap<ContextId, StackTimes>,
    steps: Option<StepTimes>,
    /// Time at which the newest launch was made.
    newest: u64,
    /// Time at which the latest GPU work ended.
    latest_end: u64,
}

/// Result of the search for the steady part, for the rows so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct FoundPart {
    pub(super) part: SteadyPart,
    /// Whether the steady part has ended. Launches after the end of the steady part do not belong to the steady part.
    pub(super) is_over: bool,
}

/// Maximum number of stacks that are tried as the representative of a loop. The stack with the longest time from its
/// first to its last launch is tried first. One stack is not enough, because the first step of a program may be long,
/// and may launch the stacks of a model's layers several times. The time from first to last launch is then longer for
/// these stacks than for all other stacks in the loop.
const MAX_LEADERS: usize = 16;

/// Number of launches that are stored at the beginning of each stack's launches, and also at their end. Increasing this
/// number by one costs 24 bytes per stack.
const KNOWN: usize = 2;

/// Times at which a stack made launches. All fields are sums, minima or maxima, so they do not depend on the order in
/// which activities arrive.
#[derive(Clone, Copy, Debug)]
struct StackTimes {
    /// Times of the stack's first `KNOWN` launches, ascending. If the stack made fewer launches, the last entry is
    /// repeated.
    first: [u64; KNOWN],
    /// Times of the stack's last `KNOWN` launches, descending, each with the time at which the launched work ended. If
    /// the stack made fewer launches, the last entry is repeated.
    last: [(u64, u64); KNOWN],
    /// Number of activities that the stack has launched.
    count: u64,
    /// Total duration in ns of the work that the stack has launched.
    nanos: u64,
    /// Whether the stack launches kernels or graphs (and not only copies and fills).
    computes: bool,
}

/// Times of a stack's launches that belong to the loop. Launches in the start-up and in the shutdown are excluded.
#[derive(Clone, Copy, Debug)]
struct Repeated {
    first: u64,
    last: u64,
    /// Time at which the work of the last launch ended.
    end: u64,
}

impl Repeated {
    fn span(&self) -> u64 {
        self.last - self.first
    }
}

/// Key that identifies a stack. Equal stacks of different threads have the same key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum StackKey {
    Stack(StackId),
    /// Context of the launches, if the stack is not in the profile.
    Context(ContextId),
}

impl StackKey {
    fn new(context: ContextId, profile: Option<&Profile>) -> Self {
        let known = profile.and_then(|profile| profile.context(context));
        known.map_or(Self::Context(context), |known| Self::Stack(known.stack))
    }
}

/// Times of the program's steps in the rows so far.
#[derive(Clone, Copy, Debug)]
struct StepTimes {
    count: u64,
    first: u64,
    /// Smallest sequence number of a step.
    first_number: u64,
    last: u64,
    /// Time at which the last step ended. The field is `None` if this time is unknown.
    end: Option<u64>,
    /// Time at which the latest work that was launched in a step ended. This time is used only if the ends of steps are
    /// known.
    work_end: u64,
}

impl RepeatedLaunches {
    /// Adds a step of the program. A step whose end is known must be added before the work that was launched in the
    /// step.
    pub(super) fn add_step(&mut self, step: &Step<'_>) {
        let (time, end) = (step.time.0, step.end.map(|end| end.0));
        let new =
            StepTimes { count: 0, first: time, first_number: step.number, last: time, end, work_end: 0 };
        let steps = self.steps.get_or_insert(new);
        steps.count += 1;
        steps.first = steps.first.min(time);
        steps.first_number = steps.first_number.min(step.number);
        // A step may be added after the steps that are nested in it.
        steps.end = match (steps.end, end) {
            (Some(known), Some(end)) => Some(known.max(end)),
            _ if time >= steps.last => end,
            (known, _) => known,
        };
        steps.last = steps.last.max(time);
    }

    /// Adds an activity that was launched at `time` from this context.
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
        let new = StackTimes { first: [time; KNOWN], last: [(time, end); KNOWN], count: 1, nanos, computes };
        self.stacks.entry(context).and_modify(|stack| stack.add(&new)).or_insert(new);
    }

    /// Returns the steady part of the run, for the rows so far. Contexts that have the same stack in `profile` count as
    /// one stack, even on different threads. Only stacks whose first launch was at or after `since` are considered.
    pub(super) fn find(&self, since: u64, profile: Option<&Profile>) -> Option<FoundPart> {
        if self.steps.is_some_and(|steps| steps.count > 1) {
            return self.find_steps().filter(|found| found.part.begin.0 >= since);
        }
        let mut stacks: Vec<(StackKey, &StackTimes)> =
            self.stacks.iter().map(|(&context, times)| (StackKey::new(context, profile), times)).collect();
        stacks.sort_unstable_by_key(|(key, _)| *key);
        let merge = |same: &[(StackKey, &StackTimes)]| {
            let mut sum = *same[0].1;
            same[1..].iter().for_each(|(_, times)| sum.merge(times));
            sum
        };
        let stacks = stacks.chunk_by(|(a, _), (b, _)| a == b).map(merge);
        let stacks: Vec<_> = stacks.filter(|stack| stack.first[0] >= since).collect();
        find_loop(&stacks, self.newest)
    }

    fn find_steps(&self) -> Option<FoundPart> {
        let steps = self.steps?;
        let end = match steps.end {
            Some(_) => steps.work_end,
            None if self.newest < steps.first => return None,
            None => self.latest_end,
        };
        // A recording that began in the program's second step or later contains no start-up.
        let begin = if steps.first_number > 1 { 0 } else { steps.first };
        let part = SteadyPart { rule: SteadyRule::Steps, begin: Nanos(begin), end: Nanos(end) };
        let is_over = steps.end.is_some_and(|end| self.newest >= end);
        (end > begin).then_some(FoundPart { part, is_over })
    }

    /// Replaces each context by the context that the function `context` returns for it. The times of stacks that were
    /// merged into `[other stacks]` are forgotten.
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

impl StackTimes {
    /// Adds an activity that the stack launched. Most activities belong to the newest launch so far, and adding such an
    /// activity needs no sorting.
    fn add(&mut self, new: &Self) {
        let (time, end) = new.last[0];
        let knows_first = self.first[KNOWN - 1] > self.first[KNOWN - 2] && time >= self.first[KNOWN - 1];
        if !knows_first || time >= self.last[KNOWN - 1].0 && time < self.last[0].0 {
            return self.merge(new);
        }
        if time == self.last[0].0 {
            self.last[0].1 = self.last[0].1.max(end);
        } else if time > self.last[0].0 {
            self.last.copy_within(..KNOWN - 1, 1);
            self.last[0] = (time, end);
        }
        self.add_sums(new);
    }

    fn add_sums(&mut self, other: &Self) {
        self.count += other.count;
        self.nanos = self.nanos.saturating_add(other.nanos);
        self.computes |= other.computes;
    }

    /// Adds the launches in `other`, which belong to the same stack.
    fn merge(&mut self, other: &Self) {
        let mut first = [0; 2 * KNOWN];
        first[..KNOWN].copy_from_slice(&self.first);
        first[KNOWN..].copy_from_slice(&other.first);
        first.sort_unstable();
        keep_distinct(first, |time| *time, &mut self.first);
        // All activities of one launch have the same launch time, so several entries may have equal launch times. Of
        // several entries with the same launch time, only the entry with the latest end is kept.
        let mut last = [(0, 0); 2 * KNOWN];
        last[..KNOWN].copy_from_slice(&self.last);
        last[KNOWN..].copy_from_slice(&other.last);
        last.sort_unstable_by(|a, b| b.cmp(a));
        keep_distinct(last, |(time, _)| *time, &mut self.last);
        self.add_sums(other);
    }

    /// Returns the times of those launches of the stack that belong to the loop. Returns `None` if the stack made fewer
    /// than three launches.
    fn repeated(&self) -> Option<Repeated> {
        let is_long = |pause: u64, rest: u64| pause > rest / 2;
        let (mut from, mut to) = (0, 0);
        let span = |from: usize, to: usize| self.last[to].0.saturating_sub(self.first[from]);
        loop {
            if from + 1 < KNOWN && is_long(self.first[from + 1] - self.first[from], span(from, to)) {
                from += 1;
            } else if to + 1 < KNOWN && is_long(self.last[to].0 - self.last[to + 1].0, span(from, to)) {
                to += 1;
            } else {
                break;
            }
        }
        let (first, (last, end)) = (self.first[from], self.last[to]);
        let mut known: Vec<u64> = self.first.iter().copied().chain(self.last.iter().map(|l| l.0)).collect();
        known.sort_unstable();
        known.dedup();
        let left = self.count.saturating_sub((from + to) as u64);
        let is_repeated = known.len() >= MIN_REPEATS && left >= MIN_REPEATS as u64 && last > first;
        is_repeated.then_some(Repeated { first, last, end })
    }
}

/// Copies the first entries of `sorted` that have distinct keys to `kept`. If fewer than `KNOWN` entries have distinct
/// keys, the last copied entry is repeated.
fn keep_distinct<T: Copy>(sorted: [T; 2 * KNOWN], key: impl Fn(&T) -> u64, kept: &mut [T; KNOWN]) {
    let mut count = 0;
    for entry in sorted {
        if count < KNOWN && (count == 0 || key(&kept[count - 1]) != key(&entry)) {
            kept[count] = entry;
            count += 1;
        }
    }
    let newest = kept[count - 1];
    kept[count..].fill(newest);
}

/// Returns the longest loop that has at least half of the run's kernels or of their GPU time. `newest` is the time of
/// the newest launch by any stack.
fn find_loop(stacks: &[StackTimes], newest: u64) -> Option<FoundPart> {
    let all = stacks.iter().fold((0, 0), add_kernels);
    let rank = |stack: &StackTimes, times: &Repeated| (times.span(), stack.count, times.end);
    let repeated: Vec<(&StackTimes, Repeated)> =
        stacks.iter().filter_map(|stack| Some((stack, stack.repeated()?))).collect();
    let mut below = (u64::MAX, u64::MAX, u64::MAX);
    for _ in 0..MAX_LEADERS {
        let leaders = repeated.iter().filter(|(stack, times)| stack.computes && rank(stack, times) < below);
        let (stack, leader) = leaders.max_by_key(|(stack, times)| rank(stack, times))?;
        below = rank(stack, leader);
        let is_of_loop = |(_, times): &&(&StackTimes, Repeated)| {
            let both = times.last.min(leader.last).saturating_sub(times.first.max(leader.first));
            both >= leader.span() / 2
        };
        let (mut begin, mut end, mut own) = (leader.first, leader.end, (0, 0));
        for (stack, times) in repeated.iter().filter(is_of_loop) {
            (begin, end) = (begin.min(times.first), end.max(times.end));
            own = add_kernels(own, stack);
        }
        if 2 * own.0 < all.0 && 2 * own.1 < all.1 {
            continue;
        }
        let part = SteadyPart { rule: SteadyRule::Repeated, begin: Nanos(begin), end: Nanos(end) };
        // If no launch has followed the loop for eight times the average duration of an iteration, the loop has
        // probably ended.
        let patience = 8 * (leader.span() / stack.count.max(1));
        return Some(FoundPart { part, is_over: newest > leader.last.saturating_add(patience) });
    }
    None
}

/// Adds the number of a stack's kernels and their GPU time to the totals.
fn add_kernels((count, nanos): (u128, u128), stack: &StackTimes) -> (u128, u128) {
    match stack.computes {
        true => (count + u128::from(stack.count), nanos + u128::from(stack.nanos)),
        false => (count, nanos),
    }
}

/// Times (*cuts*) at which the accounts of all devices are divided, so that idle time before and after each cut is
/// summed separately.
#[derive(Clone, Debug, Default)]
pub(super) struct Cuts(Vec<u64>);

impl Cuts {
    /// Adds a time at which the accounts are divided (a cut). The time after the cut must not have been accounted for
    /// yet.
    pub(super) fn add(&mut self, time: u64) {
        if let Err(at) = self.0.binary_search(&time) {
            self.0.insert(at, time);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the last time at or before `time` at which the accounts are divided (a cut). Returns 0 if there is no
    /// cut at or before `time`.
    pub(super) fn before(&self, time: u64) -> u64 {
        self.0.partition_point(|cut| *cut <= time).checked_sub(1).map_or(0, |at| self.0[at])
    }

    /// Returns the first time at or after `time` at which the accounts are divided (a cut).
    pub(super) fn after(&self, time: u64) -> Option<u64> {
        self.0.get(self.0.partition_point(|cut| *cut < time)).copied()
    }

    /// Divides `from..to` at the cuts, and passes each part to `each`, in order of time.
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

/// A period that contains no cut, so that the accounts are not divided in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CutPiece {
    /// Last cut at or before the beginning of the period, or 0 if there is no such cut.
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

    /// Adds launches of the stack `stack`, which are made at the given times in ms. Each launch starts 1 ms of GPU work
    /// immediately.
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
        // The start-up of the test's program has single launches and a loop of 100 ms. The main loop has 100 iterations
        // of 10 ms. The main loop launches three stacks, and one of them is launched in an inner loop. Another loop
        // follows the main loop.
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
        // Add work to the loop, so that the loop has most of the GPU time.
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
        // Recording began during step 5, so the first recorded step is step 6.
        let mut launches = RepeatedLaunches::default();
        [600, 700]
            .into_iter()
            .zip(6..)
            .for_each(|(time, number)| launches.add_step(&step(time, None, number)));
        add(&mut launches, 11, [550, 750]);
        assert_eq!(steady(&launches), Some((0, 751)));
        // A single step does not define a steady part, because it may be a mark that the program sets before or after
        // its work.
        let mut launches = RepeatedLaunches::default();
        launches.add_step(&step(600, None, 1));
        add(&mut launches, 11, [550, 650]);
        assert_eq!(steady(&launches), None);
    }

    #[test]
    fn a_first_step_long_before_the_loop_is_start_up() {
        let mut launches = RepeatedLaunches::default();
        // The stack of the forward pass is different in the warm-up than in later steps. The backward pass runs on
        // another thread, and its stack is always the same.
        add(&mut launches, 10, [0]);
        add(&mut launches, 20, [2]);
        for step in 0..40 {
            add(&mut launches, 11, [2500 + 4 * step]);
            add(&mut launches, 20, [2502 + 4 * step]);
        }
        assert_eq!(steady(&launches), Some((2500, 2659)));
        // A further step, which is long after the other steps, belongs to the shutdown.
        add(&mut launches, 12, [9000]);
        assert_eq!(steady(&launches), Some((2500, 2659)));
    }

    #[test]
    fn the_order_of_arrival_does_not_matter() {
        let times: Vec<u64> = (0..40).map(|step| 2500 + 4 * step).chain([0, 9000]).collect();
        let found = |order: &dyn Fn(usize) -> usize| {
            let mut launches = RepeatedLaunches::default();
            (0..times.len()).for_each(|at| add(&mut launches, 20, [times[order(at)]]));
            steady(&launches)
        };
        let count = times.len();
        let orders: [&dyn Fn(usize) -> usize; 3] = [&|at| at, &|at| count - 1 - at, &|at| at * 5 % count];
        assert_eq!(orders.map(found), [Some((2500, 2657)); 3]);
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
