//! A prefix tree: stores chains of 32-bit symbols. Chains that begin with the same symbols share the storage for these
//! symbols.
//!
//! gpuflame stores captured stacks, displayed stacks and flame graphs in prefix trees. Each node contains a sequence of
//! symbols. No chain ends or branches off between two symbols of a node. So a chain that shares few symbols with other
//! chains takes 4 bytes per symbol, plus about 40 bytes for its node. If each node had only one symbol, a chain would
//! take 13 to 19 bytes per symbol.

use std::hash::Hash;
use std::ops::Range;

use super::index::Index;
use crate::record::hash_one;

/// Id of a node of a [`PrefixTree`]. A node also identifies a chain, which consists of the symbols from the root to the
/// end of the node. Adding other chains to the tree does not change this chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(u32);

impl NodeId {
    /// The root of the tree, which identifies the empty chain.
    pub const ROOT: Self = Self(u32::MAX);

    /// Returns the index of the node, for tables with one entry per node. The root has index 0.
    pub fn index(self) -> usize {
        self.0.wrapping_add(1) as usize
    }
}

#[derive(Clone, Copy, Debug)]
struct TreeNode {
    parent: NodeId,
    /// Position of the node's first symbol in `symbols`. The node has `len` symbols, and `len` is at least 1.
    first: u32,
    len: u32,
}

impl TreeNode {
    fn run(&self) -> Range<usize> {
        self.first as usize..self.first as usize + self.len as usize
    }
}

/// A prefix tree. See the module's documentation.
#[derive(Clone, Debug, Default)]
pub struct PrefixTree {
    nodes: Vec<TreeNode>,
    symbols: Vec<u32>,
    /// Index that finds a node from its parent and its first symbol.
    index: Index,
}

impl PrefixTree {
    /// Creates an empty tree with capacity for `chains` chains.
    pub fn with_capacity(chains: usize) -> Self {
        Self {
            nodes: Vec::with_capacity(chains),
            index: Index::with_capacity(chains),
            symbols: Vec::with_capacity(chains),
        }
    }

    /// Returns the node for a chain that consists of the chain of `from`, followed by `symbols`. Creates nodes that do
    /// not exist yet.
    pub fn chain(&mut self, from: NodeId, symbols: impl IntoIterator<Item = u32>) -> NodeId {
        // `Peekable` is not used, because a move of a `Peekable` would have to wait for preceding stores. The wait
        // would take 0.1 us per chain when nodes are created.
        let mut symbols = symbols.into_iter();
        let (mut at, mut next) = (from, symbols.next());
        while let Some(first) = next {
            let hash = hash_one(&(at, first));
            let Some(child) = self.child(at, first, hash) else { return self.add(at, first, symbols, hash) };
            let run = &self.symbols[self.nodes[child as usize].run()];
            let mut shared = 0;
            while shared < run.len() && next == Some(run[shared]) {
                (shared, next) = (shared + 1, symbols.next());
            }
            at = if shared == run.len() { NodeId(child) } else { self.split(child, shared as u32) };
        }
        at
    }

    /// Returns the symbols of the chain that ends at `from`, in the order from the end of the chain to the root.
    pub fn symbols_to_root(&self, from: NodeId) -> impl Iterator<Item = u32> {
        let mut at = from;
        let runs = std::iter::from_fn(move || {
            let node = self.nodes.get(at.0 as usize)?;
            at = node.parent;
            Some(self.symbols[node.run()].iter().rev().copied())
        });
        runs.flatten()
    }

    /// Returns all nodes except the root, in no particular order. Each item consists of the node, its parent, and the
    /// symbols that the node adds to its parent's chain.
    pub fn nodes(&self) -> impl Iterator<Item = (NodeId, NodeId, &[u32])> {
        let node = |(at, node): (u32, &TreeNode)| (NodeId(at), node.parent, &self.symbols[node.run()]);
        (0..).zip(&self.nodes).map(move |(at, it)| node((at, it)))
    }

    /// Returns the symbols that `node` adds to the chain of its parent. The root has no symbols.
    pub fn run(&self, node: NodeId) -> &[u32] {
        self.nodes.get(node.0 as usize).map_or(&[], |node| &self.symbols[node.run()])
    }

    /// Returns the number of nodes, without the root.
    pub fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// Returns the number of symbols in all nodes.
    pub fn symbols(&self) -> usize {
        self.symbols.len()
    }

    /// Drops the index, which only the creation of nodes needs. No chain can be added to the returned tree.
    pub fn without_index(self) -> Self {
        Self { index: Index::default(), ..self }
    }

    /// Returns the heap size of the tree in bytes.
    pub fn heap_bytes(&self) -> usize {
        self.nodes.capacity() * size_of::<TreeNode>()
            + self.symbols.capacity() * size_of::<u32>()
            + self.index.heap_bytes()
    }

    /// Returns the child of `parent` whose symbols begin with `first`. `hash` is the hash of `parent` and `first`.
    fn child(&self, parent: NodeId, first: u32, hash: u64) -> Option<u32> {
        self.index.find(hash, |at| {
            let node = &self.nodes[at as usize];
            node.parent == parent && self.symbols[node.first as usize] == first
        })
    }

