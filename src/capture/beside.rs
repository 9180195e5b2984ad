//! Calls that make no GPU work, on request: those that wait for it, and those that allocate and free memory.
//!
//! They take microseconds at least, so that nothing here is in a hurry. All threads write to one log, under a
//! lock: memory that one thread frees another may be given at once, and only the order of things tells which
//! allocation a free belongs to. So a free is written when it begins, everything else when it is over.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::control::window::{self, State};
use crate::cupti::{AllocationKind, BesideEvent, Call, CallKind};
use crate::record::{
    Allocated, ContextId, CorrelationId, Frame, LabelId, Loss, MemoryCall, MemoryKind, Nanos, Row, Wait,
};

use super::callback::{NESTED, capture, is_inside_launch, now, stack_depth};
use super::log::{Log, Reader, Writer};
use super::thread::{Entered, Own, Thread, drain_contexts};

/// What the slot of such a call says where it is the outermost one.
const BESIDE: u64 = 4;

/// The call of this sort that a thread is in.
pub(super) struct BesideCall {
    time: Nanos,
    /// Where the stack stood, as in a pending launch.
    depth: usize,
}

/// Records of five words: `kind | memory << 32`, `correlation | context << 32`, time, and two of its own.
mod kind {
    /// duration, -
    pub(super) const WAIT: u64 = 1;
    /// bytes, address
    pub(super) const ALLOCATE: u64 = 2;
    /// -, address
    pub(super) const FREE: u64 = 3;
}

static LOG: Log = Log::new();
static WRITER: Mutex<End<Writer>> = Mutex::new(End(Writer::new()));
static READER: Mutex<End<Reader>> = Mutex::new(End(Reader::new()));
/// Whether waiting copies are wanted as well.
static WAITS: AtomicBool = AtomicBool::new(false);

/// An end of the log.
struct End<T>(T);

// SAFETY: the ends point to chunks that only the log knows; whoever holds the lock is the one writer, or
// the one reader.
unsafe impl<T> Send for End<T> {}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has copies and fills that wait for their end noted as waits, from now on.
pub fn note_waits() {
    WAITS.store(true, Ordering::Relaxed);
}

/// Notes such a call.
#[cold]
pub(super) fn note(event: &BesideEvent<'_>) {
    let state = window::state();
    if state == State::Dead {
        return;
    }
    let Some(mut entered) = Entered::new() else { return };
    let (own, thread) = entered.parts();
    // The call lies in the frame of the function that the tracer called, as in a launch.
    match *event {
        BesideEvent::Begins { call, address } => begin(own, thread, call, address, state),
        BesideEvent::Ends { call, memory } => {
            if call.slot.get() == BESIDE
                && let Some(begun) = own.beside.take()
                && state == State::Open
            {
                end(own, thread, call, begun.time, memory);
            }
        }
    }
}

fn begin(own: &mut Own, thread: &Thread, call: &Call<'_>, address: u64, state: State) {
    let depth = stack_depth();
    let is_nested = own.beside.as_ref().is_some_and(|outer| depth < outer.depth);
    if is_nested || is_inside_launch(own, depth) {
        return call.slot.set(NESTED);
    }
    call.slot.set(BESIDE);
    let time = now();
    own.beside = Some(BesideCall { time, depth });
    // Freeing nothing is allowed, and nothing.
    if call.kind == CallKind::Free && state == State::Open && address != 0 {
        let context = context_of(own, thread, call);
        push(thread, kind::FREE, call.correlation, context, [time.0, 0, address]);
    }
}

fn end(own: &mut Own, thread: &Thread, call: &Call<'_>, begun: Nanos, memory: Option<(u64, u64)>) {
    let time = now();
    match (call.kind, memory) {
        (CallKind::Wait, _) => {
            let context = context_of(own, thread, call);
            push(thread, kind::WAIT, call.correlation, context, [begun.0, time.since(begun), 0]);
        }
        (CallKind::Allocate(memory_kind), Some((address, bytes))) => {
            let context = context_of(own, thread, call);
            let memory = match memory_kind {
                AllocationKind::Device | AllocationKind::Pitched => MemoryKind::DEVICE,
                AllocationKind::Pinned => MemoryKind::PINNED,
                AllocationKind::Managed => MemoryKind::MANAGED,
            };
            let kind = kind::ALLOCATE | u64::from(memory.0) << 32;
            push(thread, kind, call.correlation, context, [time.0, bytes, address]);
        }
        _ => {}
    }
}

/// A copy or fill that waited for its end is over.
pub(super) fn waited(
    thread: &Thread,
    correlation: CorrelationId,
    context: ContextId,
    begun: Nanos,
    ended: Nanos,
) {
    if WAITS.load(Ordering::Relaxed) && context != ContextId::OUTSIDE {
        push(thread, kind::WAIT, correlation, context, [begun.0, ended.since(begun), 0]);
    }
}

fn context_of(own: &mut Own, thread: &Thread, call: &Call<'_>) -> ContextId {
    let leaf = Frame::label(LabelId(u32::from(call.api.0)));
    capture(own, thread, leaf, std::ptr::from_ref(call).addr())
}

fn push(thread: &Thread, kind: u64, correlation: CorrelationId, context: ContextId, rest: [u64; 3]) {
    let head = [kind, u64::from(correlation.0) | u64::from(context.0) << 32];
    if !lock(&WRITER).0.push(&LOG, [&head, &rest]) {
        thread.tally.lose(Loss::HostCallsDropped);
    }
}

/// Hands over all such calls so far, and before them the contexts that they refer to. For the collector.
pub fn drain_beside(mut each: impl FnMut(&Row<'_>)) {
    let mut reader = lock(&READER);
    let End(reader) = &mut *reader;
    let mark = reader.mark(&LOG);
    if reader.is_at(mark) {
        return;
    }
    drain_contexts(&mut each);
    reader.drain(&LOG, mark, |words| {
        for record in words.chunks_exact(5) {
            if let Some(row) = row(record) {
                each(&row);
            }
        }
    });
}

fn row(record: &[u64]) -> Option<Row<'static>> {
    let correlation = CorrelationId(record[1] as u32);
    let context = ContextId((record[1] >> 32) as u32);
    let time = Nanos(record[2]);
    let allocated = match record[0] & u64::from(u32::MAX) {
        kind::WAIT => {
            return Some(Row::Wait(Wait { time, duration: record[3], correlation, context }));
        }
        kind::ALLOCATE => Some(Allocated { memory: MemoryKind((record[0] >> 32) as u16), bytes: record[3] }),
        kind::FREE => None,
        _ => return None,
    };
    Some(Row::Memory(MemoryCall { time, correlation, context, address: record[4], allocated }))
}
