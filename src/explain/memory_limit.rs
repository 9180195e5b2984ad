//! Implements the memory ceiling: decides which data are dropped when memory is short, and in which order. Dropped
//! stacks are merged with each other and can then no longer be distinguished. The same applies to dropped kernels and
//! threads. Three kinds of totals do not change when data are dropped: the number and the duration of activities on
//! each device, and the outcomes of launches.
//!
//! 1. Single activities are never stored. Activities are passed to the join, to the sums and, on request, to a file.
//! 2. **Stacks**, with all sums per stack, may use a quarter of the ceiling. If the stacks need more than this share,
//!    the half of the stacks with the least GPU time is merged into `[other stacks]`. There is one `[other stacks]`
//!    entry for each API function that the merged stacks called. Each launch whose work has not finished is assumed to
//!    have the GPU time of an average launch. The youngest eighth of the stacks is never merged, because these stacks
//!    had too little time to collect GPU time. So even if a phase of the run creates millions of stacks, the work
//!    before and after this phase keeps its stacks.
//! 3. **Kernels** may use an eighth of the ceiling, plus half of the unused part of the stacks' quarter. The memory of
//!    kernels includes their names and the histograms of their durations (about 600 bytes per kernel). If the kernels
//!    need more than this share, half of them are merged into `[other kernels]`. The kernels to merge are chosen in the
//!    same way as stacks.
//! 4. If threads have no stack left, their **thread names** are dropped.
//!
//! At the end of the run, function names are looked up and files are written. Looking up names and writing files take
//! two to three times the memory of the stacks. So further stacks are dropped before names are looked up and files are
//! written, until everything fits below the ceiling. The stacks with the most GPU time are kept.
//!
//! A dropped stack that occurs again is stored as a new stack, because threads assign new ids to their stacks after
//! each drop (`capture::Forgetting`). So a dropped stack that becomes frequent later is recorded again.
//!
//! The context id of a dropped stack is forgotten, and later rows with this id are attributed to `[other stacks]`. A
//! graph node that was created on a dropped stack still refers to the forgotten context id. The node's work is
//! attributed to `[other stacks]` at the next snapshot ([`IdMapping`]).

use std::cmp::Reverse;
use std::collections::HashSet;
use std::hash::Hash;

use super::{Explain, PerWindowSums};
use crate::join::Limits;
use gpuflame_model::profile::{Profile, Weight};
use gpuflame_model::record::{ContextId, IdMap, Loss, NameId};

/// Number of stacks that are always kept, and also the number of kernels that are always kept. This number of stacks or
/// kernels is too small to use up the memory.
const MIN_KEPT_STACKS: usize = 256;
/// Lowest memory ceiling at which the join uses its default limits. With these limits and full tables, the join takes
/// 45 MiB. With a lower ceiling, the limits are reduced in proportion.
const FULL_JOIN_CEILING_BYTES: usize = 256 << 20;

/// Memory in bytes for the name and id of a thread.
const BYTES_PER_THREAD: usize = 96;

/// Upper bounds for the memory that a snapshot, its names and a flame graph need in addition to the present data. The
/// bounds include the unused space of tables that grow by doubling. There is one constant per frame in the tree of
/// stacks, one per node of that tree, and one per stack. A stack needs more memory if threads are kept separate,
/// because each thread then has its own root in the tree.
const EXPORT_BYTES_PER_FRAME: usize = 16;
const EXPORT_BYTES_PER_NODE: usize = 120;
const EXPORT_BYTES_PER_STACK: usize = 500;
const EXPORT_BYTES_PER_STACK_AND_THREAD: usize = 1100;

/// Number of stacks, kernels and thread names that were dropped so far. A stack that is dropped, recorded again and
/// dropped again counts twice.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DroppedCounts {
    stacks: u64,
    kernels: u64,
    threads: u64,
}

