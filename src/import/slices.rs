//! Slices of time on threads, and stacks of them: what is shared by those who find out what a thread was in.

use std::cmp::Reverse;

use super::model::{CpuKind, SliceKind};
use crate::record::IdMap;

/// A slice: a stretch of time on a thread, with a name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interval {
    pub(super) start: i64,
    /// The first moment behind it.
    pub(super) end: i64,
    /// Its label, and in the two lowest bits what it is.
    what: u32,
    /// Of a call its number, of other slices their place among those in the file.
    pub(super) number: u32,
}

const _: () = assert!(size_of::<Interval>() == 24, "a slice grew: a large trace has a million of them");

/// No list, nothing told.
pub(super) const NOBODY: u32 = u32::MAX;

impl Interval {
    pub(super) fn new((start, end): (i64, i64), label: u32, rank: Rank, number: u32) -> Self {
        Self { start, end, what: label << 2 | rank as u32, number }
    }

    pub(super) fn label(&self) -> u32 {
        self.what >> 2
    }

    pub(super) fn rank(&self) -> Rank {
        match self.what & 3 {
            0 => Rank::Python,
            1 => Rank::Range,
            2 => Rank::Operator,
            _ => Rank::Call,
        }
    }

    /// The number of the call, if it is one.
    pub(super) fn call(&self) -> Option<u32> {
        (self.rank() == Rank::Call).then_some(self.number)
    }

    /// What sorts slices that begin together: the outer one is longer, or the lower in rank, or earlier in the file.
    pub(super) fn depth(&self) -> (Reverse<i64>, u32, u32) {
        (Reverse(self.end), self.what & 3, self.number)
    }

    /// The last moment at which it is open.
    pub(super) fn last_moment(&self) -> i64 {
        self.start.max(self.end.saturating_sub(1))
    }
}

/// What a slice is; of two that cover the same time the one that stands first here is the outer one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Rank {
    Python,
    Range,
    Operator,
    Call,
}

impl Rank {
    pub(super) fn of(kind: SliceKind) -> Self {
        match kind {
            SliceKind::Python => Self::Python,
            SliceKind::Cpu(CpuKind::Range | CpuKind::Step) => Self::Range,
            SliceKind::Cpu(CpuKind::Operator) => Self::Operator,
            SliceKind::Call => Self::Call,
        }
    }
}

/// All stacks, as a tree: of each node its parent, and what it is called as what.
#[derive(Debug, Default)]
pub(super) struct StackTree {
    nodes: Vec<Node>,
    index: IdMap<Node, u32>,
}

type Node = (u32, u32, Rank);

/// The stack of nothing.
pub(super) const ROOT: u32 = u32::MAX;

impl StackTree {
    /// The stack of `label` upon `parent`.
    pub(super) fn child(&mut self, child: Node) -> u32 {
        let next = self.nodes.len() as u32;
        let node = *self.index.entry(child).or_insert(next);
        if node == next {
            self.nodes.push(child);
        }
        node
    }

    /// What stands in `stack` above `below`, which is a part of it, innermost first.
    pub(super) fn path_above(&self, stack: u32, below: u32, path: &mut Vec<(u32, Rank)>) {
        path.clear();
        let mut at = stack;
        while at != below
            && let Some(&(parent, label, rank)) = self.nodes.get(at as usize)
        {
            path.push((label, rank));
            at = parent;
        }
    }

    /// The labels of a stack and what they are, innermost first.
    pub(super) fn leaf_first(&self, stack: u32) -> impl Iterator<Item = (u32, Rank)> {
        let mut at = stack;
        std::iter::from_fn(move || {
            let &(parent, label, rank) = self.nodes.get(at as usize)?;
            at = parent;
            Some((label, rank))
        })
    }
}
