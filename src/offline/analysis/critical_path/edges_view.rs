//! Views of a dependency graph. A view can replace the lags of the graph's edges and the times of its moments.
//!
//! A replay changes only the lags of edges and the times of moments. A run has millions of edges, so a replay stores
//! new lags and times and does not copy the edges.

use super::graph::{Edge, Graph, MomentId};

/// Maximum number of edges that a linear search tries. Usually the search finds the wanted edge after a few edges.
const MAX_STEPS: usize = 64;

/// View of a graph's edges, with the original lags or with replaced lags.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct EdgesView<'a> {
    edges: &'a [Edge],
    /// Replaced lags, indexed by the position of the edge.
    lags: Option<&'a [u64]>,
}

impl<'a> EdgesView<'a> {
    /// Creates a view that replaces the lag of every edge by a lag from `lags`, which has one lag per edge.
    pub(in super::super) fn with_lags(edges: &'a [Edge], lags: &'a [u64]) -> Self {
        Self { edges, lags: Some(lags) }
    }

    pub(in super::super) fn len(&self) -> usize {
        self.edges.len()
    }

    #[inline]
    pub(in super::super) fn get(&self, at: usize) -> Option<Edge> {
        let edge = *self.edges.get(at)?;
        Some(self.lags.map_or(edge, |lags| Edge { lag: lags[at], ..edge }))
    }

    /// Returns the position of the first edge that leads to the moment `to` or to a later moment. The edges must be
    /// sorted by `to`. The search starts just before the index `near`, which is a guess of the returned position.
    pub(super) fn first_to(&self, to: MomentId, near: usize) -> usize {
        let before = &self.edges[..near.min(self.edges.len())];
        let steps = before.iter().rev().take(MAX_STEPS).take_while(|edge| edge.to >= to).count();
        let at = before.len() - steps;
        match steps < MAX_STEPS && self.edges.get(at).is_none_or(|edge| edge.to >= to) {
            true => at,
            false => self.edges.partition_point(|edge| edge.to < to),
        }
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

/// View of a graph, with the original times or with replaced times.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct TimedGraph<'a> {
    pub(super) graph: &'a Graph,
    /// Replaced times, indexed by the position of the moment.
    times: Option<&'a [u64]>,
}

impl<'a> TimedGraph<'a> {
    /// Creates a view that replaces the time of every moment by a time from `times`, which has one time per moment.
    pub(in super::super) fn with_times(graph: &'a Graph, times: &'a [u64]) -> Self {
        Self { graph, times: Some(times) }
    }

    #[inline]
    pub(super) fn time(&self, moment: MomentId) -> u64 {
        self.times.map_or_else(|| self.graph.time(moment), |times| times[moment as usize])
    }

    /// Returns the earliest time of any moment, and the list of all moments that have the latest time.
    pub(super) fn bounds(&self) -> (u64, Vec<MomentId>) {
        match self.times {
            Some(times) => bounds_of(times.iter().copied()),
            None => bounds_of(self.graph.moments.iter().map(|moment| moment.time)),
        }
    }

    /// Returns the time at which the call at this position ended.
    pub(super) fn call_end(&self, call: u32) -> u64 {
        let call = &self.graph.calls[call as usize];
        self.times.map_or(call.end, |times| times[call.moments.1 as usize])
    }

    /// Whether the kernel that ends at `end` overlapped the previous kernel but was not slowed down by it. Always false
    /// if the view replaces times, because replaced times do not show whether a kernel was slowed down.
    pub(super) fn is_unhindered(&self, end: MomentId) -> bool {
        self.times.is_none() && self.graph.unhindered.contains_key(&end)
    }
}

fn bounds_of(times: impl Iterator<Item = u64> + Clone) -> (u64, Vec<MomentId>) {
    let latest = times.clone().max();
    let last = (0..).zip(times.clone()).filter(|(_, time)| Some(*time) == latest).map(|(at, _)| at);
    (times.min().unwrap_or(0), last.collect())
}

impl<'a> From<&'a Graph> for TimedGraph<'a> {
    fn from(graph: &'a Graph) -> Self {
        Self { graph, times: None }
    }
}

#[cfg(test)]
mod tests {
    use super::super::graph::EdgeKind;
    use super::*;

    #[test]
    fn the_first_edge_to_a_moment_is_found_from_any_place() {
        let edge = |to| Edge { from: 0, to, kind: EdgeKind::Host, lag: 0 };
        let edges: Vec<Edge> = [1, 1, 2, 4, 4, 4].map(edge).into();
        let view = EdgesView::from(edges.as_slice());
        for near in 0..=edges.len() {
            let found = [0, 1, 2, 3, 4, 5].map(|to| view.first_to(to, near));
            assert_eq!(found, [0, 0, 2, 3, 3, 6], "near {near}");
        }
        // The test's list has more edges than the linear search tries.
        let many: Vec<Edge> = [1].into_iter().chain([2; 3 * MAX_STEPS]).chain([3]).map(edge).collect();
        let view = EdgesView::from(many.as_slice());
        let found = [many.len(), 1].map(|near| (view.first_to(2, near), view.first_to(3, near)));
        assert_eq!(found, [(1, 1 + 3 * MAX_STEPS); 2]);
    }
}
