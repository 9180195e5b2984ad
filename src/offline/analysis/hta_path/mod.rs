//! Computes the critical path by the rules of Holistic Trace Analysis (HTA, version 0.6.1). Because the rules are the
//! same, the paths that HTA and gpuflame compute can be compared edge by edge. [`HtaRule`] lists the four points in
//! which HTA's rules differ from the rules of gpuflame's own critical path.
//!
//! ```text
//!   events -> select: rows of the window -> nodes -> edges of the host, edges of the GPU -> longest path -> classes
//! ```

mod attribution;
mod cpu_edges;
mod events;
mod gpu_edges;
mod graph;
mod longest_path;
mod nodes;
mod queue;
mod sync_edges;
mod window;

pub use attribution::HtaBound;
pub use events::HtaEvents;
pub use gpu_edges::Unconnected;
pub use graph::{EdgeType, HtaRule};

use std::collections::{BTreeMap, HashSet};

use attribution::bound_by;
use cpu_edges::add_cpu_edges;
use gpu_edges::add_gpu_edges;
use gpuflame_model::error::{Error, ErrorKind, Result};
use graph::Graph;
use longest_path::{Path, longest_path};
use nodes::create_nodes;
use window::{Selection, select};

/// Settings of [`hta_path`].
#[derive(Clone, Debug)]
pub struct HtaPathOptions {
    /// Substring of the names of the events that define the window. If this text is empty, the window is the whole
    /// trace.
    pub annotation: String,
    /// First and last instance of the annotation that the window contains, counted from 0 in file order.
    pub instances: (usize, usize),
    /// Whether an edge leads from the launch to every GPU operation. If the launch did not delay the operation, the
    /// edge has weight 0.
    pub zero_launch_edges: bool,
}

/// A node of the graph, which is the start or the end of a trace event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HtaNode {
    /// Position of the node's event in `traceEvents`.
    pub event: u64,
    /// Whether the node is the start of the event.
    pub is_start: bool,
    /// Time in us since the start of the window.
    pub time_us: i64,
}

/// An edge between two nodes of the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HtaEdge {
    /// Node at which the edge begins.
    pub from: HtaNode,
    /// Node at which the edge ends.
    pub to: HtaNode,
    /// Type of the edge.
    pub kind: EdgeType,
    /// Weight of the edge in us. The weight is negative if the edge leads back in time. For the length of a path,
    /// negative weights count as 0.
    pub weight_us: i64,
    /// Position of the event to which the weight is attributed.
    pub attributed: Option<u64>,
    /// HTA rule that explains the weight: by the rule, the weight differs from the time between the nodes, or includes
    /// the duration of the launch call.
    pub rule: Option<HtaRule>,
    /// Whether the edge is on the critical path.
    pub is_critical: bool,
}

impl HtaEdge {
    /// Returns the time in us between the nodes that the weight does not include.
    pub fn uncounted_us(&self) -> i64 {
        self.to.time_us - self.from.time_us - self.weight_us
    }
}

/// Facts about the graph of a window, and the critical path in this graph.
#[derive(Clone, Debug)]
pub struct HtaPath {
    /// Duration of the window in us.
    pub window_us: i64,
    /// Number of nodes in the graph.
    pub nodes: u64,
    /// All edges of the graph, sorted by the times of their nodes.
    pub edges: Vec<HtaEdge>,
    /// Nodes of the critical path.
    pub critical_nodes: Vec<HtaNode>,
    /// Number of events on the critical path.
    pub critical_events: u64,
    /// For each resource, the number of edges on the critical path that the resource limits, and the total weight of
    /// these edges in us.
    pub bounds: BTreeMap<HtaBound, (u64, i64)>,
    /// GPU work to which no edge from an earlier event leads.
    pub unconnected: Unconnected,
    /// Names of the events that have nodes, keyed by their position in `traceEvents`.
    pub names: BTreeMap<u64, String>,
}

