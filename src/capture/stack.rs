//! The stack of an API call: taken, given an id, and written down if it is new.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::record::{ContextId, Frame, LabelId, Loss};
use crate::tracer::Call;
use crate::unwind::Skip;

use super::intern::Interned;
use super::records::{as_words, context_words};
use super::thread::{Own, Thread};

static NEXT_CONTEXT: AtomicU32 = AtomicU32::new(ContextId::FIRST.0);

/// The id that the next new stack gets.
pub(super) fn next_context() -> ContextId {
    ContextId(NEXT_CONTEXT.load(Ordering::Relaxed))
}

/// The context of the stack that made an API call.
#[inline]
pub(super) fn capture_call(own: &mut Own, thread: &Thread, call: &Call<'_>) -> ContextId {
    let leaf = Frame::label(LabelId(u32::from(call.api.0)));
    capture(own, thread, leaf, std::ptr::from_ref(call).addr())
}

/// Captures the caller's stack, skipping our own frames; `leaf` names the API call. `ours` is an address in the frame of
/// the function that the tracing library called (the description of a call lies there): that frame and those inside it
/// are left out.
pub(super) fn capture(own: &mut Own, thread: &Thread, leaf: Frame, ours: usize) -> ContextId {
    let captured = own.unwinder.capture(Skip::UpTo(ours as u64));
    if let Some(verifying) = &mut own.verifying {
        verifying.look_at(&captured, ours, &thread.tally);
    }
    let ranges = own.ranges.hash(&thread.ended);
    let key = match own.interner.find(ranges, leaf, captured.frames, captured.kept) {
        Interned::Known(id) => return id,
        Interned::New(key) => key,
    };
    let id = ContextId(NEXT_CONTEXT.fetch_add(1, Ordering::Relaxed));
    let ranges = own.ranges.frames();
    let head = context_words(id, own.id, captured.flags, ranges.len() + captured.frames.len() + 1);
    if !own.contexts.push(&thread.contexts, [&head, ranges, &[leaf.0], as_words(captured.frames)]) {
        thread.tally.lose(Loss::StacksDropped);
        return ContextId::NONE;
    }
    // Where the table cannot grow, the same stack gets another id next time: right, only wasteful.
    own.interner.insert(key, id);
    id
}