/// Kinds of data that [`Explain::fit`] has dropped. A caller that stores data for the same ids should drop these data
/// as well.
#[derive(Debug, Default)]
pub struct DroppedDefinitions {
    /// Ids of the remaining kernels. `None` if no kernel was dropped. If a dropped kernel runs again, it gets a new id.
    pub kept_kernels: Option<HashSet<NameId>>,
    /// Whether the names of any threads were dropped.
    pub threads: bool,
}

impl DroppedCounts {
    pub(super) fn losses(&self) -> [(Loss, u64); 3] {
        [
            (Loss::StacksNotKeptApart, self.stacks),
            (Loss::KernelsNotKeptApart, self.kernels),
            (Loss::ThreadsNotNamed, self.threads),
        ]
    }
}

/// Returns the limits of the join for a memory ceiling in bytes.
pub(super) fn limits(ceiling: usize) -> Limits {
    let all = Limits::default();
    let share = |limit: usize| limit / FULL_JOIN_CEILING_BYTES.div_ceil(ceiling.max(1)).next_power_of_two();
    Limits {
        recent: share(all.recent),
        waiting: share(all.waiting),
        running: share(all.running),
        orphans: share(all.orphans),
    }
}

impl Explain {
    /// Returns the number of stacks that were dropped so far.
    pub fn dropped_stacks(&self) -> u64 {
        self.dropped.stacks
    }

    /// Drops data until the stacks, kernels and threads each fit into their share of the memory ceiling. Call this
    /// function every few thousand rows. `names` is the number of bytes that the caller uses for kernel names.
    pub fn fit(&mut self, names: usize) -> DroppedDefinitions {
        self.fit_stacks();
        DroppedDefinitions { kept_kernels: self.fit_kernels(names), threads: self.fit_threads() }
    }

    /// Drops the stacks with the least GPU time until the remaining stacks fit into their share of the memory ceiling.
    /// This function is called for each new stack.
    pub(super) fn fit_stacks(&mut self) {
        if self.stack_bytes() + self.profile.shown_bytes() > self.ceiling / 4 {
            self.profile.drop_shown();
        }
        while self.stack_bytes() > self.ceiling / 4 && self.profile.context_count() > MIN_KEPT_STACKS {
            let count = self.profile.context_count() / 2;
            self.keep_contexts(count, count / 4);
        }
        if self.contexts.heap_bytes() > self.ceiling / 8 {
            self.contexts.forget_older_half();
        }
    }

    /// Whether the table of context ids is so large that threads should give their stacks new ids. If the threads
    /// nevertheless assign no new ids, the older half of the ids is forgotten when the table has reached four times
    /// this size.
    pub fn has_many_ids(&self) -> bool {
        self.contexts.heap_bytes() > self.ceiling / 32
    }

    /// Drops kernels until the remaining kernels fit into their share of the memory ceiling. Returns the remaining
    /// kernels, or `None` if no kernel was dropped.
    fn fit_kernels(&mut self, names: usize) -> Option<HashSet<NameId>> {
        let unused = (self.ceiling / 4).saturating_sub(self.stack_bytes());
        let room = (self.ceiling / 8 + unused / 2).saturating_sub(names + self.aggregate.series_bytes());
        if self.profile.kernel_bytes() <= room || self.profile.kernel_count() <= MIN_KEPT_STACKS {
            return None;
        }
        let mut weights = match &self.checkpoint {
            Some(checkpoint) => checkpoint.kernel_weights(),
            None => self.aggregate.by_kernel(),
        };
        let kernels = self.profile.kernels().into_iter().map(|(id, _)| id).filter(|id| *id != NameId::OTHERS);
        let all: Vec<_> = kernels.map(|id| (id, weights.remove(&id).unwrap_or_default())).collect();
        let count = all.len();
        let kept = choose_kept(all, count / 2, count / 8);
        self.dropped.kernels += (count - kept.len()) as u64;
        self.profile.keep_kernels(|id| kept.contains(&id));
        self.rename(&IdMap::default());
        Some(kept)
    }