    /// Adds a node with the symbols `head` and `tail` below `parent`, which must have no child that begins with
    /// `head`.
    fn add(&mut self, parent: NodeId, head: u32, tail: impl Iterator<Item = u32>, hash: u64) -> NodeId {
        let (first, at) = (self.symbols.len(), self.nodes.len() as u32);
        self.symbols.push(head);
        self.symbols.extend(tail);
        let len = self.symbols.len() - first;
        self.nodes.push(TreeNode { parent, first: first as u32, len: len as u32 });
        let Self { nodes, symbols, index } = self;
        index.insert(hash, at, |at| hash_of(nodes, symbols, at));
        NodeId(at)
    }

    /// Splits the node `at`: a new node gets its first `len` symbols, and `at` becomes the child of the new node.
    /// Returns the new node.
    fn split(&mut self, at: u32, len: u32) -> NodeId {
        let whole = self.nodes[at as usize];
        let hash = self.hash(at);
        let head = NodeId(self.nodes.len() as u32);
        self.nodes.push(TreeNode { len, ..whole });
        self.index.replace(hash, at, head.0);
        self.nodes[at as usize] = TreeNode { parent: head, first: whole.first + len, len: whole.len - len };
        let Self { nodes, symbols, index } = self;
        index.insert(hash_of(nodes, symbols, at), at, |at| hash_of(nodes, symbols, at));
        head
    }

    fn hash(&self, at: u32) -> u64 {
        hash_of(&self.nodes, &self.symbols, at)
    }
}

fn hash_of(nodes: &[TreeNode], symbols: &[u32], at: u32) -> u64 {
    let node = &nodes[at as usize];
    hash_one(&(node.parent, symbols[node.first as usize]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(tree: &mut PrefixTree, symbols: &[u32]) -> NodeId {
        tree.chain(NodeId::ROOT, symbols.iter().copied())
    }

    fn read(tree: &PrefixTree, node: NodeId) -> Vec<u32> {
        let mut symbols: Vec<u32> = tree.symbols_to_root(node).collect();
        symbols.reverse();
        symbols
    }

    #[test]
    fn chains_share_their_common_prefix() {
        let mut tree = PrefixTree::default();
        let abc = chain(&mut tree, &[1, 2, 3]);
        let abd = chain(&mut tree, &[1, 2, 4]);
        // The three nodes contain the symbols (1, 2), (3) and (4).
        assert_eq!((tree.node_count(), tree.symbols()), (3, 4));
        assert_eq!(chain(&mut tree, &[1, 2, 3]), abc);
        assert_eq!(tree.symbols_to_root(abd).collect::<Vec<_>>(), [4, 2, 1]);
        assert_eq!(tree.symbols_to_root(NodeId::ROOT).count(), 0);
        assert_eq!(chain(&mut tree, &[]), NodeId::ROOT);
    }

    #[test]
    fn a_chain_that_ends_inside_another_splits_its_run_and_both_stay_intact() {
        let mut tree = PrefixTree::default();
        let long = chain(&mut tree, &[1, 2, 3, 4, 5]);
        let short = chain(&mut tree, &[1, 2, 3]);
        let shorter = chain(&mut tree, &[1]);
        let beside = tree.chain(short, [4, 6]);
        assert_eq!(read(&tree, long), [1, 2, 3, 4, 5]);
        assert_eq!(read(&tree, short), [1, 2, 3]);
        assert_eq!(read(&tree, shorter), [1]);
        assert_eq!(read(&tree, beside), [1, 2, 3, 4, 6]);
        assert_eq!(tree.chain(shorter, [2, 3, 4, 5]), long);
        assert_eq!(tree.symbols(), 6);
        let runs: Vec<_> = tree.nodes().map(|(node, ..)| tree.run(node)).collect();
        assert_eq!(runs, [&[5][..], &[2, 3], &[1], &[4], &[6]]);
    }

    /// Adds random chains (from a fixed seed) to a tree and to a table, and compares the tree with the table.
    #[test]
    fn a_large_random_tree_finds_all_its_chains() {
        let mut state = 7_u32;
        let mut below = |limit: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) % limit
        };
        let mut tree = PrefixTree::default();
        let chains: Vec<Vec<u32>> = (0..20_000).map(|_| (0..below(12)).map(|_| below(3)).collect()).collect();
        let ids: Vec<NodeId> = chains.iter().map(|symbols| chain(&mut tree, symbols)).collect();
        let mut known = std::collections::HashMap::new();
        for (symbols, id) in chains.iter().zip(ids) {
            assert_eq!(read(&tree, id), *symbols);
            assert_eq!(chain(&mut tree, symbols), id);
            assert_eq!(*known.entry(symbols).or_insert(id), id, "{symbols:?}");
        }
        // Every node of the tree is needed, because each node ends at a fork or at the end of a chain.
        assert!(tree.node_count() <= 2 * known.len());
    }
}
