//! The hot path: what happens on the application's thread around every launch. Read it top to bottom.
//!
//! It promises: no allocation in steady state (a thread's first launch and a stack never seen before may
//! map memory), no lock, no system call, nothing returned, nothing thrown. What cannot be kept is counted.
//! (Only when code was loaded or unloaded since the last launch, the loader is asked, under its own short
//! lock; see `unwind::Unwinder::check_every_capture`.)
//!
//! The outermost API call is the launch; calls nested in it only lend it their ids. Asynchronous calls
//! are recorded when they return: only then is known whether they failed, and the unwinding is hidden
//! behind the GPU's work. Synchronous ones are recorded when they begin, as their work is over by the
//! time they return, and its record may be too.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::control::window::{self, State};
use crate::cupti::{ApiCall, BesideEvent, Buffer, Call, CallKind, Filled, GraphEvent, Tracer};
use crate::record::{ContextId, CorrelationId, Frame, LabelId, Launch, Loss, Nanos};
use crate::unwind::{Captured, Skip, Verifier};

use super::beside;
use super::buffers;
use super::clock::now;
use super::events::{self, Event};
use super::graphs;
use super::intern::Interned;
use super::records::{as_words, context_words, launch_words};
use super::tally::Tally;
use super::thread::{Entered, Own, Thread};

/// The tracer that records.
#[derive(Debug)]
pub struct Capture;

/// What the slot that both ends of a call share says: this call is the launch.
const OUTERMOST: u64 = 1;
/// This call is part of the launch around it.
pub(super) const NESTED: u64 = 2;
/// This call makes or copies graphs, and is the outermost to do so.
pub(super) const GRAPH_CALL: u64 = 3;

/// Most ids of their own that the calls nested in one launch can have and be remembered. What carries one
/// that is not remembered shows as an activity without a launch.
const MOST_ALIASES: usize = 16;

/// One call in this many is timed: a prime, so that a loop of few calls has all of them timed in turn.
const TIMED: u64 = 61;

/// The outermost call that a thread is in. It is filled in place: moving it would take longer than the rest of
/// the bookkeeping.
pub(super) struct Pending {
    is_under_way: bool,
    launch: Launch,
    /// Where the stack stood: a later call that stands no deeper is not nested in this one.
    depth: usize,
    api: ApiCall,
    recorded: bool,
    aliases: [CorrelationId; MOST_ALIASES],
    alias_count: usize,
    /// Nanoseconds that its beginning took us; `None` = this call is not timed.
    spent: Option<u64>,
}

impl Pending {
    /// No call.
    pub(super) const NONE: Self = Self {
        is_under_way: false,
        launch: Launch {
            time: Nanos(0),
            duration: 0,
            correlation: CorrelationId(0),
            within: CorrelationId(0),
            context: ContextId::NONE,
        },
        depth: 0,
        api: ApiCall(0),
        recorded: false,
        aliases: [CorrelationId(0); MOST_ALIASES],
        alias_count: 0,
        spent: None,
    };
}

/// One stack in so many is taken again by other ways; 0 = none.
static VERIFIED: AtomicU32 = AtomicU32::new(0);

/// Has every `n`th stack of threads that have not launched yet taken again by other ways and compared (see
/// [`Verifier`]); 0 = none, which is the default.
pub fn verify_every(n: u32) {
    VERIFIED.store(n, Ordering::Relaxed);
}

/// A thread's share in [`verify_every`].
pub(super) struct Verifying {
    verifier: Verifier,
    every: u32,
    left: u32,
}

impl Verifying {
    /// `None` unless it is asked for.
    pub(super) fn new() -> Option<Self> {
        let every = VERIFIED.load(Ordering::Relaxed);
        if every == 0 { None } else { Some(Self { verifier: Verifier::new()?, every, left: every }) }
    }

    fn look_at(&mut self, captured: &Captured<'_>, ours: usize, tally: &Tally) {
        self.left -= 1;
        if self.left == 0 {
            self.left = self.every;
            let verdict = self.verifier.verify(captured, ours as u64);
            tally.verified.stacks.add(1);
            tally.verified.unlike_plain.add(u64::from(!verdict.plain_agrees));
            tally.verified.unlike_libgcc.add(u64::from(!verdict.libgcc_agrees));
        }
    }
}