    /// Drops the names of threads that have no stack, if there are too many names. Returns true if names were dropped.
    fn fit_threads(&mut self) -> bool {
        let count = self.profile.thread_count();
        if count * BYTES_PER_THREAD <= self.ceiling / 16 || count < 2 * self.profile.context_count() {
            return false;
        }
        self.dropped.threads += self.profile.keep_threads() as u64;
        true
    }

    /// Forgets the context ids below `lowest`. Call this function when no later row will have an id below `lowest`.
    pub fn forget_below(&mut self, lowest: ContextId) {
        // If a later row nevertheless has such an id, the row is attributed to `[other stacks]`.
        self.profile.merged_context(None);
        self.contexts.forget_below(lowest);
    }

    /// Drops stacks until all outputs can be written without exceeding the memory ceiling. `held` is the number of
    /// bytes that gpuflame uses now. Call this function before the last [`Explain::snapshot`].
    pub fn fit_exports(&mut self, held: usize) {
        if self.ceiling == usize::MAX {
            return;
        }
        let held = held.saturating_sub(self.profile.shown_bytes());
        if self.profile.shown_bytes() > 0 {
            self.profile.drop_shown();
        }
        let needed = self.export_bytes();
        let room = self.ceiling.saturating_sub(held);
        if needed > room && self.profile.context_count() > MIN_KEPT_STACKS {
            // Dropping a stack frees the memory of the stack, and also reduces the memory that the outputs need.
            let stacks = self.stack_bytes();
            let share = (room + stacks) as f64 / (needed + stacks) as f64;
            let count = (self.profile.context_count() as f64 * share) as usize;
            self.keep_contexts(count.max(MIN_KEPT_STACKS), 0);
        }
    }

    /// Returns the heap size in bytes of the stacks and of all sums per stack.
    fn stack_bytes(&self) -> usize {
        self.profile.context_bytes()
            + self.aggregate.cell_bytes()
            + self.timeline.charge_bytes()
            + self.host.context_bytes()
            + self.per_window.as_ref().map_or(0, PerWindowSums::stack_bytes)
    }

    /// Returns the number of bytes that are needed, in addition to the present data, to look up names and write files.
    fn export_bytes(&self) -> usize {
        let (nodes, frames) = self.profile.stack_size();
        let stacks = self
            .profile
            .context_count()
            .max(self.aggregate.cells() + self.checkpoint.as_ref().map_or(0, |s| s.len()));
        let bytes_a_stack = match self.contexts.merges_threads() {
            true => EXPORT_BYTES_PER_STACK,
            false => EXPORT_BYTES_PER_STACK_AND_THREAD,
        };
        EXPORT_BYTES_PER_FRAME * frames + EXPORT_BYTES_PER_NODE * nodes + bytes_a_stack * stacks
    }

    /// Keeps `count` contexts and drops all other contexts. The newest `youngest` contexts are always kept.
    fn keep_contexts(&mut self, count: usize, youngest: usize) {
        let mut weights = self.weights();
        // A graph may be launched long after its nodes were created. So up to `youngest` of the contexts that created
        // graph nodes have the maximum weight, and are therefore kept.
        let made: HashSet<ContextId> = self.graphs.contexts().take(youngest).collect();
        made.iter().for_each(|id| weights.entry(*id).or_default().nanos = u64::MAX);
        let all = self.profile.contexts().into_iter().filter(|id| !id.is_others());
        let all = all.map(|id| (id, weights.remove(&id).unwrap_or_default())).collect();
        let kept = choose_kept(all, count, youngest);
        let replacements = self.profile.keep_contexts(|id| kept.contains(&id));
        self.dropped.stacks += replacements.len() as u64;
        self.rename(&replacements);
        self.contexts.rename(replacements);
    }

