//! Finds, for each node of a graph launch, the nodes of this launch for which it waits. Some nodes, for example empty
//! nodes, do no work and therefore have no instruction. A node that waits for an empty node waits for all predecessors
//! of the empty node.

use std::collections::BTreeSet;

use gpuflame_explain::events::JoinedRows;
use gpuflame_model::record::{GraphId, GraphNodeId, IdMap};

use super::order::Source;
use super::topology::{GraphRows, GraphTopology};

pub(super) struct NodeEdges<'a> {
    topology: &'a GraphTopology,
    /// Instruction index of each graph node, keyed by graph launch and node.
    numbers: IdMap<(u32, GraphNodeId), u32>,
    /// Graph launch of each node whose edges are all known, keyed by the node's instruction index.
    known: IdMap<u32, u32>,
    /// Graph launches in which a node began before a node for which it has to wait. If a node began too early, the
    /// known edges of its graph launch may be wrong.
    contradicted: BTreeSet<u32>,
}

impl<'a> NodeEdges<'a> {
    /// Creates a finder for the edges of the graph nodes in `sources`. `sources` must be in the order of the
    /// instructions.
    pub(super) fn new(rows: &JoinedRows, graph_rows: &'a GraphRows, sources: &[Source]) -> Self {
        let GraphRows { topology, host_nodes } = graph_rows;
        let node_of = |source: &Source| match *source {
            Source::Work(at, Some(launch)) => Some((launch, rows.activity_at(at).activity.graph_node)),
            Source::HostNode(at, launch) => Some((launch, host_nodes[at as usize].node)),
            _ => None,
        };
        let sources = if topology.is_empty() { &[] } else { sources };
        let numbers = (0..).zip(sources).filter_map(|(number, source)| Some((node_of(source)?, number)));
        Self { topology, numbers: numbers.collect(), known: IdMap::default(), contradicted: BTreeSet::new() }
    }

    /// Calls `each` with the instruction index of each graph node for which this node waits.
    pub(super) fn find(
        &mut self,
        number: u32,
        launch: u32,
        (graph, node): (GraphId, GraphNodeId),
        each: &mut dyn FnMut(u32),
    ) {
        if self.topology.is_empty() {
            return;
        }
        let mut is_known = self.topology.knows(graph, node);
        let mut left = self.topology.predecessors(graph, node);
        let mut passed = BTreeSet::new();
        while let Some(before) = left.pop() {
            match self.numbers.get(&(launch, before)) {
                Some(&before) if before < number => each(before),
                Some(_) => {
                    self.contradicted.insert(launch);
                }
                None if passed.insert(before) => {
                    is_known &= self.topology.lists(before) && self.topology.knows(graph, before);
                    left.extend(self.topology.predecessors(graph, before));
                }
                None => {}
            }
        }
        if is_known {
            self.known.insert(number, launch);
        }
    }

    /// Returns the instruction indexes of the graph nodes whose edges are all known.
    pub(super) fn finish(self) -> IdMap<u32, ()> {
        let known = self.known.into_iter().filter(|(_, launch)| !self.contradicted.contains(launch));
        known.map(|(number, _)| (number, ())).collect()
    }
}
