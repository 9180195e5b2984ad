//! Tracks refused calls and ranges, which cannot be recorded. A call or range is refused if a signal handler that
//! interrupted gpuflame makes it, or if there is no memory for the state of its thread.

use std::sync::atomic::{AtomicUsize, Ordering};

use gpuflame_cupti::tracer::Call;

use super::calls::{NESTED, REFUSED, stack_depth};

/// A thread's refused calls in flight and refused ranges that are still open. The thread and its signal handlers write
/// these fields. The thread itself writes the fields only while no signal handler runs.
pub(crate) struct OpenRefusals {
    /// Stack depth of the outermost refused call in flight; 0 if there is none.
    pub(super) call: AtomicUsize,
    /// Number of refused ranges that were pushed and not popped yet.
    pub(crate) pushed: AtomicUsize,
}

impl OpenRefusals {
    pub(super) const fn new() -> Self {
        Self { call: AtomicUsize::new(0), pushed: AtomicUsize::new(0) }
    }

    /// Whether a pop belongs to a push that was refused. After this call, a refused push no longer counts as open.
    pub(crate) fn consume_pop(&self) -> bool {
        self.pushed.load(Ordering::Relaxed) > 0
            && self.pushed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok()
    }

    /// Notes the start of a refused call. Returns true if the call must be counted as a loss; false if it is nested in
    /// another refused call.
    pub(super) fn begin_call(&self, call: &Call<'_>) -> bool {
        let (depth, outer) = (stack_depth(), self.call.load(Ordering::Relaxed));
        if depth < outer {
            call.slot.set(NESTED);
            return false;
        }
        call.slot.set(REFUSED);
        self.call.store(depth, Ordering::Relaxed);
        true
    }

    /// Whether a call at this stack depth is nested in a refused call.
    pub(super) fn encloses(&self, depth: usize) -> bool {
        depth < self.call.load(Ordering::Relaxed)
    }

    /// Notes the end of the outermost refused call.
    pub(super) fn end_call(&self) {
        self.call.store(0, Ordering::Relaxed);
    }
}