    /// Returns the weight of each context: the total duration of its GPU work and waits. Each launch that still waits
    /// for its activity is assumed to have the GPU time of an average launch.
    fn weights(&self) -> IdMap<ContextId, Weight> {
        let mut weights = self.aggregate.by_context();
        let (count, nanos) = weights.values().fold((0, 0_u64), |(count, nanos), weight| {
            (count + weight.count, nanos.saturating_add(weight.nanos))
        });
        let mean = nanos.checked_div(count).unwrap_or(1).max(1);
        let launches = self.join.waiting().map(|id| (id, 1, mean));
        let checkpoint = self.checkpoint.iter().flat_map(|checkpoint| checkpoint.weights());
        for (id, count, nanos) in self.host.waits().chain(launches).chain(checkpoint) {
            let weight = weights.entry(id).or_default();
            weight.count += count;
            weight.nanos = weight.nanos.saturating_add(nanos);
        }
        weights
    }

    /// Merges the sums of dropped contexts and kernels into `[other stacks]` and `[other kernels]`.
    fn rename(&mut self, replacements: &IdMap<ContextId, ContextId>) {
        let Self { profile, join, aggregate, timeline, host, per_window, checkpoint, .. } = self;
        let mapping = IdMapping::new(profile, replacements);
        join.rename(|id| mapping.context(id));
        aggregate.rename(|id| mapping.context(id), |id| mapping.kernel(id));
        timeline.rename(|id| mapping.context(id));
        host.rename(|id| mapping.context(id));
        if let Some(per_window) = per_window {
            per_window.rename(|id| mapping.context(id), |id| mapping.kernel(id));
        }
        if let Some(checkpoint) = checkpoint {
            checkpoint.rename(|id| mapping.context(id), |id| mapping.kernel(id));
        }
    }
}

/// Maps the ids of dropped contexts and kernels to `[other stacks]` and `[other kernels]`. All other ids stay the same.
/// `replacements` contains the contexts that the current call has dropped. Contexts that were dropped earlier are
/// recognized by their absence from the profile.
pub(super) struct IdMapping<'a> {
    profile: &'a Profile,
    replacements: &'a IdMap<ContextId, ContextId>,
    has_stacks: bool,
    has_kernels: bool,
}

impl<'a> IdMapping<'a> {
    pub(super) fn new(profile: &'a Profile, replacements: &'a IdMap<ContextId, ContextId>) -> Self {
        let has_stacks = profile.context(ContextId::OTHERS).is_some();
        let has_kernels = profile.symbol(NameId::OTHERS).is_some();
        Self { profile, replacements, has_stacks, has_kernels }
    }

    /// Whether the mapping may change any id at all.
    pub(super) fn has_any(&self) -> bool {
        self.has_stacks || self.has_kernels
    }

    pub(super) fn context(&self, id: ContextId) -> ContextId {
        match self.replacements.get(&id) {
            Some(others) => *others,
            None if self.has_stacks && self.profile.context(id).is_none() => ContextId::OTHERS,
            None => id,
        }
    }

    pub(super) fn kernel(&self, id: NameId) -> NameId {
        if self.has_kernels && self.profile.symbol(id).is_none() { NameId::OTHERS } else { id }
    }
}

/// Chooses `count` ids from `all`. The ids in `all` must be sorted from oldest to youngest. The function first chooses
/// the last `youngest` ids, and then the ids with the most nanoseconds. Of two ids with equal durations, the id with
/// the higher count is preferred. If the counts are equal too, the younger id is preferred.
fn choose_kept<I: Copy + Ord + Hash>(mut all: Vec<(I, Weight)>, count: usize, youngest: usize) -> HashSet<I> {
    let youngest = youngest.min(all.len());
    let mut kept: HashSet<I> = all.drain(all.len() - youngest..).map(|(id, _)| id).collect();
    let more = count - youngest;
    if more < all.len() {
        all.select_nth_unstable_by_key(more, |(id, weight)| Reverse((weight.nanos, weight.count, *id)));
        all.truncate(more);
    }
    kept.extend(all.into_iter().map(|(id, _)| id));
    kept
}

