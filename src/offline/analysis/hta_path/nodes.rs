//! Creates the nodes of the graph. Each operator, call and GPU operation in the window gets a start node and an end
//! node.

use super::events::{EventKind, HtaEvents};
use super::graph::Node;
use super::window::Selection;

/// Returns the nodes of the window, sorted by time and then by event. The start node of an event comes before its end
/// node.
pub(super) fn create_nodes(events: &HtaEvents, selection: &Selection) -> Vec<Node> {
    let mut nodes = Vec::new();
    for &at in &selection.window {
        let row = &events.rows[at as usize];
        let has_nodes = match row.kind {
            EventKind::Operator | EventKind::Call => true,
            EventKind::Work | EventKind::Sync => row.stream.is_some() && row.correlation.is_some(),
            EventKind::Annotation | EventKind::Slice => false,
        };
        if has_nodes {
            nodes.push(Node { row: at, time: row.start, is_start: true });
            nodes.push(Node { row: at, time: row.end, is_start: false });
        }
    }
    nodes.sort_by_key(|node| (node.time, node.row, !node.is_start));
    nodes
}
