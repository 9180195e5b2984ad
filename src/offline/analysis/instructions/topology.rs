//! Stores the edges between graph nodes, as far as the rows contain them.
//!
//! A trace lists the edges of the graphs that were launched. A recording contains a row for each edge that was created,
//! and a row for each node that was copied. A copy of a graph, for example an instantiation, has the edges that the
//! graph had when the copy was made.

use gpuflame_model::record::{GraphEdge, GraphId, GraphNodeId, HostNode, IdMap, Row};

/// Rows about graphs that are used without being joined with other rows.
#[derive(Clone, Debug, Default)]
pub(super) struct GraphRows {
    /// Edges between the nodes of all graphs.
    pub(super) topology: GraphTopology,
    /// Host functions that graph nodes ran.
    pub(super) host_nodes: Vec<HostNode>,
}

impl GraphRows {
    pub(super) fn push(&mut self, row: &Row<'_>) {
        match *row {
            Row::HostNode(run) => self.host_nodes.push(run),
            _ => self.topology.push(row),
        }
    }

    /// Sorts the host functions by time. Call `sort` once, after the last row was added.
    pub(super) fn sort(&mut self) {
        self.host_nodes.sort_unstable_by_key(|run| (run.start, run.end, run.correlation.0, run.node));
    }
}

/// Edges between the nodes of graphs, including edges of copied graphs.
#[derive(Clone, Debug, Default)]
pub(super) struct GraphTopology {
    /// Predecessors of each graph node. A node is listed if it has predecessors, or if the rows state that it was
    /// created or copied.
    nodes: IdMap<NodeKey, Predecessors>,
    /// Graphs for which at least one edge is known.
    graphs: IdMap<GraphId, ()>,
    /// Graph that contains each node that was created or copied. The ids of created and copied nodes are unique in the
    /// file.
    graph_of: IdMap<GraphNodeId, GraphId>,
    /// Graphs that contain created nodes. If a graph contains created nodes and copied nodes, the copied nodes belong
    /// to child graphs. The first nodes of a child graph wait for the predecessors of their parent node, but no edge
    /// shows this dependency.
    created_in: IdMap<GraphId, ()>,
    /// Copies of nodes, keyed by the graph that contains the copy and by the id of the original node.
    copies: IdMap<NodeKey, GraphNodeId>,
}

type NodeKey = (GraphId, GraphNodeId);

/// Nodes for which a node waits.
#[derive(Clone, Debug, Default)]
struct Predecessors {
    own: Vec<GraphNodeId>,
    /// If the node is a copy, the predecessors that the original node had when it was copied, given by their ids in the
    /// original graph.
    of_original: Vec<GraphNodeId>,
    is_copy: bool,
    /// Whether the node also waits for an unrecorded node.
    has_unknown: bool,
}

impl GraphTopology {
    fn push(&mut self, row: &Row<'_>) {
        match *row {
            Row::GraphNode { graph, node, .. } => {
                self.graph_of.insert(node, graph);
                self.created_in.insert(graph, ());
                self.nodes.entry((graph, node)).or_default();
            }
            Row::GraphClone { graph, node, original } => self.copy(graph, node, original),
            Row::GraphEdge(edge) => self.add(edge),
            _ => {}
        }
    }

    fn add(&mut self, GraphEdge { graph, from, to }: GraphEdge) {
        self.graphs.insert(graph, ());
        let node = self.nodes.entry((graph, to)).or_default();
        match from {
            None => node.has_unknown = true,
            Some(from) if node.own.contains(&from) => {}
            Some(from) => node.own.push(from),
        }
    }

    fn copy(&mut self, graph: GraphId, node: GraphNodeId, original: GraphNodeId) {
        self.graph_of.insert(node, graph);
        self.copies.insert((graph, original), node);
        let source = self.graph_of.get(&original).copied();
        let known = source.filter(|source| self.nodes.contains_key(&(*source, original)));
        let (of_original, has_unknown) = match known {
            Some(source) => (self.predecessors(source, original), self.has_unknown(source, original)),
            // The original node was created before the recording began.
            None => (Vec::new(), true),
        };
        let copy = self.nodes.entry((graph, node)).or_default();
        copy.is_copy = true;
        copy.of_original = of_original;
        copy.has_unknown |= has_unknown;
    }

    /// Whether the rows contained no edge of any graph.
    pub(super) fn is_empty(&self) -> bool {
        self.graphs.is_empty()
    }

    /// Whether the file lists all nodes of the graph that contains `node`, including nodes that do no work.
    pub(super) fn lists(&self, node: GraphNodeId) -> bool {
        self.graph_of.contains_key(&node)
    }

