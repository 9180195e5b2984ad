//! Defines the slices of threads (named time spans), and the tree of all stacks of slices. All modules that find the
//! stacks of threads use these types.

use std::cmp::Reverse;

use super::model::{CpuKind, SliceKind};
use gpuflame_model::record::IdMap;

/// A named time span on a thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slice {
    pub(super) start: i64,
    /// Time at which the slice ends. At this time, the slice is no longer open.
    pub(super) end: i64,
    /// Label of the slice, shifted left by two bits, and its class. The two lowest bits are the [`FrameClass`] of the
    /// slice.
    label_and_class: u32,
    /// Index of the call, if the slice is a call. For any other slice, its index among all slices in the file that are
    /// not calls.
    pub(super) number: u32,
}

/// Value of an index that means "no entry".
pub(super) const NONE: u32 = u32::MAX;

impl Slice {
    pub(super) fn new((start, end): (i64, i64), label: u32, class: FrameClass, number: u32) -> Self {
        Self { start, end, label_and_class: label << 2 | class as u32, number }
    }

    /// Creates the slice for which [`Slice::label_and_class`] has returned this value.
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

    /// If the slice is a call, returns the index of the call.
    pub(super) fn call(&self) -> Option<u32> {
        (self.class() == FrameClass::Call).then_some(self.number)
    }

    /// Returns the key by which the slices of a thread are sorted, so that an outer slice comes before the slices
    /// inside it. Of two overlapping slices, the slice that began earlier is the outer slice. If two slices began at
    /// the same time, the longer slice is the outer slice. If two slices also have equal durations, the slice of the
    /// lower class is the outer slice. If two slices also have the same class, the slice that is earlier in the file is
    /// the outer slice.
    pub(super) fn order_key(&self) -> (i64, Reverse<i64>, u32, u32) {
        (self.start, Reverse(self.end), self.label_and_class & 3, self.number)
    }

    /// Returns the last time at which the slice is open. For a slice with a duration of 0, this time is the start.
    pub(super) fn last_moment(&self) -> i64 {
        self.start.max(self.end.saturating_sub(1))
    }
}

/// Class of a slice, such as Python function or call. Of two slices with the same start and end, the slice whose class
/// is listed first is the outer slice.
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

/// A tree of stacks. The innermost node of a stack identifies the stack. Each node has a parent, a label and a class.
#[derive(Debug, Default)]
pub(super) struct StackTree {
    nodes: Vec<Node>,
    /// Number of frames in each stack. The index of an entry is the stack's node.
    depths: Vec<u32>,
    index: IdMap<Node, u32>,
}

type Node = (u32, u32, FrameClass);

/// The stack without frames.
pub(super) const ROOT: u32 = u32::MAX;

impl StackTree {
    /// Returns the stack that consists of the stack of the parent and one more frame. Creates a node for this stack if
    /// the stack does not exist yet.
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

    /// Replaces the contents of `path` with those frames of `stack` that are not in `below`, innermost first. `below`
    /// must be an ancestor of `stack`.
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

    /// Returns the label and class of each frame in a stack, innermost first.
    pub(super) fn leaf_first(&self, stack: u32) -> impl Iterator<Item = (u32, FrameClass)> {
        let mut at = stack;
        std::iter::from_fn(move || {
            let &(parent, label, class) = self.nodes.get(at as usize)?;
            at = parent;
            Some((label, class))
        })
    }
}
