//! A prefix tree: chains of 32-bit symbols that share what they have in common from the root.
//!
//! Used twice: for stacks of frames, and for stacks of shown frames once symbols are known. A node is 8 bytes,
//! and 5 to 11 in the index.

use std::hash::Hash;

use super::index::Index;
use crate::record::hash_one;

/// A node of a [`Tree`], and so a chain from the root to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct NodeId(pub(super) u32);

impl NodeId {
    /// The empty chain.
    pub(super) const ROOT: Self = Self(u32::MAX);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Node {
    parent: NodeId,
    symbol: u32,
}

/// See the module's documentation.
#[derive(Clone, Debug, Default)]
pub(super) struct Tree {
    nodes: Vec<Node>,
    index: Index,
}

impl Tree {
    /// The chain `parent` with `symbol` at its end.
    pub(super) fn child(&mut self, parent: NodeId, symbol: u32) -> NodeId {
        let node = Node { parent, symbol };
        let hash = hash_one(&node);
        if let Some(at) = self.index.find(hash, |at| self.nodes[at as usize] == node) {
            return NodeId(at);
        }
        let at = self.nodes.len() as u32;
        self.index.insert(hash, at, |at| hash_one(&self.nodes[at as usize]));
        self.nodes.push(node);
        NodeId(at)
    }

    /// The symbols of a chain, from its end to the root.
    pub(super) fn up(&self, from: NodeId) -> impl Iterator<Item = u32> {
        let mut at = from;
        std::iter::from_fn(move || {
            let node = self.nodes.get(at.0 as usize)?;
            at = node.parent;
            Some(node.symbol)
        })
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.nodes.len()
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.nodes.capacity() * size_of::<Node>() + self.index.heap_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(tree: &mut Tree, symbols: &[u32]) -> NodeId {
        symbols.iter().fold(NodeId::ROOT, |node, &symbol| tree.child(node, symbol))
    }

    #[test]
    fn chains_share_what_they_have_in_common() {
        let mut tree = Tree::default();
        let abc = chain(&mut tree, &[1, 2, 3]);
        let abd = chain(&mut tree, &[1, 2, 4]);
        assert_eq!(tree.len(), 4);
        assert_eq!(chain(&mut tree, &[1, 2, 3]), abc);
        assert_eq!(tree.up(abd).collect::<Vec<_>>(), [4, 2, 1]);
        assert_eq!(tree.up(NodeId::ROOT).count(), 0);
    }

    #[test]
    fn a_large_tree_finds_all_its_nodes_again() {
        let mut tree = Tree::default();
        let nodes: Vec<_> = (0..50_000).map(|i| chain(&mut tree, &[i % 7, i % 1000, i])).collect();
        let again: Vec<_> = (0..50_000).map(|i| chain(&mut tree, &[i % 7, i % 1000, i])).collect();
        assert_eq!(nodes, again);
    }
}
