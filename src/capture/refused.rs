//! Refused calls and ranges, which cannot be recorded: those of signal handlers that came while the thread was inside
//! gpuflame, and those of threads for which there is no memory for a state.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::tracer::Call;

use super::calls::{NESTED, REFUSED, stack_depth};

/// Refused calls and ranges that have not ended yet. Written by handlers, and by the thread between two of them.
pub(super) struct RefusedInHandlers {
    /// Stack depth of the outermost refused call that creates GPU work or is recorded like one; 0 = none is in
    /// flight.
    pub(super) call: AtomicUsize,
    /// Number of refused ranges that were pushed and will be popped.
    pub(super) pushed: AtomicUsize,
}

impl RefusedInHandlers {
    pub(super) const fn new() -> Self {
        Self { call: AtomicUsize::new(0), pushed: AtomicUsize::new(0) }
    }

    /// Whether a pop belongs to a push that was refused. Consumes the push.
    pub(super) fn takes_pop(&self) -> bool {
        self.pushed.load(Ordering::Relaxed) > 0
            && self.pushed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok()
    }

    /// Notes the start of a call that cannot be recorded. Returns true if it is not part of another call and must be
    /// counted.
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

    /// Whether a refused call encloses a call at this stack depth.
    pub(super) fn is_around(&self, depth: usize) -> bool {
        depth < self.call.load(Ordering::Relaxed)
    }

    /// Notes the end of the refused call.
    pub(super) fn call_ends(&self) {
        self.call.store(0, Ordering::Relaxed);
    }
}
