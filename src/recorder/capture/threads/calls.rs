//! State of the API calls that are in flight on a thread. Calls are of three kinds: launches, graph calls and other
//! recorded calls. If calls of the same kind are nested, only the outermost call is recorded, and the inner calls count
//! as part of the outermost call.
//!
//! If a thread jumps out of a call (for example, with longjmp), the call never returns. To detect such a jump, gpuflame
//! stores the stack depth at the entry of each call. A later call at the same or a smaller stack depth is not nested in
//! the earlier call, so the thread must have left the earlier call. This does not apply to a call from a signal handler
//! on an alternate stack, because an alternate stack may be at any address.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::control::window;
use gpuflame_cupti::tracer::ApiCallId;
use gpuflame_model::record::{ContextId, CorrelationId, GraphId, Launch, Loss, Nanos};
use gpuflame_os::host_signals;

use super::thread_counters::ThreadCounters;

/// Slot value of an outermost launch. (The slot is a word that the entry and the exit of a call share.)
pub(crate) const OUTERMOST: u64 = 1;
/// Slot value of a call that is ignored, or that is part of an enclosing launch.
pub(crate) const NESTED: u64 = 2;
/// Slot value of an outermost call that creates or copies graphs.
pub(crate) const GRAPH_CALL: u64 = 3;
/// Slot value of an outermost host call. (A host call creates no GPU work, but is recorded.)
pub(crate) const HOST_CALL: u64 = 4;
/// Slot value of a launch by a signal handler that has interrupted another launch. The interrupted launch is stored in
/// `aside`.
pub(crate) const INTERRUPTING_LAUNCH: u64 = 5;
/// Slot value of a refused call, which is a call that cannot be recorded. A refused call is made by a signal handler
/// that has interrupted the thread inside gpuflame, or by a thread without a state. If refused calls are nested, only
/// the outermost call has this slot value.
pub(crate) const REFUSED: u64 = 6;

/// Maximum number of correlation ids of nested calls that are stored per launch. GPU work whose correlation id was not
/// stored appears as an activity without a launch.
pub(crate) const MAX_ALIASES: usize = 16;

/// The launch (outermost call) that is in flight on a thread. The struct is filled in place, because moving it would
/// take longer than all other bookkeeping.
pub(crate) struct PendingLaunch {
    pub(crate) is_in_flight: bool,
    pub(crate) launch: Launch,
    /// Stack depth of the thread when the launch began. A later call at the same or a smaller stack depth is not nested
    /// in this launch.
    pub(crate) depth: usize,
    pub(crate) api: ApiCallId,
    pub(crate) recorded: bool,
    /// State of the window when the launch began. The state says whether a window was open, and how many windows had
    /// been opened until then.
    pub(crate) window: window::WindowState,
    pub(crate) aliases: [CorrelationId; MAX_ALIASES],
    pub(crate) alias_count: usize,
    /// Time in ns that gpuflame has spent at the beginning of this launch; `None` if this launch is not timed.
    pub(crate) spent: Option<u64>,
}

impl PendingLaunch {
    /// Value of the struct if no launch is in flight.
    pub(crate) const NONE: Self = Self {
        is_in_flight: false,
        launch: Launch {
            time: Nanos(0),
            duration: 0,
            correlation: CorrelationId(0),
            within: CorrelationId(0),
            context: ContextId::NONE,
        },
        depth: 0,
        api: ApiCallId(0),
        recorded: false,
        window: window::WindowState::NONE,
        aliases: [CorrelationId(0); MAX_ALIASES],
        alias_count: 0,
        spent: None,
    };

    /// Whether a call at this stack depth is nested in the launch.
    #[inline]
    pub(crate) fn encloses(&self, depth: usize) -> bool {
        self.is_in_flight && depth < self.depth
    }

    /// Returns the slot value for a new call that is not nested in this launch, although this launch has not returned
    /// yet. If a signal handler makes the new call, this launch will continue after the handler. Therefore this launch
    /// is moved to `aside`.
    #[cold]
    pub(crate) fn slot_after_pending(&mut self, aside: &mut Option<Self>, depth: usize) -> u64 {
        if host_signals::has_jumped_out(self.depth, depth) {
            return OUTERMOST;
        }
        *aside = Some(std::mem::replace(self, Self::NONE));
        INTERRUPTING_LAUNCH
    }

    /// Handles the creation of a graph node inside this launch. The launch is captured into the graph node. Because the
    /// launch only creates a node, it has no activity and gets no record. Returns the API call of the launch, which is
    /// recorded with the node. Returns `None` if the node was not created inside this launch.
    pub(crate) fn mark_captured(&mut self, counters: &ThreadCounters) -> Option<ApiCallId> {
        if !self.encloses(stack_depth()) {
            return None;
        }
        if !std::mem::replace(&mut self.recorded, true) {
            counters.lose(Loss::LaunchesCaptured);
        }
        Some(self.api)
    }
}

/// Whether a launch is in flight on a thread. Threads other than the launching thread can read this state. If the
/// thread has jumped out of a launch, the launch counts as in flight until the thread's next launch.
pub(crate) struct InFlightLaunch(AtomicU32);

