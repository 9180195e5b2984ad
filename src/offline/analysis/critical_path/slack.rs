//! Finds the edge that decides the time of each moment. Also computes two times: the slack of each moment (the time by
//! which the moment could come later without delaying the run), and the saving for each part of the path (the time by
//! which the run would be shorter if the part took no time).

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::super::two_threads::{in_parallel, is_large};
use super::edges_view::TimedGraph;
use super::graph::{Edge, EdgeKind, Graph, MomentId, MomentKind};
use gpuflame_model::record::IdMap;

/// Index that means "no edge".
pub(super) const NO_EDGE: u32 = u32::MAX;

/// For each moment, finds the edge that decides the moment's time. Sets the lag of the deciding edge to the recorded
/// time between the edge's two moments. The edges must be sorted by `to`.
pub(super) fn decide(graph: &mut Graph) -> Vec<u32> {
    let mut edges = std::mem::take(&mut graph.edges);
    let mut deciding = vec![NO_EDGE; graph.moments.len()];
    let half = edges.get(edges.len() / 2).map_or(0, |edge| edge.to);
    let first = edges.partition_point(|edge| edge.to < half);
    let (edges_before, edges_after) = edges.split_at_mut(first);
    let (before, after) = deciding.split_at_mut(half as usize);
    let graph_view = &*graph;
    in_parallel(
        is_large(graph.moments.len()),
        || decide_part(graph_view, edges_before, 0, (0, before)),
        || decide_part(graph_view, edges_after, first as u32, (half, after)),
    );
    graph.edges = edges;
    deciding
}

/// Finds the deciding edges of the moments starting at `moment`. `edges` contains the edges that lead to these moments.
/// `position` is the index that the first of these edges has in the graph's list of edges.
fn decide_part(
    graph: &Graph,
    edges: &mut [Edge],
    mut position: u32,
    (moment, deciding): (MomentId, &mut [u32]),
) {
    for of_moment in edges.chunk_by_mut(|a, b| a.to == b.to) {
        let latest = (0..of_moment.len()).max_by_key(|at| earliest(graph.into(), &of_moment[*at]));
        let Some(latest) = latest else { continue };
        let edge = &mut of_moment[latest];
        edge.lag = graph.time(edge.to) - graph.time(edge.from);
        deciding[(edge.to - moment) as usize] = position + latest as u32;
        position += of_moment.len() as u32;
    }
}

/// Sort key for the edges that lead to a moment. Each edge gives the earliest time at which the moment can come. The
/// edge with the largest key gives the latest of these times, so it decides when the moment comes. If several edges
/// give the same time, the edge from the latest moment decides, with two exceptions. If a kernel was not slowed down by
/// the previous kernel, the kernel's own begin decides when it ends. If this rank may have entered a collective last,
/// the begin of its own kernel decides when this kernel ends.
pub(super) fn earliest(graph: TimedGraph<'_>, edge: &Edge) -> impl Ord + use<> {
    let time = graph.time(edge.from);
    let from = match edge.kind {
        EdgeKind::Work if graph.is_unhindered(edge.to) => u64::MAX,
        EdgeKind::CollectiveTie => 0,
        _ => time,
    };
    (time.saturating_add(edge.lag), from, edge.kind != EdgeKind::Host)
}

/// For each moment, returns the latest time that would not delay the end of the run. Also adds edges to graph nodes
/// whose edges are not recorded. A node without recorded edges may depend on any node of the same graph launch that
/// ended before the node began.
pub(super) fn latest_times(graph: &mut Graph) -> Vec<u64> {
    let end = graph.moments.last().map_or(0, |moment| moment.time);
    let mut latest = vec![end; graph.moments.len()];
    let mut earliest_nodes: IdMap<u32, (u64, MomentId)> = IdMap::default();
    let mut added = Vec::new();
    let mut edges = graph.edges.iter().rev().peekable();
    for at in (0..graph.moments.len() as MomentId).rev() {
        if let Some(launch) = graph.launch_of.get(&at) {
            let own = latest[at as usize];
            match graph.moments[at as usize].kind {
                MomentKind::Begin => {
                    let known = earliest_nodes.entry(*launch).or_insert((own, at));
                    *known = (own, at).min(*known);
                }
                _ => {
                    if let Some(&(time, to)) = earliest_nodes.get(launch) {
                        latest[at as usize] = own.min(time);
                        added.push(Edge { from: at, to, kind: EdgeKind::GraphNode, lag: 0 });
                    }
                }
            }
        }
        while let Some(edge) = edges.next_if(|edge| edge.to == at) {
            let time = latest[at as usize] - edge.lag;
            let known = &mut latest[edge.from as usize];
            *known = time.min(*known);
        }
    }
    graph.edges.append(&mut added);
    latest
}

