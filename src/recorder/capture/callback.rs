//! The hot path: the code that runs on the application's thread around every launch. Read it top to bottom.
//!
//! The hot path never allocates, takes a lock, makes a system call, returns an error or panics. Records that cannot be
//! stored are counted. Only new situations cost more. A thread's first launch maps the thread's state and asks the C
//! library for the bounds of its stack, which allocates. A new stack, or a burst of launches that outruns the
//! collector, may map memory (`log`). If a launch runs on a stack other than the thread's own, the kernel copies that
//! stack each time (`unwind::copy`). If code was loaded or unloaded since the last launch, the loader is queried, under
//! its own short lock (see `unwind::Unwinder::check_every_capture`). If the user asked for details of waits, these go
//! to a log with a lock (`host_calls`).
//!
//! The outermost API call is the launch; calls nested in it only contribute their ids. Asynchronous calls are recorded
//! when they return, because only then is it known whether they failed, and because the unwinding then overlaps with
//! the GPU's work. Synchronous calls are recorded when they begin, because when they return their work has finished,
//! and CUPTI may have delivered its record already.

use std::ptr::from_ref;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::control::{lifecycle, window};
use gpuflame_cupti::tracer::{
    Buffer, Call, CallKind, ClientTakeover, FilledBuffer, GraphEvent, HostCallEvent, Tracer,
};
use gpuflame_model::record::{ContextId, CorrelationId, Launch, Loss, Nanos};

use super::buffers;
use super::calls::{MOST_ALIASES, NESTED, OUTERMOST, OUTERMOST_MEANWHILE, Pending, REFUSED, stack_depth};
use super::clock::now;
use super::graphs;
use super::host_calls;
use super::marker::mark;
use super::notices::{self, Notice};
use super::outside::Range;
use super::records::{launch_words, outside_words};
use super::stack::capture_call;
use super::thread::{Entered, Own, Refused, Thread, refused_call_ends};

/// The tracer that records launches.
#[derive(Debug)]
pub struct Capture;

/// Number of calls per timed call. It is a prime number, so that in a loop of a few calls each of these calls is timed
/// in turn.
const TIMED: u64 = 61;

impl Tracer for Capture {
    const GRAPHS: bool = true;

    #[inline]
    fn enter(call: &Call<'_>) {
        if lifecycle::is_over() {
            return note_late(call.kind);
        }
        if call.kind.is_control() {
            return announce(call.kind);
        }
        let Some(mut entered) = Entered::new(from_ref(call).addr()) else {
            return refuse(call, &Refused::now());
        };
        let (own, thread) = entered.parts();
        let depth = stack_depth();
        if own.pending.is_around(depth) {
            call.slot.set(NESTED);
            meet_nested(own, thread, call.correlation);
        } else {
            // If the pending call does not enclose this call, the pending call usually never returned, because of a
            // longjmp or an exception.
            let pending = &mut own.pending;
            let slot = if pending.is_under_way { pending.make_way(&mut own.aside, depth) } else { OUTERMOST };
            call.slot.set(slot);
            begin(own, thread, call, depth);
        }
    }

    #[inline]
    fn exit(call: &Call<'_>) {
        let slot = call.slot.get();
        if slot != OUTERMOST {
            return exit_of_handler(call, slot);
        }
        if lifecycle::is_over() {
            return;
        }
        let Some(mut entered) = Entered::new(from_ref(call).addr()) else {
            return Refused::now().lose(Loss::LaunchesDropped);
        };
        let (own, thread) = entered.parts();
        let was_under_way = std::mem::replace(&mut own.pending.is_under_way, false);
        if was_under_way && own.pending.launch.correlation == call.correlation {
            end(own, thread, call);
        } else if !is_synchronous(call.kind) && call.return_value == 0 {
            thread.tally.lose(Loss::LaunchesDropped);
        }
    }

    fn request_buffer() -> Option<Buffer> {
        if lifecycle::is_over() { None } else { buffers::request() }
    }

    fn has_ended() -> bool {
        lifecycle::is_over()
    }

    fn buffer_completed(filled: FilledBuffer) {
        // After shutdown the collector reads no records, so the buffer is dropped.
        if lifecycle::is_over() {
            return;
        }
        if buffers::completed(filled) {
            notices::announce(Notice::BuffersWait);
        }
    }

