//! Merges contexts that have the same stack, and counts stacks with defects. A context consists of a stack and the API
//! call that was made on this stack.

use gpuflame_model::profile::Profile;
use gpuflame_model::record::{ContextFlags, ContextId, Frame, IdMap, Row, ThreadId, map_bytes};

/// Number of distinct stacks, and number of stacks with each kind of defect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stacks {
    /// Number of distinct stacks. If threads are kept separate, a stack that occurs on two threads counts twice.
    pub distinct: u64,
    /// Number of stacks that have more frames than the capture buffer.
    pub truncated: u64,
    /// Number of stacks with a frame that was found only through a frame pointer.
    pub guessed: u64,
    /// Number of stacks that are incomplete because unwinding ended before the outermost frame.
    pub cut: u64,
    /// Number of stacks with a code frame whose module is unknown.
    pub module_unknown: u64,
}

/// Contexts in the rows so far. See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Contexts {
    merge_threads: bool,
    /// For the id of each merged context: the context that represents the merged context, and the thread of the merged
    /// context. Contexts that represent themselves are not in this map. Several contexts may have the same stack,
    /// because a thread may give a stack a new context id at any time.
    firsts: IdMap<ContextId, (ContextId, ThreadId)>,
    /// Lowest context id that later launches may have. Lower ids were forgotten, except the ids of contexts that
    /// represent themselves.
    begin: ContextId,
    stacks: Stacks,
}

impl Contexts {
    pub(super) fn new(merge_threads: bool) -> Self {
        Self { merge_threads, ..Self::default() }
    }

    /// Whether contexts with the same stack on two threads are merged.
    pub(super) fn merges_threads(&self) -> bool {
        self.merge_threads
    }

    /// Adds the context in a context row, and ignores all other rows. Returns true if the context's stack is new.
    pub(super) fn add(&mut self, row: &Row<'_>, profile: &mut Profile) -> bool {
        let &Row::Context { id, thread, flags, frames } = &row else { return false };
        let first = profile.merge_context(*id, *thread, *flags, frames, self.merge_threads);
        if first != *id {
            self.firsts.insert(*id, (first, *thread));
            return false;
        }
        self.note_stack(*flags, frames);
        true
    }

    /// Returns the context that represents the stack of `id`. The returned context may belong to a different thread
    /// than the context `id`.
    pub(super) fn representative(&self, id: ContextId, profile: &Profile) -> ContextId {
        match self.firsts.get(&id) {
            Some((first, _)) => *first,
            None if id >= self.begin || id < ContextId::FIRST || profile.context(id).is_some() => id,
            None => ContextId::OTHERS,
        }
    }

    /// Returns the thread of a context, if the context was not forgotten.
    pub(super) fn thread(&self, id: ContextId, profile: &Profile) -> Option<ThreadId> {
        let known = self.firsts.get(&id).map(|(_, thread)| *thread);
        known
            .or_else(|| profile.context(id).map(|context| context.thread))
            .filter(|id| *id != ThreadId::OTHERS)
    }

    /// Updates this struct after contexts were merged. `replacements` maps each merged context to the context into
    /// which it was merged.
    pub(super) fn rename(&mut self, replacements: IdMap<ContextId, ContextId>) {
        for (first, _) in self.firsts.values_mut() {
            *first = replacements.get(first).copied().unwrap_or(*first);
        }
        self.firsts.extend(replacements.into_iter().map(|(id, others)| (id, (others, ThreadId::OTHERS))));
    }

    /// Forgets which contexts represent the ids below `lowest`. Call this function when no later row will have an id
    /// below `lowest`.
    pub(super) fn forget_below(&mut self, lowest: ContextId) {
        self.firsts.retain(|id, _| *id >= lowest);
        self.firsts.shrink_to(2 * self.firsts.len());
        self.begin = self.begin.max(lowest);
    }

    /// Forgets the older half of the context ids. A later launch with a forgotten id is attributed to `[other stacks]`.
    pub(super) fn forget_older_half(&mut self) {
        let mut ids: Vec<ContextId> = self.firsts.keys().copied().collect();
        let middle = ids.len() / 2;
        if middle > 0 {
            let (_, middle, _) = ids.select_nth_unstable(middle);
            self.forget_below(*middle);
        }
    }

    pub(super) fn heap_bytes(&self) -> usize {
        map_bytes(&self.firsts)
    }

    pub(super) fn stacks(&self) -> Stacks {
        self.stacks
    }

    fn note_stack(&mut self, flags: ContextFlags, frames: &[Frame]) {
        self.stacks.distinct += 1;
        self.stacks.truncated += u64::from(flags.has(ContextFlags::TRUNCATED));
        self.stacks.guessed += u64::from(flags.has(ContextFlags::GUESSED));
        self.stacks.cut += u64::from(flags.has(ContextFlags::CUT));
        let module_unknown = frames.iter().any(|frame| frame.is_of_unknown_module());
        self.stacks.module_unknown += u64::from(module_unknown);
    }
}
