//! The hot path: the code that runs on the application's thread around every launch. Read this file from top to bottom.
//!
//! The hot path never returns an error and never panics. In the steady state, the hot path does not allocate memory,
//! take a lock or make a system call. A record for which there is no room is counted as lost. The hot path is slower in
//! the following cases:
//!
//! - A thread's first launch maps memory for the thread's state, and asks the C library for the bounds of the thread's
//!   stack. The C library allocates memory to determine the bounds.
//! - The first occurrence of a stack may map memory (`log`). A burst of launches may also map memory, if the launches
//!   are faster than the collector.
//! - If a launch runs on a stack other than the thread's own, the kernel copies that stack for each such launch
//!   (`unwind::copy`).
//! - If code was loaded or unloaded since the last launch, gpuflame queries the loader
//!   (`unwind::Unwinder::check_every_capture`). The query takes the loader's own lock for a short time.
//! - If the user asked for details of waits, each wait is written to a log that has a lock (`host_calls`).
//!
//! If API calls are nested, only the outermost call is recorded as a launch. A nested call only adds its correlation id
//! to the launch. The record of an asynchronous launch is written when the launch call returns. At that time, gpuflame
//! knows whether the call succeeded, and the GPU already works while gpuflame unwinds the stack. The record of a
//! synchronous launch is written when the launch call begins. The reason is that the GPU work of a synchronous call is
//! finished when the call returns, so CUPTI may already have delivered the record of that work.

use std::ptr::from_ref;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::control::{lifecycle, window};
use gpuflame_cupti::tracer::{
    Buffer, Call, CallKind, ClientTakeover, FilledBuffer, GraphEvent, HostCallEvent, Tracer,
};
use gpuflame_model::record::{ContextId, CorrelationId, Launch, Loss, Nanos};

use super::clock::now;
use super::marker::emit_marker;
use super::notices::{self, Notice};
use super::stack::capture_call;
use crate::capture::logs::buffers;
use crate::capture::other_calls::graphs;
use crate::capture::other_calls::host_calls;
use crate::capture::threads::calls::{
    INTERRUPTING_LAUNCH, MAX_ALIASES, NESTED, OUTERMOST, PendingLaunch, REFUSED, stack_depth,
};
use crate::capture::threads::outside::OutsideRange;
use crate::capture::threads::records::{launch_words, outside_words};
use crate::capture::threads::thread::{EntryGuard, EntryRefusal, ThreadOnly, ThreadState, end_refused_call};

/// gpuflame's implementation of the tracer's callbacks.
#[derive(Debug)]
pub struct Capture;

/// One in `TIMING_INTERVAL` calls is timed by gpuflame. The interval is a prime number, so that over time each call in
/// a short loop is timed.
const TIMING_INTERVAL: u64 = 61;

impl Tracer for Capture {
    const GRAPHS: bool = true;

    #[inline]
    fn enter(call: &Call<'_>) {
        if lifecycle::is_over() {
            return note_launch_after_shutdown(call.kind);
        }
        if call.kind.is_control() {
            return announce(call.kind);
        }
        let Some(mut entered) = EntryGuard::new(from_ref(call).addr()) else {
            return count_refused(call, &EntryRefusal::determine());
        };
        let (own, thread) = entered.parts();
        let depth = stack_depth();
        if own.pending.encloses(depth) {
            call.slot.set(NESTED);
            handle_nested(own, thread, call.correlation);
        } else {
            // The new call is not nested in the pending call. Usually, the thread has left the pending call by a
            // longjmp or an exception, so the pending call never returned.
            let pending = &mut own.pending;
            let slot = if pending.is_in_flight {
                pending.slot_after_pending(&mut own.aside, depth)
            } else {
                OUTERMOST
            };
            call.slot.set(slot);
            begin_launch(own, thread, call, depth);
        }
    }

    #[inline]
    fn exit(call: &Call<'_>) {
        let slot = call.slot.get();
        if slot != OUTERMOST {
            return exit_inner_call(call, slot);
        }
        if lifecycle::is_over() {
            return;
        }
        let Some(mut entered) = EntryGuard::new(from_ref(call).addr()) else {
            return EntryRefusal::determine().lose(Loss::LaunchesDropped);
        };
        let (own, thread) = entered.parts();
        let was_in_flight = std::mem::replace(&mut own.pending.is_in_flight, false);
        if was_in_flight && own.pending.launch.correlation == call.correlation {
            end_launch(own, thread, call);
        } else if !is_synchronous(call.kind) && call.return_value == 0 {
            thread.counters.lose(Loss::LaunchesDropped);
        }
    }

    fn request_buffer() -> Option<Buffer> {
        if lifecycle::is_over() { None } else { buffers::request() }
    }

    fn has_ended() -> bool {
        lifecycle::is_over()
    }

    fn buffer_completed(filled: FilledBuffer) {
        // After shutdown, the collector reads no more records, so this buffer of records is dropped.
        if lifecycle::is_over() {
            return;
        }
        if buffers::completed(filled) {
            notices::announce(Notice::BuffersFilled);
        }
    }

