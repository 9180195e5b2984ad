//! The dependency graph as HTA builds it. The graph has two nodes per trace event, and edges of five types. A new edge
//! replaces an existing edge between the same two nodes. Nodes and edges are stored in the order in which they were
//! added. If several paths have equal length, the order of nodes and edges decides which path is returned.

use std::collections::HashMap;

/// Type of an edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EdgeType {
    /// Duration of an operator, a call or GPU work.
    Operator,
    /// Order of operators on a thread, or of calls that exclude each other. Edges for such an order have weight 0.
    Dependency,
    /// Time from the start of a launch call to the start of its GPU work.
    LaunchDelay,
    /// Time from the end of an operation to the start of the next operation of the stream.
    KernelDelay,
    /// A wait for GPU work. Edges for waits have weight 0.
    Sync,
}

impl EdgeType {
    /// All edge types, in the order of the output table.
    pub const ALL: [Self; 5] =
        [Self::Operator, Self::Dependency, Self::LaunchDelay, Self::KernelDelay, Self::Sync];

    /// Returns the name that HTA uses for the edge type.
    pub fn word(self) -> &'static str {
        match self {
            Self::Operator => "critical_path_operator",
            Self::Dependency => "critical_path_dependency",
            Self::LaunchDelay => "critical_path_kernel_launch_delay",
            Self::KernelDelay => "critical_path_kernel_kernel_delay",
            Self::Sync => "critical_path_sync_dependency",
        }
    }
}

/// HTA rule that explains the weight of an edge: by the rule, the weight differs from the time between the nodes, or
/// includes the duration of another edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HtaRule {
    /// An edge for the time between two operators of a thread has weight 0.
    CpuGap,
    /// An edge for the time in a call that waits for the GPU has weight 0.
    BlockingExit,
    /// An operation is not connected to the previous operation of its stream if the gap is at least 1,500 us.
    LongGap,
    /// An edge for a launch delay begins at the start of the launch call, so it includes the duration of the call.
    CallStart,
}

impl HtaRule {
    /// All HTA rules.
    pub const ALL: [Self; 4] = [Self::CpuGap, Self::BlockingExit, Self::LongGap, Self::CallStart];

    /// Returns the name of the HTA rule.
    pub fn word(self) -> &'static str {
        match self {
            Self::CpuGap => "cpu_gap",
            Self::BlockingExit => "blocking_exit",
            Self::LongGap => "long_gap",
            Self::CallStart => "call_start",
        }
    }
}

/// Start or end of a trace event.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    /// Index of the event's row.
    pub(super) row: u32,
    /// Time of the start or end, in us.
    pub(super) time: i64,
    pub(super) is_start: bool,
}

/// An edge between two nodes of the graph.
#[derive(Clone, Copy, Debug)]
pub(super) struct Edge {
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) kind: EdgeType,
    /// Weight in us.
    pub(super) weight: i64,
    pub(super) rule: Option<HtaRule>,
    /// Row of the event to which the edge's time is attributed.
    pub(super) attributed: Option<u32>,
}

impl Edge {
    /// Returns the weight with which the edge counts in the length of a path. In the length of a path, HTA replaces
    /// negative weights by 0.
    pub(super) fn length(&self) -> i64 {
        self.weight.max(0)
    }
}

/// The graph of trace events, as HTA builds it.
#[derive(Debug, Default)]
pub(super) struct Graph {
    pub(super) nodes: Vec<Node>,
    pub(super) edges: Vec<Edge>,
    /// Start node and end node for each row.
    of_row: HashMap<u32, (u32, u32)>,
    by_nodes: HashMap<(u32, u32), u32>,
    /// Nodes with at least one edge, in the order in which each node got its first edge.
    pub(super) order: Vec<u32>,
    /// For each node, the edges that begin at this node. The field `entering` contains, for each node, the edges that
    /// end at this node.
    pub(super) leaving: Vec<Vec<u32>>,
    pub(super) entering: Vec<Vec<u32>>,
}

impl Graph {
    /// Creates a graph without edges. `nodes` must be sorted by time.
    pub(super) fn new(nodes: Vec<Node>) -> Self {
        let mut of_row: HashMap<u32, (u32, u32)> = HashMap::new();
        for (at, node) in (0..).zip(&nodes) {
            let both = of_row.entry(node.row).or_default();
            *(if node.is_start { &mut both.0 } else { &mut both.1 }) = at;
        }
        let lists = vec![Vec::new(); nodes.len()];
        Self { nodes, of_row, leaving: lists.clone(), entering: lists, ..Self::default() }
    }

    /// Returns the start node and the end node of a row.
    pub(super) fn of_row(&self, row: u32) -> Option<(u32, u32)> {
        self.of_row.get(&row).copied()
    }

    pub(super) fn time(&self, node: u32) -> i64 {
        self.nodes[node as usize].time
    }

    /// Adds an edge whose weight is the time between its nodes. The weight of the edge is 0 for
    /// [`EdgeType::Dependency`], for [`EdgeType::Sync`] and for [`HtaRule::BlockingExit`].
    pub(super) fn connect(&mut self, from: u32, to: u32, kind: EdgeType, rule: Option<HtaRule>) {
        let is_free =
            matches!(kind, EdgeType::Dependency | EdgeType::Sync) || rule == Some(HtaRule::BlockingExit);
        let weight = if is_free { 0 } else { self.time(to) - self.time(from) };
        self.add(Edge { from, to, kind, weight, rule, attributed: None });
    }

    /// Adds an edge, or replaces the existing edge between the same nodes. If the new edge has no attribution, it gets
    /// the attribution of the replaced edge.
    pub(super) fn add(&mut self, edge: Edge) {
        if let Some(&at) = self.by_nodes.get(&(edge.from, edge.to)) {
            let replaced = &mut self.edges[at as usize];
            let attributed = edge.attributed.or(replaced.attributed);
            *replaced = Edge { attributed, ..edge };
            return;
        }
        let at = self.edges.len() as u32;
        for node in [edge.from, edge.to] {
            let is_new = |lists: &[Vec<u32>]| lists[node as usize].is_empty();
            if is_new(&self.leaving) && is_new(&self.entering) {
                self.order.push(node);
            }
            // The check for new nodes comes before the edge is added to its nodes, because a node with an edge does not
            // count as new.
            if node == edge.from {
                self.leaving[node as usize].push(at);
            } else {
                self.entering[node as usize].push(at);
            }
        }
        self.by_nodes.insert((edge.from, edge.to), at);
        self.edges.push(edge);
    }

    /// Attributes the time of the edge between two nodes to the event in `row`.
    pub(super) fn attribute(&mut self, from: u32, to: u32, row: Option<u32>) {
        if let (Some(&at), Some(_)) = (self.by_nodes.get(&(from, to)), row) {
            self.edges[at as usize].attributed = row;
        }
    }
}
