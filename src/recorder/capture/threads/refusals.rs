//! Tracks refused calls and refused ranges, which cannot be recorded. A call or range is refused if a signal handler
//! makes the call or opens the range while the thread is inside gpuflame. It is also refused if there is no memory for
//! the thread's state.

use std::sync::atomic::{AtomicUsize, Ordering};

use gpuflame_cupti::tracer::Call;

use super::calls::{NESTED, REFUSED, stack_depth};

/// Refused calls of a thread that are in flight, and refused ranges that are still open. The thread and its signal
/// handlers write the fields of this struct. The thread itself writes these fields only at times at which no signal
/// handler runs.
pub(crate) struct OpenRefusals {
    /// Stack depth of the outermost refused call that is in flight; 0 if no refused call is in flight.
    pub(super) call: AtomicUsize,
    /// Number of refused ranges that were pushed and not yet popped.
    pub(crate) pushed: AtomicUsize,
}

impl OpenRefusals {
    pub(super) const fn new() -> Self {
        Self { call: AtomicUsize::new(0), pushed: AtomicUsize::new(0) }
    }

    /// Whether a pop belongs to a refused push. If the pop belongs to a refused push, notes that the range of this push
    /// is no longer open.
    pub(crate) fn consume_pop(&self) -> bool {
        self.pushed.load(Ordering::Relaxed) > 0
            && self.pushed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok()
    }

    /// Notes the start of a refused call. Returns true if the call must be counted as a loss, and false if it is nested
    /// in another refused call.
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
