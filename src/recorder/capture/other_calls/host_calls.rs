//! Records host calls, which are CUDA calls that create no GPU work. Host calls wait for GPU work, or allocate or free
//! memory. If the user requests dependencies, gpuflame also records the calls that record CUDA events on streams or
//! make a stream wait for a CUDA event. Host calls take microseconds or more, so this code need not be fast.
//!
//! Each host call is written to the thread's own log, in order with the thread's launches. This order shows which calls
//! preceded a delayed launch. The details of host calls are recorded only on request, in one log that all threads share
//! under a lock. A common log is needed because one thread may free memory that another thread immediately allocates
//! again. In this case, only the order of the records shows which of the two allocations was freed. Because the order
//! matters, the record of a free is written to the shared log when the call begins. The records of all other host calls
//! are written when the calls return.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::control::{lifecycle, window};
use gpuflame_cupti::tracer::{AllocationKind, Call, CallKind, HostCallEffect, HostCallEvent};
use gpuflame_model::record::{
    Allocation, ContextId, CorrelationId, EventCall, EventUse, HostCallSpan, Launch, LaunchAttributes, Loss,
    MemoryCall, MemoryKind, Nanos, Row, Wait,
};

use crate::capture::clock::now;
use crate::capture::logs::common_log::CommonLog;
use crate::capture::stack::capture_call;
use crate::capture::threads::calls::{HOST_CALL, NESTED, PendingHostCall, REFUSED, stack_depth};
use crate::capture::threads::drain::drain_contexts;
use crate::capture::threads::records::called_words;
use crate::capture::threads::thread::{EntryGuard, EntryRefusal, ThreadOnly, ThreadState, end_refused_call};

/// Kinds of records in the common log of host calls. Each record in the log of host calls has five words: `kind |
/// memory or duration << 32`, `correlation | context << 32`, the time, and two words whose meaning depends on the kind.
/// The comments below name these two words; `-` means that a word is unused.
mod kind {
    /// duration, -
    pub(super) const WAIT: u64 = 1;
    /// bytes, address
    pub(super) const ALLOCATE: u64 = 2;
    /// -, address
    pub(super) const FREE: u64 = 3;
    /// event, stream
    pub(super) const EVENT_RECORD: u64 = 4;
    /// event, stream
    pub(super) const EVENT_WAIT: u64 = 5;
    /// 1 if the launch is programmatic and 0 otherwise, -
    pub(super) const ATTRIBUTES: u64 = 6;
}

static LOG: CommonLog = CommonLog::new();
static WAITS: AtomicBool = AtomicBool::new(false);
static MEMORY: AtomicBool = AtomicBool::new(false);

/// Kinds of host calls whose details are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostCallDetails {
    /// Calls that wait, including synchronous copies and fills.
    pub waits: bool,
    /// Calls that allocate and free memory.
    pub memory: bool,
}

/// Selects the kinds of host calls whose details are recorded after this call.
pub fn select_host_call_details(details: HostCallDetails) {
    WAITS.store(details.waits, Ordering::Relaxed);
    MEMORY.store(details.memory, Ordering::Relaxed);
}

/// Records the beginning or end of a host call (a CUDA call that creates no GPU work).
#[cold]
pub(crate) fn record_event(event: &HostCallEvent<'_>) {
    if lifecycle::is_over() {
        return;
    }
    let Some(mut entered) = EntryGuard::new(std::ptr::from_ref(event).addr()) else {
        return refuse(event, &EntryRefusal::determine());
    };
    let (own, thread) = entered.parts();
    // As for a launch, `call` is in the stack frame of the gpuflame function that the tracing library (CUPTI) has
    // called.
    match *event {
        HostCallEvent::Begins { call, address } => begin(own, thread, call, address),
        HostCallEvent::Ends { call, done } => {
            let slot = call.slot.get();
            if slot == REFUSED {
                end_refused_call();
            } else if slot == HOST_CALL {
                match own.host_call.take() {
                    Some(begun) if window::state().is_open() => end(own, thread, call, &begun, done),
                    // The note about the entry of this host call was replaced. A signal handler on a stack at a higher
                    // address has made another host call before this call returned. The note about the entry of that
                    // call has replaced the note about this call.
                    None if window::state().is_open()
                        && counts_as_loss(call.kind)
                        && call.kind != CallKind::Free =>
                    {
                        thread.counters.lose(Loss::HostCallsDropped);
                    }
                    _ => {}
                }
            }
        }
    }
}

/// Records whether a launch with attributes may begin before the previous kernel ends. If the log has no room or if a
/// signal handler makes the launch, nothing is recorded. The attributes of such a launch count as unknown.
#[cold]
pub(crate) fn record_attributes(correlation: CorrelationId, is_programmatic: bool) {
    if !lifecycle::is_over() && window::state().is_open() {
        let head = [kind::ATTRIBUTES, u64::from(correlation.0)];
        LOG.push([&head, &[0, u64::from(is_programmatic), 0]]);
    }
}

/// Whether a call of this kind counts as a loss if it cannot be recorded. Only calls whose details the user has
/// requested count as a loss.
fn counts_as_loss(kind: CallKind) -> bool {
    match kind {
        CallKind::Wait => WAITS.load(Ordering::Relaxed),
        CallKind::Allocate(_) | CallKind::Free => MEMORY.load(Ordering::Relaxed),
        _ => true,
    }
}

/// Counts a call that cannot be recorded. Either a signal handler made the call while the thread was inside gpuflame,
/// or there is no memory for the thread's state.
fn refuse(event: &HostCallEvent<'_>, refused: &EntryRefusal) {
    match *event {
        HostCallEvent::Begins { call, .. } => {
            if refused.begin_call(call) && window::state().is_open() && counts_as_loss(call.kind) {
                refused.lose(Loss::HostCallsDropped);
            }
        }
        HostCallEvent::Ends { call, .. } if call.slot.get() == REFUSED => end_refused_call(),
        HostCallEvent::Ends { .. } => {}
    }
}

