//! Finds the edges (dependencies between nodes) of CUDA graphs. In the traces of PyTorch's Cuspy, each edge is a flow
//! in each launch of the graph. The flow leads from the end of one node to the start of another node. The ids of these
//! flows are 2^40 or higher. Flows with lower ids lead from the launching call to the root nodes, which do not wait for
//! any node.
//!
//! A flow contains the lane (process and thread field) and the time of the two nodes that it connects, but not the ids
//! of these nodes. If several nodes fit a flow, the edge is unknown. If no flow leads to a node, all edges to that node
//! are unknown as well, because Cuspy draws no edge from an empty node (a node without a row). A node that records a
//! CUDA event takes no time. An edge that leads through a node for an event record becomes an edge between the node's
//! neighbours.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::launch_flows::FlowEnd;
use super::model::IdleNode;
use super::op_records::{OpRecord, OpRecords};
use gpuflame_model::record::{
    CorrelationId, DeviceId, GpuContextId, GraphEdge, GraphId, GraphNodeId, HostNode, IdMap, Nanos, Row,
    StreamId,
};

/// Smallest id of a flow between two nodes of a graph.
pub(super) const FIRST_DEPENDENCY_FLOW: u64 = 1 << 40;
/// Maximum difference in ns between the end of a node and the start of a flow that leads from this node. The end of the
/// node and the start of the flow may differ, because the profiler rounds the start and the duration of the node
/// separately.
const MAX_ROUNDING_NS: i64 = 2;

/// Start or end of a flow, with the correlation id of the trace event to which it is attached.
type EndAtEvent = (FlowEnd, Option<u64>);

/// A node, identified by the id of its graph and its node id.
type NodeKey = (u32, u64);

/// One execution of a graph node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct NodeRun {
    lane: u32,
    start: i64,
    end: i64,
    correlation: u64,
    key: NodeKey,
}

/// One execution of a graph node that does not run on a GPU.
#[derive(Clone, Copy, Debug)]
struct IdleRun {
    run: NodeRun,
    is_host: bool,
    place: (u32, u32, u32),
}

/// Flows that may be edges of graphs, and nodes that do no GPU work. The collector fills this struct while it reads the
/// trace.
#[derive(Debug, Default)]
pub(super) struct GraphFlows {
    /// Starts and ends of flows, keyed by flow id.
    flows: BTreeMap<u64, [Vec<EndAtEvent>; 2]>,
    idle: Vec<IdleRun>,
    /// Indexes of operations to which a flow leads whose id is equal to the operation's correlation id.
    launched_ops: Vec<u32>,
    /// Whether the trace shows nodes on artificial streams. Cuspy uses artificial streams if it draws edges.
    pub(super) has_moved: bool,
}

impl GraphFlows {
    pub(super) fn add(&mut self, end: FlowEnd, correlation: Option<u64>, begins: bool) {
        self.flows.entry(end.id).or_default()[usize::from(!begins)].push((end, correlation));
    }

    pub(super) fn add_idle(&mut self, lane: u32, node: &IdleNode<'_>) {
        let run = &node.run;
        let key = (run.graph.unwrap_or(0), run.graph_node.unwrap_or(0));
        let correlation = run.correlation.unwrap_or(0);
        let place = (run.device.unwrap_or(0), run.context.unwrap_or(0), run.stream.unwrap_or(0));
        let run = NodeRun { lane, start: run.start, end: run.end, correlation, key };
        self.idle.push(IdleRun { run, is_host: node.is_host, place });
    }

    /// Processes a flow that leads to the operation `op` and has this operation's correlation id.
    pub(super) fn note_launch_flow(&mut self, op: u32) {
        self.launched_ops.push(op);
    }

