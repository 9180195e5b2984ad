//! Finds the longest path in the graph. If several paths have equal length, the order in which edges were added
//! decides, as in HTA.

use super::graph::Graph;

/// Nodes and edges of a path.
#[derive(Debug, Default)]
pub(super) struct Path {
    pub(super) nodes: Vec<u32>,
    pub(super) edges: Vec<u32>,
}

/// Returns the longest path in the graph.
///
/// # Errors
/// Returns a node of a cycle if the graph has a cycle.
pub(super) fn longest_path(graph: &Graph) -> Result<Path, u32> {
    let order = sorted_nodes(graph)?;
    // For each node, the length of the longest path that ends at this node, and the last edge of this path.
    let mut best: Vec<(i64, Option<u32>)> = vec![(0, None); graph.nodes.len()];
    for &node in &order {
        let mut longest: Option<(i64, Option<u32>)> = None;
        for &at in &graph.entering[node as usize] {
            let edge = &graph.edges[at as usize];
            let length = best[edge.from as usize].0.saturating_add(edge.length());
            if longest.is_none_or(|(found, _)| length > found) {
                longest = Some((length, Some(at)));
            }
        }
        best[node as usize] = longest.unwrap_or((0, None));
    }
    let mut end: Option<u32> = None;
    for &node in &order {
        if end.is_none_or(|end| best[node as usize].0 > best[end as usize].0) {
            end = Some(node);
        }
    }
    let mut path = Path::default();
    while let Some(node) = end {
        path.nodes.push(node);
        let edge = best[node as usize].1;
        path.edges.extend(edge);
        end = edge.map(|at| graph.edges[at as usize].from);
    }
    path.nodes.reverse();
    path.edges.reverse();
    Ok(path)
}

/// Sorts the nodes so that every edge leads to a later node. The nodes to which no edge leads come first. Each of the
/// remaining nodes comes after all nodes from which edges lead to it.
fn sorted_nodes(graph: &Graph) -> Result<Vec<u32>, u32> {
    let mut missing: Vec<usize> = graph.entering.iter().map(Vec::len).collect();
    let mut sorted: Vec<u32> =
        graph.order.iter().copied().filter(|node| missing[*node as usize] == 0).collect();
    let mut next = 0;
    while let Some(&node) = sorted.get(next) {
        next += 1;
        for &at in &graph.leaving[node as usize] {
            let to = graph.edges[at as usize].to;
            missing[to as usize] -= 1;
            if missing[to as usize] == 0 {
                sorted.push(to);
            }
        }
    }
    match graph.order.iter().find(|node| missing[**node as usize] > 0) {
        Some(node) => Err(*node),
        None => Ok(sorted),
    }
}