impl InFlightLaunch {
    /// Bit that marks a launch in flight. No window state uses this bit, because the number of opened windows never
    /// becomes so large.
    const IN_FLIGHT: u32 = 1 << 31;

    pub(super) const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Notes that a launch has begun. `window` is the current state of the window.
    #[inline]
    pub(crate) fn begin(&self, window: window::WindowState) {
        self.0.store(window.word() | Self::IN_FLIGHT, Ordering::Relaxed);
    }

    /// Notes that the launch has ended and that its records are in the log.
    #[inline]
    pub(crate) fn end(&self) {
        self.0.store(0, Ordering::Release);
    }

    /// Returns the state that the window had when the launch in flight began. Returns `None` if no launch is in flight.
    pub(super) fn get(&self) -> Option<window::WindowState> {
        let word = self.0.load(Ordering::Acquire);
        (word & Self::IN_FLIGHT != 0).then(|| window::WindowState::from_word(word & !Self::IN_FLIGHT))
    }
}

/// The outermost call in flight on a thread that creates graph nodes or copies a graph.
pub(crate) struct PendingGraphCall {
    pub(crate) api: ApiCallId,
    /// Whether the call copies a graph. CUPTI reports each copied node twice: first as created and then as cloned. For
    /// a call that copies a graph, gpuflame ignores the first report, which says that a node was created.
    pub(crate) copies: bool,
    /// Graph to which the created nodes belong; `None` if the call does not name a graph.
    pub(crate) into: Option<GraphId>,
    /// Stack depth of the thread when the call began.
    pub(crate) depth: usize,
}

/// Graphs that the thread's current call has created as copies, sorted by graph id. The first graph in the list is the
/// copy that the program requested. The next executable graph that CUPTI reports is made from this first graph. All
/// graphs in the list after the first are copies of child graphs.
#[derive(Default)]
pub(crate) struct CopiedGraphs(Vec<CopiedGraph>);

/// A copied graph, and the nodes that were copied to it so far.
struct CopiedGraph {
    graph: GraphId,
    first: u64,
    last: u64,
    count: u64,
}

impl CopiedGraphs {
    /// Drops all graphs and frees their memory.
    pub(crate) fn clear(&mut self) {
        self.0 = Vec::new();
    }

    /// Drops all graphs except `graph`.
    pub(crate) fn keep_only(&mut self, graph: GraphId) {
        self.0.retain(|copied| copied.graph == graph);
    }

    /// Notes a node that was copied to `graph`.
    pub(crate) fn add(&mut self, graph: GraphId, node: u64) {
        match self.0.binary_search_by_key(&graph, |copied| copied.graph) {
            Ok(at) => {
                let copied = &mut self.0[at];
                copied.last = copied.last.max(node);
                copied.count += 1;
            }
            Err(at) => self.0.insert(at, CopiedGraph { graph, first: node, last: node, count: 1 }),
        }
    }

    /// Removes all graphs, and returns the copy that the program requested.
    pub(crate) fn take_first(&mut self) -> Option<GraphId> {
        let first = self.0.first().map(|copied| copied.graph);
        self.clear();
        first
    }

    /// Handles the destruction of a copied child graph while the call is in flight. At this time, the driver has moved
    /// the nodes of the child graph into the copy that the program requested. Returns the id of this copy, and for each
    /// moved node its new id and its former id.
    ///
    /// CUPTI does not report the new ids, so they are computed by a rule that was observed with driver version 580. By
    /// this rule, the upper half of a node's id is the id of its graph. By the same rule, the lower half of a node's id
    /// is the number of nodes that were added to the graph before this node. Returns `None` if the nodes' known ids do
    /// not follow this rule.
    pub(crate) fn inline(
        &mut self,
        child: GraphId,
    ) -> Option<(GraphId, impl Iterator<Item = (u64, u64)> + use<>)> {
        let at = self.0.binary_search_by_key(&child, |copied| copied.graph).ok().filter(|&at| at > 0)?;
        let child = self.0.remove(at);
        let into = self.0.first_mut()?;
        let has_form = |copied: &CopiedGraph| {
            [copied.first, copied.last].iter().all(|node| node >> 32 == u64::from(copied.graph.0))
        };
        if !has_form(into) || !has_form(&child) || child.last - child.first + 1 != child.count {
            return None;
        }
        let next = into.last + 1;
        into.last += child.count;
        Some((into.graph, (next..).zip(child.first..=child.last)))
    }
}

/// The outermost host call in flight on a thread. (A host call creates no GPU work, but is recorded.)
pub(crate) struct PendingHostCall {
    pub(crate) time: Nanos,
    /// Correlation id under which the call is recorded. If driver calls are nested in this call, this is the id of the
    /// last nested driver call; otherwise it is the call's own id.
    pub(crate) correlation: CorrelationId,
    /// Stack depth of the thread when the call began.
    pub(crate) depth: usize,
}

/// Returns an address near the stack pointer, as a measure of the stack depth. The deeper the stack, the smaller the
/// address.
#[inline]
pub(crate) fn stack_depth() -> usize {
    let here = 0u8;
    std::ptr::from_ref(std::hint::black_box(&here)).addr()
}
