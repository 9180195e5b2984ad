//! Captures the stack of an API call, assigns an id to the stack, and records the stack if it is new.

use std::sync::atomic::{AtomicU32, Ordering};

use gpuflame_cupti::tracer::Call;
use gpuflame_model::record::{ContextFlags, ContextId, Frame, LabelId, Loss, ThreadId};
use gpuflame_unwind::{CachedCapture, Captured, Skip, Unwinder};

use crate::capture::ids::intern::{Hash, InternResult, Interner, NewContext};
use crate::capture::logs::log::LogWriter;
use crate::capture::threads::open_ranges::OpenRanges;
use crate::capture::threads::python::PythonFrames;
use crate::capture::threads::records::{as_words, context_words};
use crate::capture::threads::thread::{ThreadOnly, ThreadState, announce};
use crate::capture::threads::thread_counters::ThreadCounters;

/// Value of `native` that means that the index of the native frames in the unwinder's cache is unknown.
const UNKNOWN_NATIVE: usize = usize::MAX;

static NEXT_CONTEXT: AtomicU32 = AtomicU32::new(ContextId::FIRST.0);

/// Returns the id that will be assigned to the next new stack.
pub(super) fn next_context() -> ContextId {
    ContextId(NEXT_CONTEXT.load(Ordering::Relaxed))
}

/// Returns a new id for a stack that this module did not capture, such as a sampled stack.
pub fn new_context() -> ContextId {
    ContextId(NEXT_CONTEXT.fetch_add(1, Ordering::Relaxed))
}

/// Captures the stack of an API call, and returns the id of its launch context (stack and API call).
#[inline]
pub(super) fn capture_call(own: &mut ThreadOnly, thread: &ThreadState, call: &Call<'_>) -> ContextId {
    let leaf = Frame::label(LabelId(u32::from(call.api.0)));
    let launched = call.symbol_name.addr() as u64;
    capture(own, thread, (leaf, launched), std::ptr::from_ref(call).addr())
}

/// Captures the caller's stack without gpuflame's own frames, and returns the id of the launch context (stack and API
/// call). `leaf` names the API call. `launched` identifies the kernel that the call launches, or is 0. `ours` is an
/// address in the stack frame of the gpuflame function that the tracing library (CUPTI) has called. The stack frames of
/// that function and of all functions that it has called belong to gpuflame.
pub(super) fn capture(
    own: &mut ThreadOnly,
    thread: &ThreadState,
    (leaf, launched): (Frame, u64),
    ours: usize,
) -> ContextId {
    let ThreadOnly { unwinder, verifying, ranges, python, interner, .. } = own;
    let skip = || Skip::UpTo(ours as u64);
    let hint = leaf.0.rotate_left(32) ^ launched;
    let (captured, cached) = match unwinder.capture_with_cache(skip(), hint) {
        CachedCapture::Miss(captured) => (captured, None),
        CachedCapture::Hit(number) => {
            let extra = extra_hash_if_any(ranges, python, thread, number);
            let cached = interner.find_cached(number, extra, leaf);
            if let Some(id) = cached
                && verifying.is_none()
            {
                return id;
            }
            (unwinder.capture(skip()), cached.or(Some(ContextId::NONE)))
        }
    };
    if let Some(verifying) = verifying {
        verifying.verify_sample(&captured, ours, &thread.counters);
    }
    let Captured { frames, unchanged, .. } = captured;
    let found = match extra_hash_if_any(ranges, python, thread, UNKNOWN_NATIVE) {
        None => interner.find(None, leaf, frames, unchanged),
        extra => interner.find_with_extra(extra, leaf, frames, unchanged),
    };
    if verifying.is_some()
        && let Some(python) = python
    {
        python.verify(&thread.counters);
    }
    match found {
        InternResult::Known(id) => {
            match cached {
                None => cache_stack(unwinder, interner),
                Some(cached) => compare_contexts(cached, id, &thread.counters),
            }
            id
        }
        InternResult::New(key) => record_new_stack(
            (leaf, key),
            &captured,
            own.id,
            thread,
            &mut own.contexts,
            (ranges, python, interner),
        ),
    }
}

