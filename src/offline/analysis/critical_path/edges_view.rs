//! Edges and moments of a graph, with other lags and other times.
//!
//! A replay changes lags and times only, and a run has millions of edges, so a replay stores the numbers alone.

use super::graph::{Edge, Graph, MomentId};

/// Edges, with their own lags or with others.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct EdgesView<'a> {
    edges: &'a [Edge],
    /// Lags, by position of the edge.
    lags: Option<&'a [u64]>,
}

impl<'a> EdgesView<'a> {
    /// Views edges with other lags: one for each edge.
    pub(in super::super) fn with_lags(edges: &'a [Edge], lags: &'a [u64]) -> Self {
        Self { edges, lags: Some(lags) }
    }

    pub(in super::super) fn len(&self) -> usize {
        self.edges.len()
    }

    pub(in super::super) fn get(&self, at: usize) -> Option<Edge> {
        let edge = *self.edges.get(at)?;
        Some(self.lags.map_or(edge, |lags| Edge { lag: lags[at], ..edge }))
    }

    pub(in super::super) fn iter(self) -> impl Iterator<Item = Edge> + Clone + use<'a> {
        (0..self.len()).filter_map(move |at| self.get(at))
    }
}

impl<'a> From<&'a [Edge]> for EdgesView<'a> {
    fn from(edges: &'a [Edge]) -> Self {
        Self { edges, lags: None }
    }
}

/// A graph, with its own times or with others.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct TimedGraph<'a> {
    pub(super) graph: &'a Graph,
    /// Times, by position of the moment.
    times: Option<&'a [u64]>,
}

impl<'a> TimedGraph<'a> {
    /// Views a graph with other times: one for each moment.
    pub(in super::super) fn with_times(graph: &'a Graph, times: &'a [u64]) -> Self {
        Self { graph, times: Some(times) }
    }

    pub(super) fn time(&self, moment: MomentId) -> u64 {
        self.times.map_or_else(|| self.graph.time(moment), |times| times[moment as usize])
    }

    /// End of the call at this position.
    pub(super) fn call_end(&self, call: u32) -> u64 {
        let call = &self.graph.calls[call as usize];
        self.times.map_or(call.end, |times| times[call.moments.1 as usize])
    }

    /// Whether a kernel that overlapped the kernel before it took as long as it takes alone. Unknown for other times.
    pub(super) fn is_unhindered(&self, end: MomentId) -> bool {
        self.times.is_none() && self.graph.unhindered.contains_key(&end)
    }
}

impl<'a> From<&'a Graph> for TimedGraph<'a> {
    fn from(graph: &'a Graph) -> Self {
        Self { graph, times: None }
    }
}