    /// Finds the edges of all graphs. Both ends of each flow that is not an edge are passed to `other`. The second
    /// argument of `other` is the correlation id of the trace event to which the end is attached. The last argument is
    /// true for the flow's start. `launch_ends` contains the ends of the flows that lead from calls.
    pub(super) fn resolve(
        self,
        ops: &OpRecords,
        launch_ends: &[FlowEnd],
        other: &mut dyn FnMut(FlowEnd, Option<u64>, bool),
    ) -> GraphEdges {
        let mut edges = GraphEdges { idle: self.idle, ..GraphEdges::default() };
        if self.flows.is_empty() && !self.has_moved {
            return edges;
        }
        let runs = Runs::new(ops, &edges.idle);
        let mut others = Vec::new();
        for [starts, ends] in self.flows.into_values() {
            let found = match (&starts[..], &ends[..]) {
                ([(start, _)], [(end, _)]) => runs.between(start, end),
                _ => Vec::new(),
            };
            match found[..] {
                [] => {
                    others.extend(starts.into_iter().map(|(end, id)| (end, id, true)));
                    others.extend(ends.into_iter().map(|(end, id)| (end, id, false)));
                }
                [(from, to)] => edges.add(Some(from), to),
                _ => found.iter().for_each(|(_, to)| edges.add(None, *to)),
            }
        }
        others.sort_by_key(|(end, ..)| (end.time, end.id));
        others.into_iter().for_each(|(end, id, begins)| other(end, id, begins));
        let launched = self.launched_ops.iter().map(|op| ops.get(*op).shape);
        let mut roots: HashSet<NodeKey> = launched.map(|op| (op.graph, op.graph_node)).collect();
        let flows: HashSet<(u32, i64, u64)> =
            launch_ends.iter().map(|end| (end.lane, end.time, end.id)).collect();
        let is_root = |run: &&NodeRun| flows.contains(&(run.lane, run.start, run.correlation));
        roots.extend(runs.by_start.iter().filter(is_root).map(|run| run.key));
        edges.find_graphs_without_edges(&runs, &roots);
        edges.mark_unknown(&runs, &roots);
        edges.pass_events();
        edges
    }
}

/// All executions of graph nodes, sorted by lane (process and thread field) and time.
struct Runs {
    by_start: Vec<NodeRun>,
    by_end: Vec<NodeRun>,
}

impl Runs {
    fn new(ops: &OpRecords, idle: &[IdleRun]) -> Self {
        let of_op = |op: OpRecord<'_>| NodeRun {
            lane: op.shape.lane,
            start: op.start,
            end: op.end,
            correlation: op.correlation,
            key: (op.shape.graph, op.shape.graph_node),
        };
        let runs = ops.iter().map(of_op).chain(idle.iter().map(|idle| idle.run));
        let mut by_start: Vec<_> =
            runs.filter(|run| run.correlation != 0 && run.key.0 != 0 && run.key.1 != 0).collect();
        by_start.sort_unstable();
        let mut by_end = by_start.clone();
        by_end.sort_unstable_by_key(|run| (run.lane, run.end));
        Self { by_start, by_end }
    }

    /// Returns the pairs of nodes that the flow from `from` to `to` may connect. Both nodes of a pair belong to the
    /// same graph launch.
    fn between(&self, from: &FlowEnd, to: &FlowEnd) -> Vec<(NodeKey, NodeKey)> {
        let (low, high) = (from.time - MAX_ROUNDING_NS, from.time + MAX_ROUNDING_NS);
        let first = self.by_end.partition_point(|run| (run.lane, run.end) < (from.lane, low));
        let ended = self.by_end[first..].iter().take_while(|run| (run.lane, run.end) <= (from.lane, high));
        let first = self.by_start.partition_point(|run| (run.lane, run.start) < (to.lane, to.time));
        let began = self.by_start[first..].iter();
        let began = began.take_while(|run| (run.lane, run.start) == (to.lane, to.time));
        let pairs = ended.flat_map(|before| began.clone().map(move |after| (before, after)));
        let is_of_launch = |(before, after): &(&NodeRun, &NodeRun)| {
            before.correlation == after.correlation
                && before.key.0 == after.key.0
                && before.key != after.key
                // The first node must not begin after the second node. If both nodes begin at the same time, the first
                // node must not end later than the second node.
                && (before.start, before.end) <= (after.start, after.end)
        };
        let pairs: BTreeSet<_> =
            pairs.filter(is_of_launch).map(|(before, after)| (before.key, after.key)).collect();
        pairs.into_iter().collect()
    }
}

/// Edges of all graphs in a trace, and the graph nodes that do no GPU work.
#[derive(Debug, Default)]
pub(super) struct GraphEdges {
    /// Ids of graphs that are known to have no edges.
    without_edges: BTreeSet<u32>,
    /// Predecessors of each node, keyed by the node. A predecessor is a node that must end before the node begins. The
    /// value `None` represents an unknown predecessor.
    before: BTreeMap<NodeKey, BTreeSet<Option<NodeKey>>>,
    idle: Vec<IdleRun>,
}

impl GraphEdges {
    fn add(&mut self, from: Option<NodeKey>, to: NodeKey) {
        self.before.entry(to).or_default().insert(from);
    }