#[cfg(test)]
mod tests {
    use super::super::Options;
    use super::*;
    use gpuflame_model::profile::views::GPU;
    use gpuflame_model::profile::{Sample, SampleSite, saturating_sum};
    use gpuflame_model::record::testing::{kernel, launch, named};
    use gpuflame_model::record::{ContextFlags, Frame, LabelId, ModuleEpoch, Row, ThreadId};

    fn under(ceiling: usize) -> Explain {
        let mut explain =
            Explain::new(Options { merge_threads: true, ceiling: Some(ceiling), ..Options::default() });
        for id in [7, 8] {
            explain.push(&Row::Label { id: LabelId(id), text: "call" }, &mut ());
        }
        explain
    }

    /// Adds a context with 30 frames that calls API function 7 or 8. Each value of `number` results in a different
    /// stack.
    fn context(explain: &mut Explain, id: u32, number: u32) {
        let code = (0..30).map(|depth| Frame::native(u64::from(number * 32 + depth + 1), ModuleEpoch(0)));
        let frames: Vec<Frame> = std::iter::once(Frame::label(LabelId(7 + number % 2))).chain(code).collect();
        let (id, thread, flags) = (ContextId(id), ThreadId(1), ContextFlags::default());
        explain.push(&Row::Context { id, thread, flags, frames: &frames }, &mut ());
    }

    fn filled(mut explain: Explain) -> Profile {
        explain.fit_exports(0);
        explain.snapshot(&[], &mut ());
        explain.into_profile()
    }

    fn nanos_of(profile: &Profile, wanted: impl Fn(ContextId) -> bool) -> u64 {
        let of = profile.samples(&GPU).iter().filter(|sample| match sample.site {
            SampleSite::Context(id) => wanted(id),
            _ => false,
        });
        saturating_sum(of.map(Sample::amount))
    }

    #[test]
    fn the_heaviest_and_the_most_recent_entries_are_kept() {
        let weight = |nanos, count| Weight { count, nanos, bytes: 0 };
        let all = || {
            vec![
                (1, weight(5, 1)),
                (2, weight(9, 1)),
                (3, weight(5, 2)),
                (4, weight(1, 1)),
                (5, weight(0, 0)),
            ]
        };
        let sorted = |kept: HashSet<i32>| {
            let mut kept: Vec<_> = kept.into_iter().collect();
            kept.sort_unstable();
            kept
        };
        assert_eq!(sorted(choose_kept(all(), 2, 0)), [2, 3]);
        assert_eq!(sorted(choose_kept(all(), 4, 1)), [1, 2, 3, 5]);
        assert_eq!(sorted(choose_kept(all(), 9, 0)), [1, 2, 3, 4, 5]);
        assert!(choose_kept(all(), 0, 0).is_empty());
    }

    #[test]
    fn rare_stacks_collapse_into_one_other_per_api_call_and_totals_are_unchanged() {
        const STACKS: u32 = 20_000;
        let mut explain = under(2 << 20);
        for number in 1..=STACKS {
            context(&mut explain, number + 1, number);
            explain.push(&Row::Launch(launch(number, number + 1)), &mut ());
            // The GPU work of the 5,000th stack takes about as much time as the GPU work of all other stacks together.
            let nanos = if number == 5_000 { 1_000_000 } else { 50 };
            explain.push(&Row::Activity(kernel(number, 100, 100 + nanos)), &mut ());
            assert!(explain.stack_bytes() <= 2 * (2 << 20) / 4, "{}", explain.stack_bytes());
        }
        let others = explain.dropped_stacks();
        assert!((10_000..20_000).contains(&others), "{others}");
        let profile = filled(explain);
        let all = 19_999 * 50 + 1_000_000;
        assert_eq!(nanos_of(&profile, |_| true), all);
        assert_eq!(nanos_of(&profile, |id| id == ContextId(5_001)), 1_000_000);
        let call = |label: u32| ContextId(ContextId::OTHERS.0 + 2 + label);
        for label in [7, 8] {
            let stack = profile.context(call(label)).unwrap().stack;
            let frames: Vec<_> = profile.stack(stack).map(|frame| profile.frames()[frame.index()]).collect();
            assert_eq!(frames, [Frame::label(LabelId(label)), Frame::label(LabelId::OTHER_STACKS)]);
            assert!(nanos_of(&profile, |id| id == call(label)) > 0);
        }
        let kept = nanos_of(&profile, |id| !id.is_others());
        assert_eq!(kept + nanos_of(&profile, ContextId::is_others), all);
    }

