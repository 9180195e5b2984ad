//! Records which API call has created which node of a CUDA graph. Callbacks on the application's threads write graph
//! events to a log, and the collector turns the log into rows.
//!
//! Graphs are created rarely but launched often, so the code in this module runs only when a graph is created or
//! changed, and never during a launch. To find the nodes that a launch has executed, the collector uses the node ids in
//! the activity records. Nodes are recorded even if no window is open, because a graph that is created outside windows
//! may be launched inside a window.
//!
//! All threads write to one log under a lock, so the records in the log have the order of the events. The order of the
//! events matters because one thread may copy a graph that another thread has created. The record of a copied node can
//! be interpreted only after the record of the original node.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};

use crate::control::lifecycle;
use gpuflame_cupti::tracer::{Call, CallKind, ClonedNode, GraphEvent};
use gpuflame_model::record::{
    ContextId, CorrelationId, Frame, GraphEdge, GraphId, GraphNodeId, LabelId, Loss, Row,
};

use crate::capture::logs::common_log::CommonLog;
use crate::capture::stack::capture;
use crate::capture::threads::calls::{GRAPH_CALL, PendingGraphCall, stack_depth};
use crate::capture::threads::drain::drain_contexts;
use crate::capture::threads::thread::{EntryGuard, EntryRefusal, ThreadOnly, ThreadState};

/// Kinds of records in the log of graph events. Each record in the log of graph events has three words: `kind | graph
/// << 32` and two words whose meaning depends on the kind. The comments below name these two words; `-` means that a
/// word is unused.
mod kind {
    /// The words are the node and the context
    pub(super) const NODE: u64 = 1;
    /// The words are the node and its original
    pub(super) const CLONE: u64 = 2;
    /// -, -
    pub(super) const END: u64 = 3;
    /// The words are the address of the executable graph, and -
    pub(super) const EXEC: u64 = 4;
    /// The words are the address of the executable graph, and -; the graph is 0
    pub(super) const EXEC_END: u64 = 5;
    /// The words are the address of the executable graph, and the correlation id
    pub(super) const UPDATE: u64 = 6;
    /// The words are the node that must finish first (0 if unknown), and the node that waits for it
    pub(super) const EDGE: u64 = 7;
}

static LOG: CommonLog = CommonLog::new();
/// The collector's table of the executable graphs that currently exist.
static EXECS: Mutex<Option<ExecGraphs>> = Mutex::new(None);

/// Records a graph event.
#[cold]
pub(crate) fn record_event(event: &GraphEvent<'_>) {
    if lifecycle::is_over() {
        return;
    }
    let Some(mut entered) = EntryGuard::new(std::ptr::from_ref(event).addr()) else {
        let refused = EntryRefusal::determine();
        if !matches!(event, GraphEvent::CallBegins { .. } | GraphEvent::CallEnds(_)) {
            refused.lose(Loss::GraphNodesDropped);
        }
        return;
    };
    let (own, thread) = entered.parts();
    match *event {
        GraphEvent::CallBegins { call, into } => begin(own, call, into),
        GraphEvent::CallEnds(call) => {
            if call.slot.get() == GRAPH_CALL {
                own.graph_call = None;
            }
        }
        GraphEvent::NodeCreated { ids, waits_unseen, frame } => {
            let into = node_created(own, thread, ids, std::ptr::from_ref(frame).addr());
            if let Some((graph, node)) = into.filter(|_| waits_unseen) {
                push(thread, [word(kind::EDGE, graph), 0, node.0]);
            }
        }
        GraphEvent::EdgeCreated(ids) => edge_created(own, thread, ids),
        GraphEvent::NodeCloned(ids) => node_cloned(own, thread, ids),
        GraphEvent::GraphEnds(graph) => graph_ends(own, thread, graph),
        GraphEvent::ExecCreated(exec) => {
            if let Some(graph) = own.copied_graphs.take_first() {
                push(thread, [word(kind::EXEC, graph), exec, 0]);
            }
        }
        GraphEvent::ExecEnds(exec) => push(thread, [kind::EXEC_END, exec, 0]),
        GraphEvent::ExecUpdated { exec, source, correlation } => {
            push(thread, [word(kind::UPDATE, source), exec, u64::from(correlation.0)]);
        }
    }
}

fn begin(own: &mut ThreadOnly, call: &Call<'_>, into: Option<GraphId>) {
    let depth = stack_depth();
    // If the thread's earlier graph call encloses this call, this call is nested in the earlier call. If the earlier
    // graph call does not enclose this call, the earlier call has never returned, for example because of a longjmp.
    if own.graph_call.as_ref().is_some_and(|outer| depth < outer.depth) {
        return;
    }
    call.slot.set(GRAPH_CALL);
    own.copied_graphs.clear();
    own.graph_call =
        Some(PendingGraphCall { api: call.api, copies: call.kind == CallKind::GraphCopy, into, depth });
}

/// Returns the thread's graph call that is in progress. Returns `None` if no graph call is in progress, or if the
/// thread has left the call by a jump.
fn enclosing_call(own: &ThreadOnly) -> Option<&PendingGraphCall> {
    own.graph_call.as_ref().filter(|call| stack_depth() < call.depth)
}