    /// Whether all predecessors of a node are known.
    pub(super) fn knows(&self, graph: GraphId, node: GraphNodeId) -> bool {
        // Files that list the nodes of graphs also list all edges of these graphs. Files that do not list the nodes of
        // graphs list only the edges of some graphs.
        let (graph, is_listed) = match self.graph_of.get(&node) {
            Some(graph) => (*graph, !self.is_empty()),
            None => (graph, self.graph_of.is_empty() && self.graphs.contains_key(&graph)),
        };
        is_listed && !self.has_unknown(graph, node)
    }

    fn has_unknown(&self, graph: GraphId, node: GraphNodeId) -> bool {
        let is_of_child = |node: &Predecessors| node.is_copy && self.created_in.contains_key(&graph);
        self.nodes.get(&(graph, node)).is_some_and(|node| node.has_unknown || is_of_child(node))
    }

    /// Returns the known nodes for which a node waits, in ascending order.
    pub(super) fn predecessors(&self, graph: GraphId, node: GraphNodeId) -> Vec<GraphNodeId> {
        let graph = self.graph_of.get(&node).copied().unwrap_or(graph);
        let Some(known) = self.nodes.get(&(graph, node)) else { return Vec::new() };
        let copied = known.of_original.iter().filter_map(|original| self.copies.get(&(graph, *original)));
        let mut all: Vec<GraphNodeId> = known.own.iter().chain(copied).copied().collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuflame_model::record::ContextId;

    fn edge(graph: u32, from: u64, to: u64) -> Row<'static> {
        let from = (from != 0).then_some(GraphNodeId(from));
        Row::GraphEdge(GraphEdge { graph: GraphId(graph), from, to: GraphNodeId(to) })
    }

    fn created(graph: u32, node: u64) -> Row<'static> {
        Row::GraphNode { graph: GraphId(graph), node: GraphNodeId(node), context: ContextId::NONE }
    }

    fn copied(graph: u32, node: u64, original: u64) -> Row<'static> {
        Row::GraphClone { graph: GraphId(graph), node: GraphNodeId(node), original: GraphNodeId(original) }
    }

    fn topology(rows: &[Row<'_>]) -> GraphTopology {
        let mut topology = GraphTopology::default();
        rows.iter().for_each(|row| topology.push(row));
        topology
    }

    fn before(topology: &GraphTopology, graph: u32, node: u64) -> Vec<u64> {
        topology.predecessors(GraphId(graph), GraphNodeId(node)).into_iter().map(|node| node.0).collect()
    }

    #[test]
    fn edges_of_a_trace_belong_to_their_graph_alone() {
        let known = topology(&[edge(1, 5, 6), edge(1, 5, 6), edge(1, 4, 6), edge(2, 0, 6)]);
        assert_eq!((before(&known, 1, 6), before(&known, 2, 6)), (vec![4, 5], vec![]));
        let knows = |graph, node| known.knows(GraphId(graph), GraphNodeId(node));
        assert!(knows(1, 6) && knows(1, 5), "a node without an edge waits for none");
        assert!(!knows(2, 6), "one predecessor is not recorded");
        assert!(!knows(3, 6), "no edge of the graph is recorded");
    }

    #[test]
    fn a_copy_keeps_the_edges_that_its_original_had() {
        let known = topology(&[
            created(1, 10),
            created(1, 11),
            edge(1, 10, 11),
            // The rows of copies may come in any order.
            copied(2, 21, 11),
            copied(2, 20, 10),
            copied(3, 30, 20),
            copied(3, 31, 21),
            created(1, 12),
            edge(1, 10, 12),
        ]);
        assert_eq!((before(&known, 1, 11), before(&known, 1, 12)), (vec![10], vec![10]));
        assert_eq!((before(&known, 2, 21), before(&known, 3, 31)), (vec![20], vec![30]));
        assert!(known.knows(GraphId(3), GraphNodeId(30)));
        let with_child = topology(&[created(1, 10), edge(1, 10, 11), copied(2, 20, 10), created(2, 21)]);
        assert!(!with_child.knows(GraphId(2), GraphNodeId(20)), "a node of a child graph");
        assert!(!known.knows(GraphId(4), GraphNodeId(40)), "the node is older than the recording");
    }

    #[test]
    fn copies_of_nodes_that_are_older_than_the_recording_wait_for_unknown_nodes() {
        let known = topology(&[created(1, 10), created(1, 11), edge(1, 10, 11), copied(3, 30, 2)]);
        assert!(!known.knows(GraphId(3), GraphNodeId(30)));
        assert!(known.knows(GraphId(1), GraphNodeId(10)));
        let without_edges = topology(&[created(1, 10)]);
        assert!(!without_edges.knows(GraphId(1), GraphNodeId(10)), "edges were not recorded at all");
    }
}
