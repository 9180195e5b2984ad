//! What a thread's signal handlers were refused while it was inside gpuflame: they may not come in between. And what a thread
//! was refused for which no state could be had.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::tracer::Call;

use super::calls::{NESTED, REFUSED, stack_depth};

/// What was refused and has not ended yet.
/// Written by handlers, and by the thread between two of them.
pub(super) struct RefusedInHandlers {
    /// Where the stack stood at the outermost call that makes GPU work or is noted like one; 0 = none is under way.
    pub(super) call: AtomicUsize,
    /// Ranges that were pushed and will be popped.
    pub(super) pushed: AtomicUsize,
}

impl RefusedInHandlers {
    pub(super) const fn new() -> Self {
        Self { call: AtomicUsize::new(0), pushed: AtomicUsize::new(0) }
    }

    /// Whether a range that is popped is one that was refused when it was pushed.
    pub(super) fn takes_pop(&self) -> bool {
        self.pushed.load(Ordering::Relaxed) > 0
            && self.pushed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok()
    }

    /// A call begins that may not be noted. True: it is not part of another one, and is to be counted.
    pub(super) fn call_begins(&self, call: &Call<'_>) -> bool {
        let (depth, outer) = (stack_depth(), self.call.load(Ordering::Relaxed));
        if depth < outer {
            call.slot.set(NESTED);
            return false;
        }
        call.slot.set(REFUSED);
        self.call.store(depth, Ordering::Relaxed);
        true
    }

    /// Whether a call was refused that this is part of, by where the stack stands.
    pub(super) fn is_around(&self, depth: usize) -> bool {
        depth < self.call.load(Ordering::Relaxed)
    }

    /// The call ends.
    pub(super) fn call_ends(&self) {
        self.call.store(0, Ordering::Relaxed);
    }
}