    fn records_discarded(count: u64) {
        buffers::discard(count);
    }

    fn context_created() {
        notices::announce(Notice::ContextCreated);
    }

    fn graph(event: GraphEvent<'_>) {
        graphs::note(&event);
    }

    fn host_call(event: HostCallEvent<'_>) {
        host_calls::note(&event);
    }

    fn on_client_takeover(approach: ClientTakeover) {
        notices::announce(Notice::Approached(approach));
    }

    fn fatal(reason: &str) {
        notices::announce(Notice::Fatal(reason));
    }

    fn panicked() {
        lifecycle::end();
        notices::announce(Notice::Panicked);
    }
}

/// Whether a launch was made after shutdown.
static IS_LATE: AtomicBool = AtomicBool::new(false);

#[cold]
fn note_late(kind: CallKind) {
    if !kind.is_control() {
        IS_LATE.store(true, Ordering::Relaxed);
    }
}

/// Whether the program has launched work after shutdown. Launches after shutdown are not counted.
pub fn has_launched_late() -> bool {
    IS_LATE.load(Ordering::Relaxed)
}

/// Passes on a call that controls recording.
#[cold]
fn announce(kind: CallKind) {
    notices::announce(match kind {
        CallKind::ProfilerStart => Notice::ProfilerStart,
        CallKind::ProfilerStop => Notice::ProfilerStop,
        _ => Notice::ContextEnds,
    });
}

/// Counts a launch that cannot be recorded: a signal handler made it while the thread was inside gpuflame, or there
/// is no memory for the thread's state.
#[cold]
fn refuse(call: &Call<'_>, refused: &Refused) {
    if refused.begins(call) {
        refused.lose(match refused {
            Refused::Inside(_) => Loss::StacksNested,
            Refused::WithoutMemory => Loss::LaunchesDropped,
        });
    }
}

/// Handles the exit of a call that is nested in a launch, or that a signal handler has made.
#[cold]
fn exit_of_handler(call: &Call<'_>, slot: u64) {
    if slot == REFUSED {
        return refused_call_ends();
    }
    if slot != OUTERMOST_MEANWHILE || lifecycle::is_over() {
        return;
    }
    let Some(mut entered) = Entered::new(from_ref(call).addr()) else { return };
    let (own, thread) = entered.parts();
    end(own, thread, call);
    own.pending = own.aside.take().unwrap_or(Pending::NONE);
    if own.pending.is_under_way {
        thread.under_way.begin(own.pending.window);
    }
}

/// Handles the start of a launch: notes the time, and records the launch now if it is synchronous. May do nothing while
/// no window is open.
fn begin(own: &mut Own, thread: &Thread, call: &Call<'_>, depth: usize) {
    let time = now();
    let window = window::state();
    if window.is_special() {
        if window.is_muted() {
            return call.slot.set(NESTED);
        }
        mark(call);
    }
    own.calls += 1;
    own.pending.window = window;
    thread.under_way.begin(window);
    let mut launch = Launch {
        time,
        duration: 0,
        correlation: call.correlation,
        within: call.correlation,
        context: if window.is_open() { ContextId::NONE } else { ContextId::OUTSIDE },
    };
    let recorded = is_synchronous(call.kind);
    if recorded {
        record(own, thread, call, &mut launch, 0);
    }
    let spent = own.calls.is_multiple_of(TIMED).then(|| now().since(time));
    // The array of aliases keeps its old values, because `alias_count` = 0 marks them as unused.
    let pending = &mut own.pending;
    (pending.launch, pending.depth, pending.api, pending.recorded) = (launch, depth, call.api, recorded);
    (pending.alias_count, pending.spent, pending.is_under_way) = (0, spent, true);
}

/// Handles a call nested in the launch. If the nested call has a correlation id of its own, the launch is recorded
/// under that id too.
fn meet_nested(own: &mut Own, thread: &Thread, correlation: CorrelationId) {
    let outer = &mut own.pending;
    if outer.launch.correlation == correlation {
        return;
    }
    if outer.launch.context == ContextId::OUTSIDE && outer.recorded {
        extend_outside(own, thread, correlation);
    } else if outer.recorded {
        let alias = Launch { correlation, ..outer.launch };
        push(own, thread, &alias);
    } else if outer.alias_count < MOST_ALIASES {
        outer.aliases[outer.alias_count] = correlation;
        outer.alias_count += 1;
    }
}