fn node_created(
    own: &mut ThreadOnly,
    thread: &ThreadState,
    ids: Option<(GraphId, GraphNodeId)>,
    ours: usize,
) -> Option<(GraphId, GraphNodeId)> {
    let around = enclosing_call(own);
    if around.is_some_and(|call| call.copies) {
        return None;
    }
    let (api, into) = match around {
        Some(call) => (Some(call.api), call.into),
        None => (own.pending.mark_captured(&thread.counters), None),
    };
    let Some((graph, node)) = ids else {
        thread.counters.lose(Loss::GraphNodesDropped);
        return None;
    };
    let leaf = api.map_or(LabelId::OTHER_CALL, |api| LabelId(u32::from(api.0)));
    let context = capture(own, thread, (Frame::label(leaf), 0), ours);
    let graph = into.unwrap_or(graph);
    push(thread, [word(kind::NODE, graph), node.0, u64::from(context.0)]);
    Some((graph, node))
}

/// Records a dependency between two graph nodes. CUPTI's documentation does not state which of the two nodes waits for
/// the other. Therefore gpuflame assumes that the node with the higher id waits. Node ids increase within a graph, so
/// the node with the higher id was created later, and a new node can depend only on existing nodes. The edges of a
/// copied graph are derived from the edges of its original.
fn edge_created(own: &ThreadOnly, thread: &ThreadState, ids: Option<(GraphId, (GraphNodeId, GraphNodeId))>) {
    let around = enclosing_call(own);
    if around.is_some_and(|call| call.copies) {
        return;
    }
    let Some((graph, (one, other))) = ids else { return thread.counters.lose(Loss::GraphNodesDropped) };
    let graph = around.and_then(|call| call.into).unwrap_or(graph);
    push(thread, [word(kind::EDGE, graph), one.0.min(other.0), one.0.max(other.0)]);
}

/// Records that a node was created as a copy of another node. If the API call names the graph to which it adds nodes,
/// the copied node is recorded as a node of that graph. This is correct even for a node in a child graph, because child
/// graphs are destroyed together with their parent.
fn node_cloned(own: &mut ThreadOnly, thread: &ThreadState, ids: Option<ClonedNode>) {
    let Some(ClonedNode { graph, node, original }) = ids else {
        return thread.counters.lose(Loss::GraphNodesDropped);
    };
    let around = enclosing_call(own).map(|call| call.into);
    let into = around.flatten();
    if around.is_none() {
        own.copied_graphs.keep_only(graph);
    }
    if into.is_none() {
        own.copied_graphs.add(graph, node.0);
    }
    push(thread, [word(kind::CLONE, into.unwrap_or(graph)), node.0, original.0]);
}

fn graph_ends(own: &mut ThreadOnly, thread: &ThreadState, graph: GraphId) {
    if enclosing_call(own).is_some_and(|call| call.copies)
        && let Some((into, nodes)) = own.copied_graphs.inline(graph)
    {
        for (added, former) in nodes {
            push(thread, [word(kind::CLONE, into), added, former]);
        }
    }
    push(thread, [word(kind::END, graph), 0, 0]);
}

fn word(kind: u64, graph: GraphId) -> u64 {
    kind | u64::from(graph.0) << 32
}

fn push(thread: &ThreadState, words: [u64; 3]) {
    if !LOG.push([&words]) {
        thread.counters.lose(Loss::GraphNodesDropped);
    }
}

/// Source graphs of the existing executable graphs, keyed by the address of the executable graph. The key is an address
/// because CUPTI before 12.3 has no ids for executable graphs.
#[derive(Default)]
struct ExecGraphs {
    graphs: HashMap<u64, GraphId>,
    /// Ids of the graphs in `graphs`. A graph in `graphs` counts as destroyed only when its executable graph is
    /// destroyed.
    owned: HashSet<GraphId>,
}

/// Passes all unread graph events to `each`. Before the events, passes the launch contexts (stack and API call) to
/// which the events refer. The collector calls this function before it reads activity records, because activity records
/// refer to nodes that the collector must already know.
pub fn drain_graphs(mut each: impl FnMut(&Row<'_>)) {
    let Some(unread) = LOG.unread() else { return };
    drain_contexts(&mut each);
    let mut execs = EXECS.lock().unwrap_or_else(PoisonError::into_inner);
    let execs = execs.get_or_insert_default();
    unread.drain(|record| {
        if let Some(row) = row(record, execs) {
            each(&row);
        }
    });
}

fn row(record: &[u64; 3], execs: &mut ExecGraphs) -> Option<Row<'static>> {
    let graph = GraphId((record[0] >> 32) as u32);
    Some(match record[0] & u64::from(u32::MAX) {
        kind::NODE => {
            Row::GraphNode { graph, node: GraphNodeId(record[1]), context: ContextId(record[2] as u32) }
        }
        kind::CLONE => {
            Row::GraphClone { graph, node: GraphNodeId(record[1]), original: GraphNodeId(record[2]) }
        }
        kind::EDGE => {
            let from = (record[1] != 0).then_some(GraphNodeId(record[1]));
            Row::GraphEdge(GraphEdge { graph, from, to: GraphNodeId(record[2]) })
        }
        kind::END if !execs.owned.contains(&graph) => Row::GraphEnd { graph },
        kind::EXEC => {
            execs.owned.insert(graph);
            execs.graphs.insert(record[1], graph);
            return None;
        }
        kind::EXEC_END => {
            let graph = execs.graphs.remove(&record[1])?;
            execs.owned.remove(&graph);
            Row::GraphEnd { graph }
        }
        kind::UPDATE => {
            let correlation = CorrelationId(record[2] as u32);
            Row::GraphUpdate { graph: *execs.graphs.get(&record[1])?, source: graph, correlation }
        }
        _ => return None,
    })
}
