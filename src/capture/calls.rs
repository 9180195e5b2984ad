//! The calls that a thread is in. Only the outermost of each sort is looked at: what is nested in it is part of it.
//!
//! A call may never return, where its thread jumps out of it. So each remembers where the stack stood, and a later one
//! that stands no deeper is not nested in it: it comes after it, unless a signal handler makes it on a stack of its
//! own, which may lie anywhere.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::control::window;
use crate::host::signals;
use crate::record::{ContextId, CorrelationId, GraphId, Launch, Loss, Nanos};
use crate::tracer::ApiCall;

use super::counts::Counts;

/// What the slot that both ends of a call share says: this call is the launch.
pub(super) const OUTERMOST: u64 = 1;
/// This call is part of the launch around it.
pub(super) const NESTED: u64 = 2;
/// This call makes or copies graphs, and is the outermost to do so.
pub(super) const GRAPH_CALL: u64 = 3;
/// This call makes no GPU work, is noted all the same, and is the outermost of its sort.
pub(super) const BESIDE: u64 = 4;
/// This call is the launch, made by a signal handler that came in the middle of another, which was set aside.
pub(super) const OUTERMOST_MEANWHILE: u64 = 5;
/// This call was made by a signal handler that came in the middle of our own work, and is the outermost it made.
pub(super) const REFUSED: u64 = 6;

/// Most ids of their own that the calls nested in one launch can have and be remembered. What carries one
/// that is not remembered shows as an activity without a launch.
pub(super) const MOST_ALIASES: usize = 16;

/// The launch that a thread is in, by its outermost call. It is filled in place: moving it would take longer than the rest of
/// the bookkeeping.
pub(super) struct Pending {
    pub(super) is_under_way: bool,
    pub(super) launch: Launch,
    /// Where the stack stood: a later call that stands no deeper is not nested in this one.
    pub(super) depth: usize,
    pub(super) api: ApiCall,
    pub(super) recorded: bool,
    /// Whether a window was open when it began, and how often one had been opened.
    pub(super) window: window::State,
    pub(super) aliases: [CorrelationId; MOST_ALIASES],
    pub(super) alias_count: usize,
    /// Nanoseconds that its beginning took us; `None` = this call is not timed.
    pub(super) spent: Option<u64>,
}

impl Pending {
    /// The value where no call is under way.
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
        window: window::State::NONE,
        aliases: [CorrelationId(0); MOST_ALIASES],
        alias_count: 0,
        spent: None,
    };

    /// Whether a call at this depth of the stack is part of the launch.
    #[inline]
    pub(super) fn is_around(&self, depth: usize) -> bool {
        self.is_under_way && depth < self.depth
    }

    /// What a call's slot shall say that stands no deeper than this one, which is under way. The other goes to
    /// `aside` if it will go on.
    #[cold]
    pub(super) fn make_way(&mut self, aside: &mut Option<Self>, depth: usize) -> u64 {
        if signals::jumped_out_of(self.depth, depth) {
            return OUTERMOST;
        }
        *aside = Some(std::mem::replace(self, Self::NONE));
        OUTERMOST_MEANWHILE
    }

    /// A graph node was made. If that is what became of the launch, it has no activity of its own, and so no
    /// record: the API call is the node's.
    pub(super) fn becomes_node(&mut self, tally: &Counts) -> Option<ApiCall> {
        if !self.is_around(stack_depth()) {
            return None;
        }
        if !std::mem::replace(&mut self.recorded, true) {
            tally.lose(Loss::LaunchesCaptured);
        }
        Some(self.api)
    }
}

/// Whether a thread is in a launch, where others can see it; a launch that its thread jumped out of stays until the next.
pub(super) struct UnderWay(AtomicU32);

impl UnderWay {
    /// No word of a window has it: one is opened less often.
    const YES: u32 = 1 << 31;

    pub(super) const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// A launch begins that met the window so.
    #[inline]
    pub(super) fn begin(&self, window: window::State) {
        self.0.store(window.word() | Self::YES, Ordering::Relaxed);
    }

    /// It is over, and what is to be recorded of it is in the log.
    #[inline]
    pub(super) fn end(&self) {
        self.0.store(0, Ordering::Release);
    }

    /// How the launch met the window that is under way, if one is.
    pub(super) fn get(&self) -> Option<window::State> {
        let word = self.0.load(Ordering::Acquire);
        (word & Self::YES != 0).then(|| window::State::of(word & !Self::YES))
    }
}

/// The outermost call under way on a thread that makes nodes or copies a graph.
pub(super) struct GraphCall {
    pub(super) api: ApiCall,
    /// Nodes that are announced as made are copies, which are announced once more as such.
    pub(super) copies: bool,
    /// What the nodes that it makes go with.
    pub(super) into: Option<GraphId>,
    /// Where the stack stood, as in a pending launch.
    pub(super) depth: usize,
}

/// The outermost call that makes no GPU work and is noted all the same.
pub(super) struct HostCallBegun {
    pub(super) time: Nanos,
    /// The id that its records will carry: that of the driver's call in it, if that has one of its own.
    pub(super) correlation: CorrelationId,
    /// Where the stack stood, as in a pending launch.
    pub(super) depth: usize,
}

/// About where the stack pointer is; smaller = deeper.
#[inline]
pub(super) fn stack_depth() -> usize {
    let here = 0u8;
    std::ptr::from_ref(std::hint::black_box(&here)).addr()
}