/// Computes the critical path of a window by HTA's rules.
///
/// # Errors
/// `Format` if the window does not exist, if its graph has no edges, or if HTA would refuse its graph. HTA refuses
/// graphs with a cycle, and graphs in which GPU work waits for work on the same stream.
pub fn hta_path(events: &HtaEvents, options: &HtaPathOptions) -> Result<HtaPath> {
    let selection = select(events, &options.annotation, options.instances)?;
    let mut graph = Graph::new(create_nodes(events, &selection));
    add_cpu_edges(events, &selection, &mut graph);
    let unconnected = add_gpu_edges(events, &selection, options.zero_launch_edges, &mut graph);
    check_waits(events, &graph)?;
    let path = longest_path(&graph).map_err(|node| cycle_error(events, &graph, node))?;
    if path.edges.is_empty() {
        let what = "the window has no operators, calls or GPU work with times; name another --annotation or --instance";
        return Err(Error::new(ErrorKind::Format, what));
    }
    Ok(to_path(events, &selection, &graph, &path, unconnected))
}

/// Returns an error if GPU work waits for work on the same stream, because HTA refuses such graphs.
fn check_waits(events: &HtaEvents, graph: &Graph) -> Result<()> {
    for edge in graph.edges.iter().filter(|edge| edge.kind == EdgeType::Sync) {
        let row = |node: u32| &events.rows[graph.nodes[node as usize].row as usize];
        let (from, to) = (row(edge.from), row(edge.to));
        if let Some(stream) = from.stream
            && from.stream == to.stream
        {
            return Err(Error::new(
                ErrorKind::Format,
                format!(
                    "event {} (`{}`) waits for event {} (`{}`) of its own stream {stream}, a graph that HTA refuses; \
                     leave out --as-hta",
                    to.number,
                    events.name(to.name),
                    from.number,
                    events.name(from.name)
                ),
            ));
        }
    }
    Ok(())
}

fn cycle_error(events: &HtaEvents, graph: &Graph, node: u32) -> Error {
    let row = &events.rows[graph.nodes[node as usize].row as usize];
    let what = format!(
        "by HTA's rules, event {} (`{}`) depends on itself, a graph that HTA refuses; leave out --as-hta",
        row.number,
        events.name(row.name)
    );
    Error::new(ErrorKind::Format, what)
}

fn to_path(
    events: &HtaEvents,
    selection: &Selection,
    graph: &Graph,
    path: &Path,
    unconnected: Unconnected,
) -> HtaPath {
    let row = |at: u32| &events.rows[at as usize];
    let to_node = |node: u32| {
        let node = &graph.nodes[node as usize];
        let time_us = node.time - selection.span.0;
        HtaNode { event: row(node.row).number, is_start: node.is_start, time_us }
    };
    let critical: HashSet<u32> = path.edges.iter().copied().collect();
    let to_edge = |(at, edge): (u32, &graph::Edge)| HtaEdge {
        from: to_node(edge.from),
        to: to_node(edge.to),
        kind: edge.kind,
        weight_us: edge.weight,
        attributed: edge.attributed.map(|at| row(at).number),
        rule: edge.rule,
        is_critical: critical.contains(&at),
    };
    let mut order: Vec<u32> = (0..graph.edges.len() as u32).collect();
    order.sort_by_key(|at| (graph.edges[*at as usize].from, graph.edges[*at as usize].to));
    let mut bounds: BTreeMap<HtaBound, (u64, i64)> = BTreeMap::new();
    for edge in path.edges.iter().map(|at| &graph.edges[*at as usize]) {
        let (count, sum) = bounds.entry(bound_by(events, edge)).or_default();
        (*count, *sum) = (*count + 1, sum.saturating_add(edge.weight));
    }
    let critical_nodes: Vec<HtaNode> = path.nodes.iter().map(|node| to_node(*node)).collect();
    let named = |at: u32| (row(at).number, events.name(row(at).name).to_owned());
    let attributed = graph.edges.iter().filter_map(|edge| edge.attributed);
    HtaPath {
        window_us: selection.span.1 - selection.span.0,
        nodes: graph.nodes.len() as u64,
        edges: order.into_iter().map(|at| to_edge((at, &graph.edges[at as usize]))).collect(),
        critical_events: critical_nodes.iter().map(|node| node.event).collect::<HashSet<_>>().len() as u64,
        critical_nodes,
        bounds,
        unconnected,
        names: graph.nodes.iter().map(|node| named(node.row)).chain(attributed.map(named)).collect(),
    }
}
