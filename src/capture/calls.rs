//! State of the API calls that a thread is in. Only the outermost call of each sort is recorded: calls nested in it
//! are part of it.
//!
//! A call may never return, if its thread jumps out of it. So each call remembers the stack depth at its entry. A
//! later call at the same or a shallower depth is not nested in it: it comes after the earlier call, unless a signal
//! handler makes it on an alternate stack, which may be at any address.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::control::window;
use crate::host::signals;
use crate::record::{ContextId, CorrelationId, GraphId, Launch, Loss, Nanos};
use crate::tracer::ApiCall;

use super::counts::Counts;

/// Value of the word that a call's entry and exit share: this call is the launch.
pub(super) const OUTERMOST: u64 = 1;
/// This call is part of the launch around it.
pub(super) const NESTED: u64 = 2;
/// This call creates or copies graphs, and is the outermost call that does.
pub(super) const GRAPH_CALL: u64 = 3;
/// This call creates no GPU work but is recorded, and is the outermost call of its sort.
pub(super) const BESIDE: u64 = 4;
/// This call is the launch. A signal handler made it during another launch, which was set aside.
pub(super) const OUTERMOST_MEANWHILE: u64 = 5;
/// A signal handler made this call while the thread was inside gpuflame, and it is the outermost call of the handler.
pub(super) const REFUSED: u64 = 6;

/// Maximum number of nested calls with ids of their own that are remembered per launch. Work under an id that is not
/// remembered appears as an activity without a launch.
pub(super) const MOST_ALIASES: usize = 16;

/// The launch that a thread is in, identified by its outermost call. It is filled in place: moving it would take
/// longer than the rest of the bookkeeping.
pub(super) struct Pending {
    pub(super) is_under_way: bool,
    pub(super) launch: Launch,
    /// Stack depth at entry: a later call at the same or a shallower depth is not nested in this one.
    pub(super) depth: usize,
    pub(super) api: ApiCall,
    pub(super) recorded: bool,
    /// State of the window when the call began: whether it was open, and how often one had been opened.
    pub(super) window: window::State,
    pub(super) aliases: [CorrelationId; MOST_ALIASES],
    pub(super) alias_count: usize,
    /// Time in ns that gpuflame spent at its entry; `None` if this call is not timed.
    pub(super) spent: Option<u64>,
}

impl Pending {
    /// Value while no call is in flight.
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

    /// Whether a call at this stack depth is part of the launch.
    #[inline]
    pub(super) fn is_around(&self, depth: usize) -> bool {
        self.is_under_way && depth < self.depth
    }

    /// Returns the slot value of a call at this depth that is not nested in this launch although it is in flight.
    /// Moves this launch to `aside` if it will continue after that call.
    #[cold]
    pub(super) fn make_way(&mut self, aside: &mut Option<Self>, depth: usize) -> u64 {
        if signals::jumped_out_of(self.depth, depth) {
            return OUTERMOST;
        }
        *aside = Some(std::mem::replace(self, Self::NONE));
        OUTERMOST_MEANWHILE
    }

    /// Handles the creation of a graph node. If the launch was captured into that node, it has no activity of its own
    /// and so no record; the API call is returned for the node.
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

/// Whether a thread is in a launch, readable by other threads. A launch that its thread jumped out of counts as in
/// flight until the next one.
pub(super) struct UnderWay(AtomicU32);

impl UnderWay {
    /// Flag that no window state uses: the count of openings stays below it.
    const YES: u32 = 1 << 31;

    pub(super) const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// A launch begins while the window is in this state.
    #[inline]
    pub(super) fn begin(&self, window: window::State) {
        self.0.store(window.word() | Self::YES, Ordering::Relaxed);
    }

    /// The launch has ended, and its records are in the log.
    #[inline]
    pub(super) fn end(&self) {
        self.0.store(0, Ordering::Release);
    }

    /// Returns the window state at the start of the launch in flight, if there is one.
    pub(super) fn get(&self) -> Option<window::State> {
        let word = self.0.load(Ordering::Acquire);
        (word & Self::YES != 0).then(|| window::State::of(word & !Self::YES))
    }
}

/// The outermost call in flight on a thread that creates nodes or copies a graph.
pub(super) struct GraphCall {
    pub(super) api: ApiCall,
    /// Whether nodes that are reported as created are copies, which are reported again as cloned.
    pub(super) copies: bool,
    /// Graph to which its nodes belong.
    pub(super) into: Option<GraphId>,
    /// Stack depth at entry, as in a pending launch.
    pub(super) depth: usize,
}

/// The outermost call that creates no GPU work but is recorded.
pub(super) struct HostCallBegun {
    pub(super) time: Nanos,
    /// Correlation id of its records: that of the driver call nested in it, if that has one of its own.
    pub(super) correlation: CorrelationId,
    /// Stack depth at entry, as in a pending launch.
    pub(super) depth: usize,
}

/// Returns about where the stack pointer is; smaller = deeper.
#[inline]
pub(super) fn stack_depth() -> usize {
    let here = 0u8;
    std::ptr::from_ref(std::hint::black_box(&here)).addr()
}