fn begin(own: &mut ThreadOnly, thread: &ThreadState, call: &Call<'_>, address: u64) {
    let depth = stack_depth();
    let outer = own.host_call.as_mut().filter(|outer| depth < outer.depth);
    let is_nested = outer.is_some();
    if let Some(outer) = outer {
        outer.correlation = call.correlation;
    }
    if is_nested || own.pending.encloses(depth) {
        return call.slot.set(NESTED);
    }
    call.slot.set(HOST_CALL);
    let time = now();
    own.host_call = Some(PendingHostCall { time, correlation: call.correlation, depth });
    // A program may free a null pointer, which has no effect.
    let is_free = call.kind == CallKind::Free && MEMORY.load(Ordering::Relaxed);
    if is_free && window::state().is_open() && address != 0 {
        let context = capture_call(own, thread, call);
        push(thread, kind::FREE, call.correlation, context, [time.0, 0, address]);
    }
}

fn end(
    own: &mut ThreadOnly,
    thread: &ThreadState,
    call: &Call<'_>,
    begun: &PendingHostCall,
    done: HostCallEffect,
) {
    let time = now();
    let &PendingHostCall { time: begun, correlation, .. } = begun;
    let context = capture_call(own, thread, call);
    if !matches!(call.kind, CallKind::EventRecord | CallKind::EventWait) {
        record_span(own, thread, context, begun, time);
    }
    let (waits, memory) = (WAITS.load(Ordering::Relaxed), MEMORY.load(Ordering::Relaxed));
    match (call.kind, done) {
        (CallKind::Wait, _) if waits => {
            push(thread, kind::WAIT, correlation, context, [begun.0, time.since(begun), 0]);
        }
        (CallKind::EventRecord | CallKind::EventWait, HostCallEffect::Event { event, stream }) => {
            let is_wait = call.kind == CallKind::EventWait;
            let kind = if is_wait { kind::EVENT_WAIT } else { kind::EVENT_RECORD };
            let duration = u32::try_from(time.since(begun)).unwrap_or(u32::MAX);
            push(thread, kind | u64::from(duration) << 32, correlation, context, [begun.0, event, stream]);
        }
        (CallKind::Allocate(memory_kind), HostCallEffect::Allocated { address, bytes }) if memory => {
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

/// Records for how long a synchronous copy or fill has made the thread wait. The copy or fill has already returned.
pub(crate) fn record_wait(own: &mut ThreadOnly, thread: &ThreadState, launch: &Launch, ended: Nanos) {
    let &Launch { time: begun, correlation, context, .. } = launch;
    if context == ContextId::OUTSIDE {
        return;
    }
    record_span(own, thread, context, begun, ended);
    if WAITS.load(Ordering::Relaxed) {
        push(thread, kind::WAIT, correlation, context, [begun.0, ended.since(begun), 0]);
    }
}

/// Writes a row about a finished host call to the thread's log, in order with the thread's launches. If the log has no
/// room, no loss is counted. Without this row, the explanation of the time before the thread's next launch is less
/// exact.
fn record_span(own: &mut ThreadOnly, thread: &ThreadState, context: ContextId, begun: Nanos, ended: Nanos) {
    let duration = u32::try_from(ended.since(begun)).unwrap_or(u32::MAX);
    own.launches.push(&thread.launches, [&called_words(&HostCallSpan { ended, duration, context })]);
}

fn push(thread: &ThreadState, kind: u64, correlation: CorrelationId, context: ContextId, rest: [u64; 3]) {
    let head = [kind, u64::from(correlation.0) | u64::from(context.0) << 32];
    if !LOG.push([&head, &rest]) {
        thread.counters.lose(Loss::HostCallsDropped);
    }
}

/// Passes all unread host calls to `each`. Before the host calls, passes the launch contexts (stack and API call) to
/// which the host calls refer. Only the collector calls this function.
pub fn drain_host_calls(mut each: impl FnMut(&Row<'_>)) {
    let Some(unread) = LOG.unread() else { return };
    drain_contexts(&mut each);
    unread.drain(|record| {
        if let Some(row) = row(record) {
            each(&row);
        }
    });
}

fn row(record: &[u64; 5]) -> Option<Row<'static>> {
    let correlation = CorrelationId(record[1] as u32);
    let context = ContextId((record[1] >> 32) as u32);
    let time = Nanos(record[2]);
    let event_call = |event_use| {
        let (duration, event, stream) = ((record[0] >> 32) as u32, record[3], record[4]);
        Row::EventCall(EventCall { time, duration, correlation, context, event_use, event, stream })
    };
    let allocated = match record[0] & u64::from(u32::MAX) {
        kind::ATTRIBUTES => {
            let is_programmatic = record[3] != 0;
            return Some(Row::LaunchAttributes(LaunchAttributes { correlation, is_programmatic }));
        }
        kind::WAIT => {
            return Some(Row::Wait(Wait { time, duration: record[3], correlation, context }));
        }
        kind::EVENT_RECORD => return Some(event_call(EventUse::Record)),
        kind::EVENT_WAIT => return Some(event_call(EventUse::Wait)),
        kind::ALLOCATE => Some(Allocation { memory: MemoryKind((record[0] >> 32) as u16), bytes: record[3] }),
        kind::FREE => None,
        _ => return None,
    };
    Some(Row::Memory(MemoryCall { time, correlation, context, address: record[4], allocated }))
}