/// Adds the stack that was captured last, and its id, to the caches, so that the stack need not be walked again.
#[inline(always)]
fn cache_stack(unwinder: &mut Unwinder, interner: &mut Interner) {
    if let Some(number) = unwinder.cache_last() {
        interner.cache_last(number);
    }
}

/// Compares the id from the cache with the id of the stack that was walked again. If the two ids differ, counts a
/// verification failure.
fn compare_contexts(cached: ContextId, walked: ContextId, counters: &ThreadCounters) {
    if cached != ContextId::NONE && cached != walked {
        counters.verified.unlike_plain.add(1);
    }
}

/// Returns the hash of the open ranges and the Python frames, or `None` if the thread has neither. Because of this
/// hash, stacks that differ only in ranges or Python frames get different ids.
#[inline(always)]
fn extra_hash_if_any(
    ranges: &mut OpenRanges,
    python: &mut Option<PythonFrames>,
    thread: &ThreadState,
    native: usize,
) -> Option<Hash> {
    if python.is_none() && ranges.is_empty() { None } else { extra_hash(ranges, python, thread, native) }
}

/// Computes the hash of the open ranges and the Python frames. `native` is the index of the native frames in the
/// unwinder's cache.
#[inline(never)]
fn extra_hash(
    ranges: &mut OpenRanges,
    python: &mut Option<PythonFrames>,
    thread: &ThreadState,
    native: usize,
) -> Option<Hash> {
    let ranges = ranges.hash(&thread.pending_ends);
    match python {
        None => ranges,
        Some(python) => python.hash(ranges, native, &thread.counters),
    }
}

/// Assigns an id to a new stack, and writes the stack to the thread's log.
#[cold]
#[inline(never)]
fn record_new_stack(
    (leaf, key): (Frame, NewContext),
    captured: &Captured<'_>,
    thread_id: ThreadId,
    thread: &ThreadState,
    contexts: &mut LogWriter,
    (ranges, python, interner): (&mut OpenRanges, &mut Option<PythonFrames>, &mut Interner),
) -> ContextId {
    let mut key = key;
    // The thread looks for a Python interpreter only when a stack is new. Looking for an interpreter only then is
    // sufficient, because the first stack with interpreter frames is always new.
    if python.is_none() {
        *python = PythonFrames::of_this_thread();
        if python.is_some() {
            let frames = captured.frames;
            match interner.find_with_extra(
                extra_hash(ranges, python, thread, UNKNOWN_NATIVE),
                leaf,
                frames,
                frames.len(),
            ) {
                InternResult::Known(id) => return id,
                InternResult::New(with_python) => key = with_python,
            }
        }
    }
    let (mut frames, mut flags) = (captured.frames, captured.flags);
    if let Some(merged) = python.as_mut().and_then(|python| python.merge(captured, &thread.counters)) {
        frames = merged.frames;
        flags.0 |= if merged.is_cut { ContextFlags::TRUNCATED } else { 0 };
    }
    if !contexts.has_begun() {
        announce(thread_id, thread, contexts);
    }
    let id = ContextId(NEXT_CONTEXT.fetch_add(1, Ordering::Relaxed));
    let ranges = ranges.frames();
    let head = context_words(id, thread_id, flags, ranges.len() + frames.len() + 1);
    if !contexts.push(&thread.contexts, [&head, ranges, &[leaf.0], as_words(frames)]) {
        thread.counters.lose(Loss::StacksDropped);
        return ContextId::NONE;
    }
    // If the table of ids cannot grow, it does not store the id. In this case, the next occurrence of the stack gets
    // another id, which is correct but wastes memory.
    interner.insert(key, id);
    id
}
