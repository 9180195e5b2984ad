//! Defines the slices of threads, and the tree of all stacks of slices. Used by all modules that find the stacks of
//! threads.

use std::cmp::Reverse;

use super::model::{CpuKind, SliceKind};
use gpuflame_model::record::IdMap;

/// A named span of time on a thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slice {
    pub(super) start: i64,
    /// Time at which the slice is over (exclusive).
    pub(super) end: i64,
    /// Label of the slice, shifted left by two bits. The two lowest bits are the [`FrameClass`].
    label_and_class: u32,
    /// Index of the call, if the slice is a call. Otherwise the index of the slice among all slices of the file that
    /// are not calls.
    pub(super) number: u32,
}

/// Index that means "no entry".
pub(super) const NONE: u32 = u32::MAX;

impl Slice {
    pub(super) fn new((start, end): (i64, i64), label: u32, class: FrameClass, number: u32) -> Self {
        Self { start, end, label_and_class: label << 2 | class as u32, number }
    }

    /// Creates a slice from the value that [`Slice::label_and_class`] returned for it.
    pub(super) fn from_parts((start, end): (i64, i64), label_and_class: u32, number: u32) -> Self {
        Self { start, end, label_and_class, number }
    }

    pub(super) fn label(&self) -> u32 {
        self.label_and_class >> 2
    }

    pub(super) fn label_and_class(&self) -> u32 {
        self.label_and_class
    }

    pub(super) fn class(&self) -> FrameClass {
        match self.label_and_class & 3 {
            0 => FrameClass::Python,
            1 => FrameClass::Range,
            2 => FrameClass::Operator,
            _ => FrameClass::Call,
        }
    }

    /// Returns the index of the call, if the slice is a call.
    pub(super) fn call(&self) -> Option<u32> {
        (self.class() == FrameClass::Call).then_some(self.number)
    }

    /// Returns the key by which the slices of a thread are sorted: an outer slice comes before the slices in it. Of two
    /// open slices, the slice that begins earlier is the outer slice. If both begin at the same time, the longer slice
    /// is the outer one. If the durations are also equal, the slice of the lower class is the outer one. Within a
    /// class, the slice that is earlier in the file is the outer one.
    pub(super) fn order_key(&self) -> (i64, Reverse<i64>, u32, u32) {
        (self.start, Reverse(self.end), self.label_and_class & 3, self.number)
    }

    /// Returns the last time at which the slice is open. For a slice of duration 0, this is its start.
    pub(super) fn last_moment(&self) -> i64 {
        self.start.max(self.end.saturating_sub(1))
    }
}

/// Class of a slice. If two slices cover the same time, the slice whose class is listed first is the outer slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum FrameClass {
    Python,
    Range,
    Operator,
    Call,
}

impl FrameClass {
    pub(super) fn from_kind(kind: SliceKind) -> Self {
        match kind {
            SliceKind::Python => Self::Python,
            SliceKind::Cpu(CpuKind::Range | CpuKind::Step) => Self::Range,
            SliceKind::Cpu(CpuKind::Operator | CpuKind::Overhead) => Self::Operator,
            SliceKind::Call | SliceKind::Work | SliceKind::Unknown => Self::Call,
        }
    }
}

/// A tree of stacks. A stack is identified by its innermost node. Each node has a parent, a label and a class.
#[derive(Debug, Default)]
pub(super) struct StackTree {
    nodes: Vec<Node>,
    /// Number of frames of each stack, indexed by node.
    depths: Vec<u32>,
    index: IdMap<Node, u32>,
}

type Node = (u32, u32, FrameClass);

/// The empty stack.
pub(super) const ROOT: u32 = u32::MAX;

impl StackTree {
    /// Returns the stack that consists of the parent's stack and one more frame. Creates a node if the stack does not
    /// exist yet.
    pub(super) fn child(&mut self, child: Node) -> u32 {
        let next = self.nodes.len() as u32;
        let node = *self.index.entry(child).or_insert(next);
        if node == next {
            self.nodes.push(child);
            self.depths.push(self.depth(child.0) as u32 + 1);
        }
        node
    }

    /// Returns the number of frames of a stack.
    pub(super) fn depth(&self, stack: u32) -> usize {
        self.depths.get(stack as usize).map_or(0, |depth| *depth as usize)
    }

    /// Replaces the contents of `path` with the frames of `stack` that its ancestor `below` does not contain, innermost
    /// first.
    pub(super) fn path_above(&self, stack: u32, below: u32, path: &mut Vec<(u32, FrameClass)>) {
        path.clear();
        let mut at = stack;
        while at != below
            && let Some(&(parent, label, class)) = self.nodes.get(at as usize)
        {
            path.push((label, class));
            at = parent;
        }
    }

    /// Returns the labels and classes of a stack, innermost first.
    pub(super) fn leaf_first(&self, stack: u32) -> impl Iterator<Item = (u32, FrameClass)> {
        let mut at = stack;
        std::iter::from_fn(move || {
            let &(parent, label, class) = self.nodes.get(at as usize)?;
            at = parent;
            Some((label, class))
        })
    }
}