/// Handles the return of a launch. Records the launch, unless it failed or was recorded when it began.
#[inline(always)]
fn end(own: &mut Own, thread: &Thread, call: &Call<'_>) {
    let time = now();
    if own.pending.recorded {
        // If a synchronous launch failed, it has no activity, and its record is counted as a launch without an
        // activity.
        if is_synchronous(call.kind) {
            let launch = own.pending.launch;
            host_calls::waited(own, thread, &launch, time);
        }
    } else if call.return_value != 0 {
        thread.tally.lose(Loss::LaunchesFailed);
    } else {
        let mut launch = own.pending.launch;
        launch.duration = u32::try_from(time.since(launch.time)).unwrap_or(u32::MAX).max(1);
        let aliases = own.pending.alias_count;
        record(own, thread, call, &mut launch, aliases);
        for at in 0..aliases {
            let alias = Launch { correlation: own.pending.aliases[at], ..launch };
            if alias.context != ContextId::OUTSIDE {
                push(own, thread, &alias);
            }
        }
    }
    thread.under_way.end();
    thread.tally.calls.add(1);
    if let Some(spent) = own.pending.spent {
        let is_graph = call.kind == CallKind::GraphLaunch;
        let times = if is_graph { &thread.tally.graph_times } else { &thread.tally.times };
        times.add(spent + now().since(time));
    }
}

/// If a window is open, captures the stack and writes the record; otherwise counts the launch. `nested` is the number
/// of nested calls so far that have correlation ids of their own.
fn record(own: &mut Own, thread: &Thread, call: &Call<'_>, launch: &mut Launch, nested: usize) {
    if launch.context == ContextId::OUTSIDE {
        return note_outside(own, thread, launch, nested);
    }
    launch.context = capture_call(own, thread, call);
    push(own, thread, launch);
}

/// Counts a launch made while no window is open.
#[cold]
fn note_outside(own: &mut Own, thread: &Thread, launch: &Launch, nested: usize) {
    let pending = &own.pending;
    let last = pending.aliases[..nested].last().copied().unwrap_or(launch.correlation);
    let over = Nanos(launch.time.0.saturating_add(u64::from(launch.duration)));
    let ended = Range::add(&mut own.outside, pending.window.openings(), launch, last, over);
    let untold = ended.map_or(0, |ended| thread.outside.untold(&ended));
    if let Some(range) = &own.outside {
        thread.outside.set(range.launches());
    }
    // The ended range is pushed only after `outside.set`. Otherwise the collector could read that the range has ended
    // and then still find it as the growing range.
    if let Some(ended) = ended
        && !own.launches.push(&thread.launches, [&outside_words(&ended)])
    {
        thread.tally.lose_many(Loss::LaunchesDropped, u64::from(untold));
    }
}

/// Adds the id of a call nested in a launch that was counted when it began.
#[cold]
fn extend_outside(own: &mut Own, thread: &Thread, last: CorrelationId) {
    if let Some(range) = &mut own.outside {
        range.extend(last);
        thread.outside.set(range.launches());
    }
}

/// Performs the work of a launch without the guards and clocks of a callback: captures the stack of the caller's
/// caller, interns it and writes a record. For benchmarks.
#[doc(hidden)]
#[inline(never)]
pub fn record_stack(call: &Call<'_>) {
    let Some(mut entered) = Entered::new(from_ref(call).addr()) else { return };
    let (own, thread) = entered.parts();
    let context = capture_call(own, thread, call);
    let (correlation, time) = (call.correlation, Nanos(0));
    push(own, thread, &Launch { time, duration: 0, correlation, within: correlation, context });
}

#[inline]
fn push(own: &mut Own, thread: &Thread, launch: &Launch) {
    let pushed = own.launches.push(&thread.launches, [&launch_words(launch)]);
    // If only the record of an additional id is lost, the launch itself is not lost and no loss is counted.
    if !pushed && !launch.is_alias() {
        thread.tally.lose(Loss::LaunchesDropped);
    }
}

/// Whether the call returns only when its GPU work is done, so that the stack must be captured when the call begins.
fn is_synchronous(kind: CallKind) -> bool {
    matches!(kind, CallKind::Copy { sync: true } | CallKind::Set { sync: true })
}
