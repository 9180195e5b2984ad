//! Edges that the dependency graph has after edits of the run.

use super::super::critical_path::EdgesView;
use super::super::critical_path::graph::Edge;
use super::{Edit, Replay};

/// Edges of an edited run, sorted by `to`.
#[derive(Debug)]
pub(super) enum EditedEdges {
    /// New lags for the edges of the recorded run, one lag per edge.
    Lags(Vec<u64>),
    /// A new list of edges, for edits that add or remove edges.
    Own(Vec<Edge>),
}

/// Edges of a run whose lags can be changed.
pub(super) enum LagsMut<'a> {
    Edges(&'a mut [Edge]),
    /// Edges, and the lags that replace the lags of these edges.
    Lags(&'a [Edge], &'a mut [u64]),
}

impl LagsMut<'_> {
    /// Calls `change` with each edge. `change` may change only the lag of the edge.
    pub(super) fn each(&mut self, mut change: impl FnMut(&mut Edge)) {
        match self {
            Self::Edges(edges) => edges.iter_mut().for_each(change),
            Self::Lags(edges, lags) => {
                for (edge, lag) in edges.iter().zip(lags.iter_mut()) {
                    let mut edge = Edge { lag: *lag, ..*edge };
                    change(&mut edge);
                    *lag = edge.lag;
                }
            }
        }
    }
}

impl Edit {
    /// Whether the edit only changes lags, so that it neither adds nor removes edges.
    fn changes_only_lags(&self) -> bool {
        matches!(self, Self::Scale { .. } | Self::LaunchNanos(_) | Self::ScaleHost { .. })
    }
}

impl Replay<'_> {
    /// Returns the edges after all edits, if calls keep the order of the recorded run.
    pub(super) fn edit_in_order(&self, edits: &[Edit]) -> EditedEdges {
        if !edits.iter().all(Edit::changes_only_lags) {
            return EditedEdges::Own(self.edited_edges(self.edges().iter().collect(), edits, None));
        }
        let mut lags = self.edge_lags.clone();
        let mut edges = LagsMut::Lags(self.path.graph().1, &mut lags);
        for edit in edits {
            match edit {
                Edit::Scale { work, factor } => self.scale(&mut edges, work, *factor),
                Edit::LaunchNanos(nanos) => self.set_launch_time(&mut edges, *nanos),
                Edit::ScaleHost { calls, before, factor } => {
                    self.scale_host(&mut edges, calls, before, *factor);
                }
                _ => {}
            }
        }
        EditedEdges::Lags(lags)
    }

    pub(super) fn view<'a>(&'a self, edges: &'a EditedEdges) -> EdgesView<'a> {
        match edges {
            EditedEdges::Lags(lags) => EdgesView::with_lags(self.path.graph().1, lags),
            EditedEdges::Own(edges) => edges.as_slice().into(),
        }
    }
}