    #[test]
    fn a_launch_in_flight_when_its_stack_is_dropped_counts_as_other() {
        let mut explain = under(1 << 20);
        context(&mut explain, 2, 1);
        explain.push(&Row::Launch(launch(1, 2)), &mut ());
        for number in 2..10_000 {
            context(&mut explain, number + 1, number);
            explain.push(&Row::Launch(launch(number, number + 1)), &mut ());
            explain.push(&Row::Activity(kernel(number, 100, 200)), &mut ());
        }
        assert!(explain.profile().context(ContextId(2)).is_none(), "the context was dropped");
        explain.push(&Row::Activity(kernel(1, 1000, 1007)), &mut ());
        // Add a dropped stack again. Add two launches from this stack: one with the old context id, and one with the
        // new context id.
        context(&mut explain, 20_000, 1);
        for (correlation, id) in [(20_000, 2), (20_001, 20_000)] {
            explain.push(&Row::Launch(launch(correlation, id)), &mut ());
            explain.push(&Row::Activity(named(9, kernel(correlation, 2000, 2011))), &mut ());
        }
        let profile = filled(explain);
        assert_eq!(nanos_of(&profile, |id| id == ContextId(20_000)), 11);
        assert_eq!(nanos_of(&profile, |_| true), 9_998 * 100 + 7 + 22);
    }

    #[test]
    fn alias_context_ids_below_the_given_id_are_forgotten() {
        let mut explain = under(64 << 20);
        for (id, number) in [(2, 1), (3, 2), (4, 1), (5, 2)] {
            context(&mut explain, id, number);
        }
        let first = |explain: &Explain, id| explain.representative(ContextId(id));
        assert_eq!([2, 3, 4, 5].map(|id| first(&explain, id)), [2, 3, 2, 3].map(ContextId));
        explain.forget_below(ContextId(5));
        // A context that represents itself is known while the profile contains it.
        let expected = [ContextId(2), ContextId(3), ContextId::OTHERS, ContextId(3)];
        assert_eq!([2, 3, 4, 5].map(|id| first(&explain, id)), expected);
        let special = [ContextId::NONE, ContextId::OUTSIDE];
        assert_eq!(special.map(|id| explain.representative(id)), special);
        // Add a second context id for a stack that is still known.
        context(&mut explain, 6, 1);
        assert_eq!(first(&explain, 6), ContextId(2));
    }

    #[test]
    fn stacks_that_exceed_the_export_memory_are_dropped_by_gpu_time() {
        let mut explain = under(12 << 20);
        for number in 1..=1000 {
            context(&mut explain, number + 1, number);
            explain.push(&Row::Launch(launch(number, number + 1)), &mut ());
            explain.push(&Row::Activity(kernel(number, 100, 100 + u64::from(2000 - number))), &mut ());
        }
        assert_eq!(explain.dropped_stacks(), 0);
        explain.fit_exports((12 << 20) - (700 << 10));
        explain.snapshot(&[], &mut ());
        let dropped = explain.dropped_stacks() as u32;
        assert!((1..800).contains(&dropped), "{dropped}");
        let profile = explain.into_profile();
        // The newest stacks are dropped, because their kernels ran for the shortest time.
        assert!(profile.context(ContextId(1001 - dropped)).is_some());
        assert!(profile.context(ContextId(1002 - dropped)).is_none());
    }
}