static NEXT_CONTEXT: AtomicU32 = AtomicU32::new(ContextId::FIRST.0);

impl Tracer for Capture {
    const GRAPHS: bool = true;

    #[inline]
    fn enter(call: &Call<'_>) {
        let state = window::state();
        if state == State::Dead {
            return;
        }
        if call.kind.ends_context() {
            return events::announce(Event::ContextEnds);
        }
        let Some(mut entered) = Entered::new() else { return };
        let (own, thread) = entered.parts();
        let depth = stack_depth();
        if own.pending.is_under_way && depth < own.pending.depth {
            call.slot.set(NESTED);
            meet_nested(own, thread, call.correlation);
        } else {
            // A pending call that this one is not nested in never returned: its thread jumped out of it.
            call.slot.set(OUTERMOST);
            begin(own, thread, call, state, depth);
        }
    }

    #[inline]
    fn exit(call: &Call<'_>) {
        if call.slot.get() != OUTERMOST || window::state() == State::Dead {
            return;
        }
        let Some(mut entered) = Entered::new() else { return };
        let (own, thread) = entered.parts();
        let was_under_way = std::mem::replace(&mut own.pending.is_under_way, false);
        if was_under_way && own.pending.launch.correlation == call.correlation {
            end(own, thread, call);
        }
    }

    fn request_buffer() -> Option<Buffer> {
        if window::state() == State::Dead { None } else { buffers::request() }
    }

    fn buffer_completed(filled: Filled) {
        // Nobody reads any more: the buffer goes.
        if window::state() == State::Dead {
            return;
        }
        if buffers::completed(filled) {
            events::announce(Event::BuffersWait);
        }
    }

    fn records_discarded(count: u64) {
        buffers::discard(count);
    }

    fn context_created() {
        events::announce(Event::ContextCreated);
    }

    fn graph(event: GraphEvent<'_>) {
        graphs::note(&event);
    }

    fn beside(event: BesideEvent<'_>) {
        beside::note(&event);
    }

    fn fatal(reason: &str) {
        events::announce(Event::Fatal(reason));
    }

    fn panicked() {
        window::kill();
        events::announce(Event::Panicked);
    }
}

/// The launch begins: note when; if it is synchronous, record it now.
fn begin(own: &mut Own, thread: &Thread, call: &Call<'_>, state: State, depth: usize) {
    let time = now();
    own.calls += 1;
    let mut launch = Launch {
        time,
        duration: 0,
        correlation: call.correlation,
        within: call.correlation,
        context: if state == State::Open { ContextId::NONE } else { ContextId::OUTSIDE },
    };
    let recorded = is_synchronous(call.kind);
    if recorded {
        record(own, thread, call, &mut launch);
    }
    let spent = own.calls.is_multiple_of(TIMED).then(|| now().since(time));
    // The aliases are whatever they were: there are none of this call.
    let pending = &mut own.pending;
    (pending.launch, pending.depth, pending.api, pending.recorded) = (launch, depth, call.api, recorded);
    (pending.alias_count, pending.spent, pending.is_under_way) = (0, spent, true);
}

/// A call inside the launch: if it has an id of its own, the launch is known by that one too.
fn meet_nested(own: &mut Own, thread: &Thread, correlation: CorrelationId) {
    let outer = &mut own.pending;
    if outer.launch.correlation == correlation {
        return;
    }
    if outer.recorded {
        let alias = Launch { correlation, ..outer.launch };
        push(own, thread, &alias);
    } else if outer.alias_count < MOST_ALIASES {
        outer.aliases[outer.alias_count] = correlation;
        outer.alias_count += 1;
    }
}

