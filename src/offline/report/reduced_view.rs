//! Reduces a view to a limited number of nodes, and puts these nodes into the order in which the page stores them.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use gpuflame_model::profile::add_to;

use super::frame_names::FrameNames;
use super::view_tree::{Sums, ViewTree};

/// Name of a node that replaces several small nodes.
pub(super) const MERGED_NAME: &str = "[smaller frames, merged]";

/// Name of a node: the root, the index of a frame name, or the name for merged nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum NodeName {
    Root,
    Frame(u32),
    Merged,
}

/// A reduced view: its nodes in preorder, with children sorted by name, and the values for each node and track.
#[derive(Debug, Default)]
pub(super) struct ReducedView {
    pub(super) nodes: Vec<(i64, NodeName)>,
    pub(super) values: BTreeMap<(u32, u32), Sums>,
    /// Number of merged nodes, and the total of their values.
    pub(super) merged: (u64, u64),
}

impl ReducedView {
    /// Keeps the `max_nodes` nodes of `tree` with the largest totals. The values of each removed node are added to a
    /// node for merged nodes. The node for merged nodes is a child of the removed node's nearest kept ancestor.
    pub(super) fn new(tree: &ViewTree, names: &FrameNames, max_nodes: usize) -> Self {
        let kept = heaviest(tree, max_nodes);
        // For each node: the kept node to which its values are added, and whether its values are merged. The kept node
        // is the node itself if it is kept, and otherwise its nearest kept ancestor.
        let mut targets: Vec<(u32, bool)> = Vec::with_capacity(tree.nodes.len());
        for (at, node) in (0_u32..).zip(&tree.nodes) {
            let target =
                if kept[at as usize] { (at, false) } else { (targets[node.parent as usize].0, true) };
            targets.push(target);
        }
        let mut values: BTreeMap<(u32, bool, u32), Sums> = BTreeMap::new();
        let mut merged = (kept.iter().filter(|kept| !**kept).count() as u64, 0);
        for (&(node, track), sums) in &tree.values {
            let (target, is_merged) = targets[node as usize];
            if is_merged {
                add_to(&mut merged.1, sums[0]);
            }
            let sum = values.entry((target, is_merged, track)).or_default();
            add_to(&mut sum[0], sums[0]);
            add_to(&mut sum[1], sums[1]);
        }
        let mut has_merged = vec![false; tree.nodes.len()];
        targets.iter().filter(|target| target.1).for_each(|target| has_merged[target.0 as usize] = true);
        let (nodes, numbers) = preorder(tree, names, &kept, &has_merged);
        let number = |(target, is_merged): (u32, bool)| numbers[target as usize] + u32::from(is_merged);
        let values = values.into_iter();
        let values = values.map(|((at, is_merged, track), sums)| ((number((at, is_merged)), track), sums));
        Self { nodes, values: values.collect(), merged }
    }
}

/// Returns which nodes are kept: the root, and the nodes with the largest totals. The parents of kept nodes are kept
/// too.
fn heaviest(tree: &ViewTree, max_nodes: usize) -> Vec<bool> {
    if tree.nodes.len() <= max_nodes {
        return vec![true; tree.nodes.len()];
    }
    let mut totals = vec![0_u64; tree.nodes.len()];
    tree.values.iter().for_each(|((node, _), sums)| add_to(&mut totals[*node as usize], sums[0]));
    for (at, node) in tree.nodes.iter().enumerate().skip(1).rev() {
        let total = totals[at];
        add_to(&mut totals[node.parent as usize], total);
    }
    // A parent sorts before its children, because the parent's total is at least as large as each child's total, and
    // the parent's index is smaller.
    let mut order: Vec<usize> = (0..tree.nodes.len()).collect();
    order.sort_unstable_by_key(|&at| (Reverse(totals[at]), at));
    let mut kept = vec![false; tree.nodes.len()];
    order.iter().take(max_nodes.max(1)).for_each(|&at| kept[at] = true);
    kept
}

/// Returns the kept nodes in preorder, and the new index of each kept node. A node for merged nodes comes directly
/// after its parent.
fn preorder(
    tree: &ViewTree,
    names: &FrameNames,
    kept: &[bool],
    has_merged: &[bool],
) -> (Vec<(i64, NodeName)>, Vec<u32>) {
    let text = |at: usize| names.list()[tree.nodes[at].name as usize].text.as_str();
    let mut children: Vec<Vec<u32>> = vec![Vec::new(); tree.nodes.len()];
    for (at, node) in tree.nodes.iter().enumerate().skip(1).filter(|(at, _)| kept[*at]) {
        children[node.parent as usize].push(at as u32);
    }
    let mut numbers = vec![0; tree.nodes.len()];
    let mut nodes = Vec::new();
    let mut left = vec![(0_u32, -1_i64)];
    while let Some((at, parent)) = left.pop() {
        let number = nodes.len() as i64;
        numbers[at as usize] = number as u32;
        let name = if at == 0 { NodeName::Root } else { NodeName::Frame(tree.nodes[at as usize].name) };
        nodes.push((parent, name));
        if has_merged[at as usize] {
            nodes.push((number, NodeName::Merged));
        }
        let mut below = std::mem::take(&mut children[at as usize]);
        below.sort_unstable_by(|a, b| text(*b as usize).cmp(text(*a as usize)));
        left.extend(below.into_iter().map(|child| (child, number)));
    }
    (nodes, numbers)
}