    fn records_discarded(count: u64) {
        buffers::discard(count);
    }

    fn context_created() {
        notices::announce(Notice::ContextCreated);
    }

    fn graph(event: GraphEvent<'_>) {
        graphs::record_event(&event);
    }

    fn launch_attributes(correlation: CorrelationId, is_programmatic: bool) {
        host_calls::record_attributes(correlation, is_programmatic);
    }

    fn host_call(event: HostCallEvent<'_>) {
        host_calls::record_event(&event);
    }

    fn on_client_takeover(approach: ClientTakeover) {
        notices::announce(Notice::ClientTakeover(approach));
    }

    fn fatal(reason: &str) {
        notices::announce(Notice::Fatal(reason));
    }

    fn panicked() {
        lifecycle::end();
        notices::announce(Notice::Panicked);
    }
}

/// Whether a launch was made after gpuflame's shutdown.
static LAUNCHED_AFTER_SHUTDOWN: AtomicBool = AtomicBool::new(false);

#[cold]
fn note_launch_after_shutdown(kind: CallKind) {
    if !kind.is_control() {
        LAUNCHED_AFTER_SHUTDOWN.store(true, Ordering::Relaxed);
    }
}

/// Whether the program has launched GPU work after gpuflame's shutdown. Launches after gpuflame's shutdown set this
/// flag, but are not counted.
pub fn has_launched_after_shutdown() -> bool {
    LAUNCHED_AFTER_SHUTDOWN.load(Ordering::Relaxed)
}

/// Notifies the session of an API call that controls recording, such as `cudaProfilerStart`.
#[cold]
fn announce(kind: CallKind) {
    notices::announce(match kind {
        CallKind::ProfilerStart => Notice::ProfilerStart,
        CallKind::ProfilerStop => Notice::ProfilerStop,
        _ => Notice::ContextEnds,
    });
}

/// Counts a launch that cannot be recorded, for one of two reasons. Either a signal handler made the launch while the
/// thread was inside gpuflame, or no memory is available for the thread's state.
#[cold]
fn count_refused(call: &Call<'_>, refused: &EntryRefusal) {
    if refused.begin_call(call) {
        refused.lose(match refused {
            EntryRefusal::Inside(_) => Loss::StacksNested,
            EntryRefusal::WithoutMemory => Loss::LaunchesDropped,
        });
    }
}

/// Handles the exit of a call that is nested in a launch, or that a signal handler made. This function records the call
/// only if the call is a launch made by a signal handler.
#[cold]
fn exit_inner_call(call: &Call<'_>, slot: u64) {
    if slot == REFUSED {
        return end_refused_call();
    }
    if slot != INTERRUPTING_LAUNCH || lifecycle::is_over() {
        return;
    }
    let Some(mut entered) = EntryGuard::new(from_ref(call).addr()) else { return };
    let (own, thread) = entered.parts();
    end_launch(own, thread, call);
    own.pending = own.aside.take().unwrap_or(PendingLaunch::NONE);
    if own.pending.is_in_flight {
        thread.in_flight.begin(own.pending.window);
    }
}

/// Handles the start of a launch. Notes the time. If the launch is synchronous, also records the launch. Ignores the
/// launch if the window state is muted.
fn begin_launch(own: &mut ThreadOnly, thread: &ThreadState, call: &Call<'_>, depth: usize) {
    let time = now();
    let window = window::state();
    if window.is_special() {
        if window.is_muted() {
            return call.slot.set(NESTED);
        }
        emit_marker(call);
    }
    own.calls += 1;
    own.pending.window = window;
    thread.in_flight.begin(window);
    let mut launch = Launch {
        time,
        duration: 0,
        correlation: call.correlation,
        within: call.correlation,
        context: if window.is_open() { ContextId::NONE } else { ContextId::OUTSIDE },
    };
    let recorded = is_synchronous(call.kind);
    if recorded {
        record_launch(own, thread, call, &mut launch, 0);
    }
    let spent = own.calls.is_multiple_of(TIMING_INTERVAL).then(|| now().since(time));
    // The ids in `aliases` are not cleared, because ids at or above the index `alias_count` count as unused.
    let pending = &mut own.pending;
    (pending.launch, pending.depth, pending.api, pending.recorded) = (launch, depth, call.api, recorded);
    (pending.alias_count, pending.spent, pending.is_in_flight) = (0, spent, true);
}

/// Handles a call that is nested in a launch. If the nested call has a correlation id of its own, the launch is also
/// recorded under that id.
fn handle_nested(own: &mut ThreadOnly, thread: &ThreadState, correlation: CorrelationId) {
    let outer = &mut own.pending;
    if outer.launch.correlation == correlation {
        return;
    }
    if outer.launch.context == ContextId::OUTSIDE && outer.recorded {
        extend_outside(own, thread, correlation);
    } else if outer.recorded {
        let alias = Launch { correlation, ..outer.launch };
        push_launch(own, thread, &alias);
    } else if outer.alias_count < MAX_ALIASES {
        outer.aliases[outer.alias_count] = correlation;
        outer.alias_count += 1;
    }
}

