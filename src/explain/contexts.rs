//! Which contexts are the same one, and how good their stacks are.

use crate::profile::Profile;
use crate::record::{ContextFlags, ContextId, Frame, Row};

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
    merges: bool,
    /// Where contexts are merged: at one's id, the first with the same stack. 4 bytes for each stack of each
    /// thread there ever was, which is all that is left of them.
    firsts: Vec<ContextId>,
    stacks: Stacks,
}

impl Contexts {
    pub(super) fn new(merges: bool) -> Self {
        Self { merges, ..Self::default() }
    }

    /// Takes the row of a context; passes over all others.
    pub(super) fn add(&mut self, row: &Row<'_>, profile: &mut Profile) {
        let &Row::Context { id, thread, flags, frames } = &row else { return };
        if !self.merges {
            profile.push(row);
            return self.note_stack(*flags, frames);
        }
        let first = profile.merge_context(*id, *thread, *flags, frames);
        self.firsts.resize(self.firsts.len().max(id.0 as usize + 1), ContextId::NONE);
        self.firsts[id.0 as usize] = first;
        if first == *id {
            self.note_stack(*flags, frames);
        }
    }

    /// The context that stands for `id`, whichever thread's it is.
    pub(super) fn first(&self, id: ContextId) -> ContextId {
        self.firsts.get(id.0 as usize).copied().filter(|first| *first != ContextId::NONE).unwrap_or(id)
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