/// The launch returned: record it, unless it failed or was recorded when it began.
fn end(own: &mut Own, thread: &Thread, call: &Call<'_>) {
    let time = now();
    if own.pending.recorded {
        // If it failed it stays without an activity, and is counted as such.
        if is_synchronous(call.kind) {
            let Launch { correlation, context, time: begun, .. } = own.pending.launch;
            beside::waited(thread, correlation, context, begun, time);
        }
    } else if call.return_value != 0 {
        thread.tally.lose(Loss::LaunchesFailed);
    } else {
        let mut launch = own.pending.launch;
        launch.duration = u32::try_from(time.since(launch.time)).unwrap_or(u32::MAX).max(1);
        record(own, thread, call, &mut launch);
        for at in 0..own.pending.alias_count {
            let alias = Launch { correlation: own.pending.aliases[at], ..launch };
            push(own, thread, &alias);
        }
    }
    thread.tally.calls.add(1);
    if let Some(spent) = own.pending.spent {
        let is_graph = call.kind == CallKind::GraphLaunch;
        let times = if is_graph { &thread.tally.graph_times } else { &thread.tally.times };
        times.add(spent + now().since(time));
    }
}

/// Takes the stack, if a window is open, and writes the record.
fn record(own: &mut Own, thread: &Thread, call: &Call<'_>, launch: &mut Launch) {
    if launch.context != ContextId::OUTSIDE {
        launch.context = capture(own, thread, leaf_of(call), std::ptr::from_ref(call).addr());
    }
    push(own, thread, launch);
}

/// A graph node was made. If that is what became of a launch, it has no activity of its own, and so no record:
/// the API call is the node's.
pub(super) fn capture_launch(own: &mut Own, thread: &Thread) -> Option<ApiCall> {
    let pending = &mut own.pending;
    if !pending.is_under_way || stack_depth() >= pending.depth {
        return None;
    }
    if !std::mem::replace(&mut pending.recorded, true) {
        thread.tally.lose(Loss::LaunchesCaptured);
    }
    Some(pending.api)
}

/// Whether a call at this depth of the stack is part of a launch.
pub(super) fn is_inside_launch(own: &Own, depth: usize) -> bool {
    own.pending.is_under_way && depth < own.pending.depth
}

/// The frame for the API call itself.
fn leaf_of(call: &Call<'_>) -> Frame {
    Frame::label(LabelId(u32::from(call.api.0)))
}

/// The context of the stack above the frame that `ours` lies in, under `leaf`. The description of a call lies in
/// the frame of the function that the tracing library called: that one and those inside it are left out.
pub(super) fn capture(own: &mut Own, thread: &Thread, leaf: Frame, ours: usize) -> ContextId {
    let captured = own.unwinder.capture(Skip::Below(ours as u64));
    if let Some(verifying) = &mut own.verifying {
        verifying.look_at(&captured, ours, &thread.tally);
    }
    let ranges = own.ranges.hash(thread);
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

/// What a launch costs without the guards and clocks of a callback: takes the stack of the caller's caller,
/// interns it and writes a record. For benchmarks.
#[doc(hidden)]
#[inline(never)]
pub fn record_stack(call: &Call<'_>) {
    let Some(mut entered) = Entered::new() else { return };
    let (own, thread) = entered.parts();
    let context = capture(own, thread, leaf_of(call), std::ptr::from_ref(call).addr());
    let (correlation, time) = (call.correlation, Nanos(0));
    push(own, thread, &Launch { time, duration: 0, correlation, within: correlation, context });
}

#[inline]
fn push(own: &mut Own, thread: &Thread, launch: &Launch) {
    let pushed = own.launches.push(&thread.launches, [&launch_words(launch)]);
    // A second id that is lost is no launch lost.
    if !pushed && !launch.is_alias() {
        thread.tally.lose(Loss::LaunchesDropped);
    }
}

/// Whether the call returns only when its work is done, so that the stack is taken before.
fn is_synchronous(kind: CallKind) -> bool {
    matches!(kind, CallKind::Copy { sync: true } | CallKind::Set { sync: true })
}

/// About where the stack pointer is; smaller = deeper.
#[inline]
pub(super) fn stack_depth() -> usize {
    let here = 0u8;
    std::ptr::from_ref(std::hint::black_box(&here)).addr()
}