/// Handles the return of a launch call. Records the launch, unless the launch failed or was already recorded when the
/// call began.
#[inline(always)]
fn end_launch(own: &mut ThreadOnly, thread: &ThreadState, call: &Call<'_>) {
    let time = now();
    if own.pending.recorded {
        // A synchronous launch is recorded when its call begins, before it is known whether the call fails. If a
        // synchronous call fails, its launch has no activity record, so it is counted as a launch without an activity.
        if is_synchronous(call.kind) {
            let launch = own.pending.launch;
            host_calls::record_wait(own, thread, &launch, time);
        }
    } else if call.return_value != 0 {
        thread.counters.lose(Loss::LaunchesFailed);
    } else {
        let mut launch = own.pending.launch;
        launch.duration = u32::try_from(time.since(launch.time)).unwrap_or(u32::MAX).max(1);
        let aliases = own.pending.alias_count;
        record_launch(own, thread, call, &mut launch, aliases);
        for at in 0..aliases {
            let alias = Launch { correlation: own.pending.aliases[at], ..launch };
            if alias.context != ContextId::OUTSIDE {
                push_launch(own, thread, &alias);
            }
        }
    }
    thread.in_flight.end();
    thread.counters.calls.add(1);
    if let Some(spent) = own.pending.spent {
        let is_graph = call.kind == CallKind::GraphLaunch;
        let times = if is_graph { &thread.counters.graph_times } else { &thread.counters.times };
        times.add(spent + now().since(time));
    }
}

/// If a window is open, captures the stack and writes the launch's record. If no window is open, only counts the
/// launch. `nested` is the number of entries in `own.pending.aliases`, which are the correlation ids of nested calls.
fn record_launch(
    own: &mut ThreadOnly,
    thread: &ThreadState,
    call: &Call<'_>,
    launch: &mut Launch,
    nested: usize,
) {
    if launch.context == ContextId::OUTSIDE {
        return count_outside(own, thread, launch, nested);
    }
    launch.context = capture_call(own, thread, call);
    push_launch(own, thread, launch);
}

/// Counts a launch made while no window is open.
#[cold]
fn count_outside(own: &mut ThreadOnly, thread: &ThreadState, launch: &Launch, nested: usize) {
    let pending = &own.pending;
    let last = pending.aliases[..nested].last().copied().unwrap_or(launch.correlation);
    let over = Nanos(launch.time.0.saturating_add(u64::from(launch.duration)));
    let ended = OutsideRange::add(&mut own.outside, pending.window.openings(), launch, last, over);
    let unread = ended.map_or(0, |ended| thread.outside.unread(&ended));
    if let Some(range) = &own.outside {
        thread.outside.set(range.launches());
    }
    // `outside.set` must publish the new range before the previous range is written to the log. If the previous range
    // were written to the log first, the collector could read this range twice: once from the log, and once as the
    // range that is still growing.
    if let Some(ended) = ended
        && !own.launches.push(&thread.launches, [&outside_words(&ended)])
    {
        thread.counters.lose_many(Loss::LaunchesDropped, u64::from(unread));
    }
}

/// Adds the correlation id of a nested call to the current range of launches outside windows. This function is used if
/// the launch that encloses the nested call was already counted when that launch began.
#[cold]
fn extend_outside(own: &mut ThreadOnly, thread: &ThreadState, last: CorrelationId) {
    if let Some(range) = &mut own.outside {
        range.extend(last);
        thread.outside.set(range.launches());
    }
}

/// Captures the stack, interns it and writes a record, as a callback does, but omits the callback's guards and clock
/// reads. Only the benchmarks call this function.
#[doc(hidden)]
#[inline(never)]
pub fn record_stack(call: &Call<'_>) {
    let Some(mut entered) = EntryGuard::new(from_ref(call).addr()) else { return };
    let (own, thread) = entered.parts();
    let context = capture_call(own, thread, call);
    let (correlation, time) = (call.correlation, Nanos(0));
    push_launch(own, thread, &Launch { time, duration: 0, correlation, within: correlation, context });
}

#[inline]
fn push_launch(own: &mut ThreadOnly, thread: &ThreadState, launch: &Launch) {
    let pushed = own.launches.push(&thread.launches, [&launch_words(launch)]);
    // The record of a launch is complete without its additional ids (aliases), so a lost record of an alias is not
    // counted as a loss.
    if !pushed && !launch.is_alias() {
        thread.counters.lose(Loss::LaunchesDropped);
    }
}

/// Whether a call of this kind returns only when the GPU work that it started is done. A synchronous call is recorded
/// when it begins.
fn is_synchronous(kind: CallKind) -> bool {
    matches!(kind, CallKind::Copy { sync: true } | CallKind::Set { sync: true })
}