/// For each moment, returns the latest time that keeps the order of calls across threads. To keep this order, no call
/// may begin after its limit in `Graph::order_limits`. `latest` contains the latest times that hold without the limits
/// for the order of calls. Returns an empty list if `Graph::order_limits` is empty.
pub(super) fn latest_times_in_order(graph: &Graph, latest: &[u64]) -> Vec<u64> {
    if graph.order_limits.is_empty() {
        return Vec::new();
    }
    let mut in_order = latest.to_vec();
    for &(at, limit) in &graph.order_limits {
        let known = &mut in_order[at as usize];
        *known = limit.min(*known);
    }
    let mut edges: Vec<&Edge> = graph.edges.iter().collect();
    edges.sort_unstable_by_key(|edge| Reverse(edge.to));
    for edge in edges {
        let from = edge.from as usize;
        in_order[from] = in_order[from].min(in_order[edge.to as usize] - edge.lag);
    }
    in_order
}

/// For each edge of the critical path, returns the maximum time by which the run would end earlier if the edge took no
/// time. The saving for an edge of the path is limited by the smallest slack of any edge that bypasses the edge of the
/// path. `path` contains the positions of the path's edges in order of time.
pub(super) fn savings(graph: &Graph, latest: &[u64], path: &[u32]) -> Vec<u64> {
    let mut is_on_path = vec![false; graph.edges.len()];
    path.iter().for_each(|at| is_on_path[*at as usize] = true);
    let by_start = sorted_by_start(graph);
    let mut others = by_start.into_iter().filter(|at| !is_on_path[*at as usize]).peekable();
    let free = slack_of_free_moments(graph, latest);
    let mut past: BinaryHeap<Reverse<(u64, MomentId)>> = BinaryHeap::new();
    let mut savings = Vec::with_capacity(path.len());
    for at in path {
        let edge = graph.edges[*at as usize];
        while let Some(other) = others.next_if(|at| graph.edges[*at as usize].from <= edge.from) {
            let Edge { from, to, lag, .. } = graph.edges[other as usize];
            // Only edges that bypass the current edge of the path are stored in `past`. Most edges of the graph end
            // before the current edge of the path begins.
            if to > edge.from {
                let slack = latest[to as usize] - lag - graph.time(from);
                past.push(Reverse((slack, to)));
            }
        }
        while past.peek().is_some_and(|Reverse((_, to))| *to <= edge.from) {
            past.pop();
        }
        let slack = past.peek().map_or(u64::MAX, |Reverse((slack, _))| *slack);
        savings.push(slack.min(free[edge.from as usize + 1]).min(edge.lag));
    }
    savings
}

/// Returns the positions of all edges, sorted by the moment at which each edge begins.
fn sorted_by_start(graph: &Graph) -> Vec<u32> {
    let mut next = vec![0_u32; graph.moments.len() + 1];
    graph.edges.iter().for_each(|edge| next[edge.from as usize + 1] += 1);
    for at in 1..next.len() {
        next[at] += next[at - 1];
    }
    let mut sorted = vec![0; graph.edges.len()];
    for (at, edge) in (0..).zip(&graph.edges) {
        let place = &mut next[edge.from as usize];
        sorted[*place as usize] = at;
        *place += 1;
    }
    sorted
}

/// For each position, returns the smallest slack among all moments that are at this or a later position and to which no
/// edge leads.
fn slack_of_free_moments(graph: &Graph, latest: &[u64]) -> Vec<u64> {
    let mut is_free = vec![true; graph.moments.len()];
    graph.edges.iter().for_each(|edge| is_free[edge.to as usize] = false);
    let mut least = vec![u64::MAX; graph.moments.len() + 1];
    for at in (0..graph.moments.len()).rev() {
        let own = if is_free[at] { latest[at] - graph.moments[at].time } else { u64::MAX };
        least[at] = own.min(least[at + 1]);
    }
    least
}
