//! Which contexts are the same one, and how good their stacks are.

use crate::profile::Profile;
use crate::record::{ContextFlags, ContextId, Frame, IdMap, Row, ThreadId, map_bytes};

/// Distinct stacks, and those of them that are not perfect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stacks {
    /// All of them; where threads are kept apart, each with its own.
    pub distinct: u64,
    /// Those deeper than the capture buffer.
    pub truncated: u64,
    /// Those with a frame found by frame pointer only.
    pub guessed: u64,
    /// Those whose walk ended before the bottom.
    pub cut: u64,
    /// Those with a frame of which nobody knows what module it was in.
    pub module_unknown: u64,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Contexts {
    merge_threads: bool,
    /// The contexts that stand for others, with the thread that each of those is of, and those that stand for themselves are not in it. A thread may give a stack
    /// a new id at any time.
    firsts: IdMap<ContextId, (ContextId, ThreadId)>,
    /// Of lower ids only those are known that stand for themselves: no launch comes any more with another one.
    begin: ContextId,
    stacks: Stacks,
}

impl Contexts {
    pub(super) fn new(merge_threads: bool) -> Self {
        Self { merge_threads, ..Self::default() }
    }

    /// Whether the same stack on two threads is one context.
    pub(super) fn merges_threads(&self) -> bool {
        self.merge_threads
    }

    /// Takes the row of a context; passes over all others. True: its stack is new.
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

    /// The context that stands for `id`, whichever thread's it is.
    pub(super) fn first(&self, id: ContextId, profile: &Profile) -> ContextId {
        match self.firsts.get(&id) {
            Some((first, _)) => *first,
            None if id >= self.begin || id < ContextId::FIRST || profile.context(id).is_some() => id,
            None => ContextId::OTHERS,
        }
    }

    /// The thread that a context is of, if that is known still.
    pub(super) fn thread(&self, id: ContextId, profile: &Profile) -> Option<ThreadId> {
        let known = self.firsts.get(&id).map(|(_, thread)| *thread);
        known
            .or_else(|| profile.context(id).map(|context| context.thread))
            .filter(|id| *id != ThreadId::OTHERS)
    }

    /// Has what stood for a context that is not kept apart any more stand for what it is a part of.
    pub(super) fn rename(&mut self, forgotten: IdMap<ContextId, ContextId>) {
        for (first, _) in self.firsts.values_mut() {
            *first = forgotten.get(first).copied().unwrap_or(*first);
        }
        self.firsts.extend(forgotten.into_iter().map(|(id, others)| (id, (others, ThreadId::OTHERS))));
    }

    /// Forgets what the ids below `lowest` stand for: none comes any more.
    pub(super) fn forget_below(&mut self, lowest: ContextId) {
        self.firsts.retain(|id, _| *id >= lowest);
        self.firsts.shrink_to(2 * self.firsts.len());
        self.begin = self.begin.max(lowest);
    }

    /// The same for the older half of all ids, of which some may come: what they launch is not told apart then.
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
