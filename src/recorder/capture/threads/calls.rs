//! State of the API calls that a thread is in. If calls of one kind (launches, graph calls, other recorded calls) are
//! nested, only the outermost call is recorded, and the inner calls count as parts of it.
//!
//! A call never returns if its thread jumps out of it. To notice such a jump, each call stores the stack depth at its
//! entry. A later call at the same or a shallower depth is not nested in the earlier call, so the earlier call must
//! have ended. The exception is a later call from a signal handler that runs on an alternate stack, because that stack
//! may be at any address.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::control::window;
use gpuflame_cupti::tracer::ApiCallId;
use gpuflame_model::record::{ContextId, CorrelationId, GraphId, Launch, Loss, Nanos};
use gpuflame_os::host_signals;

use super::thread_counters::ThreadCounters;

/// Value of the slot (a word that the entry and the exit of a call share): this call is the launch.
pub(crate) const OUTERMOST: u64 = 1;
/// Value of the slot: this call is part of the launch that encloses it.
pub(crate) const NESTED: u64 = 2;
/// Value of the slot: this call is the outermost call that creates or copies graphs.
pub(crate) const GRAPH_CALL: u64 = 3;
/// Value of the slot: this call is the outermost of nested calls that create no GPU work but are recorded.
pub(crate) const HOST_CALL: u64 = 4;
/// Value of the slot: this call is a launch from a signal handler that interrupted another launch. The interrupted
/// launch was set aside.
pub(crate) const INTERRUPTING_LAUNCH: u64 = 5;
/// Value of the slot: this call is refused, because it is the outermost call of a signal handler that interrupted the
/// thread inside gpuflame, or of a thread without a state.
pub(crate) const REFUSED: u64 = 6;

/// Maximum number of correlation ids of nested calls that are stored per launch. Work under an id that is not stored
/// appears as an activity without a launch.
pub(crate) const MAX_ALIASES: usize = 16;

/// The launch that a thread is in, which is the outermost call. The struct is filled in place, because moving it would
/// take longer than the rest of the bookkeeping.
pub(crate) struct PendingLaunch {
    pub(crate) is_in_flight: bool,
    pub(crate) launch: Launch,
    /// Stack depth at the entry of the call. A later call at the same or a shallower depth is not nested in this call.
    pub(crate) depth: usize,
    pub(crate) api: ApiCallId,
    pub(crate) recorded: bool,
    /// State of the window when the call began: whether a window was open, and how many windows had been opened by
    /// then.
    pub(crate) window: window::WindowState,
    pub(crate) aliases: [CorrelationId; MAX_ALIASES],
    pub(crate) alias_count: usize,
    /// Time in ns that gpuflame spent at the entry of this call; `None` if this call is not timed.
    pub(crate) spent: Option<u64>,
}

impl PendingLaunch {
    /// Value of the struct while no launch is in flight.
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

    /// Whether a call at this stack depth is part of the launch.
    #[inline]
    pub(crate) fn encloses(&self, depth: usize) -> bool {
        self.is_in_flight && depth < self.depth
    }

    /// Returns the slot value for a new call that is not nested in this launch, although this launch has not returned.
    /// If the new call comes from a signal handler, this launch continues afterwards, so it is moved to `aside`.
    #[cold]
    pub(crate) fn slot_after_pending(&mut self, aside: &mut Option<Self>, depth: usize) -> u64 {
        if host_signals::has_jumped_out(self.depth, depth) {
            return OUTERMOST;
        }
        *aside = Some(std::mem::replace(self, Self::NONE));
        INTERRUPTING_LAUNCH
    }

    /// Handles the creation of a graph node. If this launch is being captured into the node, the launch has no activity
    /// of its own and gets no record. In this case, returns the launch's API call, which is then recorded with the
    /// node.
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

/// Whether a thread is in a launch; other threads can read it. A launch that its thread has jumped out of counts as in
/// flight until the thread's next launch.
pub(crate) struct InFlightLaunch(AtomicU32);

impl InFlightLaunch {
    /// Flag for a launch in flight. No window state uses this bit, because the number of opened windows stays below it.
    const IN_FLIGHT: u32 = 1 << 31;

    pub(super) const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Notes that a launch begins while the window is in this state.
    #[inline]
    pub(crate) fn begin(&self, window: window::WindowState) {
        self.0.store(window.word() | Self::IN_FLIGHT, Ordering::Relaxed);
    }

    /// Notes that the launch has ended and that its records are in the log.
    #[inline]
    pub(crate) fn end(&self) {
        self.0.store(0, Ordering::Release);
    }

    /// Returns the window state at the start of the launch in flight; `None` if no launch is in flight.
    pub(super) fn get(&self) -> Option<window::WindowState> {
        let word = self.0.load(Ordering::Acquire);
        (word & Self::IN_FLIGHT != 0).then(|| window::WindowState::from_word(word & !Self::IN_FLIGHT))
    }
}

/// The outermost call in flight on a thread that creates graph nodes or copies a graph.
pub(crate) struct PendingGraphCall {
    pub(crate) api: ApiCallId,
    /// Whether the call copies a graph. CUPTI reports each copied node twice, as created and as cloned. The first of
    /// these reports is ignored.
    pub(crate) copies: bool,
    /// Graph to which the created nodes belong; `None` if the call does not name a graph.
    pub(crate) into: Option<GraphId>,
    /// Stack depth at the entry of the call, as in a pending launch.
    pub(crate) depth: usize,
}

/// Graphs that the thread's current call has created as copies, in ascending order of their ids. The first graph is the
/// copy that the program asked for, and the source of the next executable graph that CUPTI announces. The other graphs
/// are copies of child graphs.
#[derive(Default)]
pub(crate) struct CopiedGraphs(Vec<CopiedGraph>);

/// A copied graph and its nodes so far.
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

    /// Drops all graphs except one.
    pub(crate) fn keep_only(&mut self, graph: GraphId) {
        self.0.retain(|copied| copied.graph == graph);
    }

    /// Notes a copied node of a graph.
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

    /// Removes all graphs and returns the one that the program asked for.
    pub(crate) fn take_first(&mut self) -> Option<GraphId> {
        let first = self.0.first().map(|copied| copied.graph);
        self.clear();
        first
    }

    /// Handles the end of a child graph during the call: the driver has moved the child's nodes into the copy that the
    /// program asked for. Returns the id of this copy, and the new and the former id of each moved node.
    ///
    /// CUPTI does not report the new ids, so they are computed by a rule that was measured with driver 580. By this
    /// rule, the upper half of a node's id is the id of its graph, and the lower half is the number of nodes that were
    /// added to the graph before. Returns `None` if the known ids do not follow this rule.
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

/// The outermost call in flight on a thread that creates no GPU work but is recorded.
pub(crate) struct PendingHostCall {
    pub(crate) time: Nanos,
    /// Correlation id under which the call is recorded: the id of the last driver call nested in this call or, if there
    /// is none, the id of the call itself.
    pub(crate) correlation: CorrelationId,
    /// Stack depth at the entry of the call, as in a pending launch.
    pub(crate) depth: usize,
}

/// Returns an address near the stack pointer. The deeper the stack, the smaller the address.
#[inline]
pub(crate) fn stack_depth() -> usize {
    let here = 0u8;
    std::ptr::from_ref(std::hint::black_box(&here)).addr()
}
