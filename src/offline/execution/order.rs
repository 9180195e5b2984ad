//! Defines a total order of the nodes. Nodes are sorted by time, but callers come before the nodes that they called. A
//! dependency is kept only if it agrees with the total order, so dependencies cannot form a cycle.

use super::{GpuNode, HostTimes};
use gpuflame_traces::execution::{ExecutionTrace, Kineto};

/// Sort keys of all nodes, including GPU nodes.
#[derive(Debug)]
pub(super) struct Order {
    keys: Vec<(i64, u32)>,
}

impl Order {
    pub(super) fn of(
        trace: &ExecutionTrace<'_>,
        host: &[Option<HostTimes>],
        kineto: &Kineto,
        gpu: &[GpuNode],
    ) -> Self {
        let callers_first = callers_first(trace, host);
        // A node without recorded times gets the time of its caller. A node comes after its caller even if the node's
        // recorded start is earlier than that of the caller.
        let mut keys = vec![(i64::MIN, 0); trace.nodes.len()];
        for (at, &node) in callers_first.iter().enumerate() {
            let caller = trace.nodes[node].parent.map_or(i64::MIN, |parent| keys[parent].0);
            let own = host[node].map_or(i64::MIN, |times| times.start);
            keys[node] = (own.max(caller), at as u32);
        }
        for (at, node) in gpu.iter().enumerate() {
            let start = kineto.work[node.work].start.max(keys[node.parent].0);
            keys.push((start, (callers_first.len() + at) as u32));
        }
        Self { keys }
    }

    /// Returns the indexes of all nodes, sorted by the total order.
    pub(super) fn sorted(&self) -> Vec<u32> {
        let mut nodes: Vec<u32> = (0..self.keys.len() as u32).collect();
        nodes.sort_by_key(|node| self.keys[*node as usize]);
        nodes
    }

    /// Whether node `first` comes before node `second` in the total order.
    pub(super) fn is_before(&self, first: u32, second: u32) -> bool {
        self.keys[first as usize] < self.keys[second as usize]
    }
}

/// Returns all nodes of the execution trace. Each node comes before the nodes that it called, and the called nodes are
/// sorted by time.
fn callers_first(trace: &ExecutionTrace<'_>, host: &[Option<HostTimes>]) -> Vec<usize> {
    let mut called = vec![Vec::new(); trace.nodes.len()];
    let mut open = Vec::new();
    for (at, node) in trace.nodes.iter().enumerate() {
        match node.parent {
            Some(parent) => called[parent].push(at),
            None => open.push(at),
        }
    }
    let key = |at: &usize| (host[*at].map(|times| times.start), trace.nodes[*at].rf_id, trace.nodes[*at].id);
    // The nodes are sorted in descending order, because the next node is taken from the end of the list.
    let sort = |nodes: &mut Vec<usize>| nodes.sort_by_key(|at| std::cmp::Reverse(key(at)));
    sort(&mut open);
    let mut order = Vec::with_capacity(trace.nodes.len());
    while let Some(at) = open.pop() {
        order.push(at);
        let mut below = std::mem::take(&mut called[at]);
        sort(&mut below);
        open.append(&mut below);
    }
    order
}