    /// Finds the graphs without edges. All nodes of a graph without edges are root nodes, because flows lead from the
    /// launch to each node.
    fn find_graphs_without_edges(&mut self, runs: &Runs, roots: &HashSet<NodeKey>) {
        let graphs = |is_root: bool| {
            let nodes = runs.by_start.iter().filter(move |run| roots.contains(&run.key) == is_root);
            nodes.map(|run| run.key.0).collect::<BTreeSet<u32>>()
        };
        let with_edges: BTreeSet<u32> = self.before.keys().map(|key| key.0).chain(graphs(false)).collect();
        self.without_edges = graphs(true).difference(&with_edges).copied().collect();
    }

    /// Adds an unknown predecessor to each node to which no flow leads, in graphs of which some edges are known.
    fn mark_unknown(&mut self, runs: &Runs, roots: &HashSet<NodeKey>) {
        let graphs: HashSet<u32> = self.before.keys().map(|key| key.0).collect();
        let nodes: BTreeSet<NodeKey> = runs.by_start.iter().map(|run| run.key).collect();
        let nodes = nodes.into_iter().filter(|key| graphs.contains(&key.0));
        for node in nodes.filter(|key| !roots.contains(key)) {
            self.before.entry(node).or_insert_with(|| BTreeSet::from([None]));
        }
    }

    /// Removes nodes that only record a CUDA event. Each edge from a removed node is replaced by edges from the node's
    /// predecessors.
    fn pass_events(&mut self) {
        let idle = self.idle.iter().filter(|idle| !idle.is_host);
        let events: HashSet<NodeKey> = idle.map(|idle| idle.run.key).collect();
        if events.is_empty() {
            return;
        }
        let all = std::mem::take(&mut self.before);
        for (node, before) in all.iter().filter(|(node, _)| !events.contains(node)) {
            let mut left: Vec<Option<NodeKey>> = before.iter().copied().collect();
            let mut passed = HashSet::new();
            while let Some(one) = left.pop() {
                match one.filter(|key| events.contains(key)) {
                    None => self.add(one, *node),
                    Some(event) if passed.insert(event) => {
                        left.extend(all.get(&event).into_iter().flatten().copied());
                    }
                    Some(_) => {}
                }
            }
        }
    }

    /// Returns the lane, start time and correlation id of each execution of a node that does no GPU work.
    pub(super) fn idle_places(&self) -> HashSet<(u32, i64, u64)> {
        self.idle.iter().map(|idle| (idle.run.lane, idle.run.start, idle.run.correlation)).collect()
    }

    /// Returns the correlation ids of calls that submitted a host function to a stream outside of any graph.
    pub(super) fn host_function_calls(&self) -> HashSet<u64> {
        let of_streams = self.idle.iter().filter(|idle| idle.is_host && idle.run.key.0 == 0);
        of_streams.map(|idle| idle.run.correlation).collect()
    }

    /// Returns a map whose keys are the correlation ids of launches and calls that ran functions on the host. All
    /// values in the returned map are `None`; the caller of this function sets the values.
    pub(super) fn host_launches(&self) -> IdMap<u64, Option<CorrelationId>> {
        self.idle.iter().filter(|idle| idle.is_host).map(|idle| (idle.run.correlation, None)).collect()
    }

    /// Emits the rows of all edges. Also emits a row for each host function whose launch has an id in `launches`.
    pub(super) fn emit(
        &self,
        launches: &IdMap<u64, Option<CorrelationId>>,
        nanos: &dyn Fn(i64) -> Nanos,
        each: &mut dyn FnMut(&Row<'_>),
    ) {
        // The id 0 does not belong to any node. So a row with this id only states that the graph's edges were recorded,
        // and that the graph has no edges.
        for graph in &self.without_edges {
            each(&Row::GraphEdge(GraphEdge { graph: GraphId(*graph), from: None, to: GraphNodeId(0) }));
        }
        for (&(graph, to), before) in &self.before {
            for from in before {
                let (graph, to) = (GraphId(graph), GraphNodeId(to));
                let from = from.map(|(_, node)| GraphNodeId(node));
                each(&Row::GraphEdge(GraphEdge { graph, from, to }));
            }
        }
        for IdleRun { run, place: (device, context, stream), .. } in
            self.idle.iter().filter(|idle| idle.is_host)
        {
            let Some(Some(correlation)) = launches.get(&run.correlation) else { continue };
            each(&Row::HostNode(HostNode {
                correlation: *correlation,
                device: DeviceId(*device),
                context: GpuContextId(*context),
                stream: StreamId(*stream),
                start: nanos(run.start),
                end: nanos(run.end),
                graph: GraphId(run.key.0),
                node: GraphNodeId(run.key.1),
            }));
        }
    }
}
