//! What a thread was in when it made a call: the slices of time that are open then, outermost first.
//!
//! A slice is open from its start until its end, and at its start even if it has no length. Slices need not nest: a
//! range that is entered in one function may outlive it, and then stands in stacks without that function. So a call's
//! stack is told by the times alone, and by no slice's parent.

use std::cmp::Reverse;

use super::late::Late;
use super::model::{CpuKind, SliceKind};
use super::work::CallRecord;
use crate::record::IdMap;

/// A slice: a stretch of time on a thread, with a name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interval {
    pub(super) start: i64,
    /// The first moment behind it.
    pub(super) end: i64,
    pub(super) label: u32,
    pub(super) rank: Rank,
    /// The number of the call, if it is one.
    pub(super) call: Option<u32>,
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
    /// Finds the stacks of the calls of one thread, and what it was in when it was `late`. Of two slices the outer one
    /// begins earlier; of those that begin together it ends later, or has the lower rank, or stands earlier in the file.
    pub(super) fn thread(&mut self, mut slices: Vec<Interval>, calls: &mut [CallRecord], late: &mut Late) {
        slices.sort_by_key(|slice| (slice.start, Reverse(slice.end), slice.rank));
        let mut open: Vec<Open> = Vec::new();
        for slice in slices {
            if late.is_near(slice.start) {
                self.close_one_by_one(&mut open, slice.start, late);
            }
            self.close(&mut open, slice.start);
            let opened = self.open(open.last(), slice);
            if let Some(call) = slice.call {
                calls[call as usize].stack = opened.node;
            }
            open.push(opened);
            late.begins(&slice, opened.node, self);
        }
        self.close_one_by_one(&mut open, i64::MAX, late);
        late.ends(i64::MAX, None, self);
    }

    /// Takes out what is over at `now` in the order in which it ended, as `late` is to know what was open when.
    fn close_one_by_one(&mut self, open: &mut Vec<Open>, now: i64, late: &mut Late) {
        while let Some(last) = open.last().map(|innermost| innermost.first_end).filter(|&last| last < now) {
            let over = open.iter().find(|at| at.interval.last_moment() == last).map(|at| at.interval.label);
            self.close(open, last + 1);
            late.ends(last + 1, over.map(|label| (label, open.last().map(Open::shown))), self);
        }
    }

    fn open(&mut self, outer: Option<&Open>, interval: Interval) -> Open {
        let (parent, first_end) = outer.map_or((ROOT, i64::MAX), |outer| (outer.node, outer.first_end));
        Open {
            interval,
            node: self.child((parent, interval.label, interval.rank)),
            first_end: first_end.min(interval.last_moment()),
        }
    }

    /// Takes those out of `open` that are over at `now`: as a rule they are the innermost ones.
    fn close(&mut self, open: &mut Vec<Open>, now: i64) {
        while open.last().is_some_and(|innermost| innermost.interval.last_moment() < now) {
            open.pop();
        }
        if open.last().is_none_or(|innermost| innermost.first_end >= now) {
            return;
        }
        // One is over that others were opened in, which are not.
        let first = open.partition_point(|at| at.first_end >= now);
        for Open { interval, .. } in open.split_off(first) {
            if interval.last_moment() >= now {
                let opened = self.open(open.last(), interval);
                open.push(opened);
            }
        }
    }

    /// The stack of `label` upon `parent`.
    pub(super) fn child(&mut self, child: Node) -> u32 {
        let next = self.nodes.len() as u32;
        let node = *self.index.entry(child).or_insert(next);
        if node == next {
            self.nodes.push(child);
        }
        node
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

/// A slice that is open, in its stack.
#[derive(Clone, Copy, Debug)]
struct Open {
    interval: Interval,
    node: u32,
    /// The last moment of the one that is over first, of this and all that it stands on.
    first_end: i64,
}

impl Open {
    /// Its stack, and what the innermost slice of that is.
    fn shown(&self) -> (u32, Rank) {
        (self.node, self.interval.rank)
    }
}

impl Interval {
    /// The last moment at which it is open.
    fn last_moment(&self) -> i64 {
        self.start.max(self.end.saturating_sub(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Slices as (start, end, rank), each labelled by its position; the stack of the last, which is a call.
    fn stack(slices: &[(i64, i64, u8)]) -> Vec<u32> {
        let last = slices.len() - 1;
        let intervals = slices.iter().enumerate().map(|(at, &(start, end, rank))| Interval {
            start,
            end,
            label: at as u32,
            rank: [Rank::Python, Rank::Range, Rank::Operator, Rank::Call][rank as usize],
            call: (at == last).then_some(0),
        });
        let mut calls = [CallRecord::default()];
        let mut tree = StackTree::default();
        tree.thread(intervals.collect(), &mut calls, &mut Late::default());
        let mut labels: Vec<u32> = tree.leaf_first(calls[0].stack).map(|(label, _)| label).collect();
        labels.reverse();
        labels
    }

    #[test]
    fn a_range_that_outlives_the_function_it_was_begun_in_stands_without_it() {
        // main, __enter__, the range begun in it, a call in the range behind __enter__.
        assert_eq!(stack(&[(0, 100, 0), (10, 20, 0), (15, 90, 1), (50, 60, 3)]), [0, 2, 3]);
        // The same where something else was opened and closed in between.
        assert_eq!(stack(&[(0, 100, 0), (10, 20, 0), (15, 90, 1), (30, 40, 2), (50, 60, 3)]), [0, 2, 4]);
        // A call while both are open.
        assert_eq!(stack(&[(0, 100, 0), (10, 20, 0), (15, 90, 1), (18, 60, 3)]), [0, 1, 2, 3]);
    }

    #[test]
    fn a_slice_is_over_at_its_end_and_open_at_its_start_even_without_a_length() {
        assert_eq!(stack(&[(0, 10, 2), (10, 20, 3)]), [1]);
        assert_eq!(stack(&[(0, 11, 2), (10, 20, 3)]), [0, 1]);
        assert_eq!(stack(&[(10, 10, 2), (10, 10, 3)]), [0, 1]);
        assert_eq!(stack(&[(9, 9, 2), (10, 20, 3)]), [1]);
    }

    #[test]
    fn of_slices_that_begin_together_the_longer_is_outside_then_the_rank_tells_then_the_file() {
        assert_eq!(stack(&[(5, 20, 2), (5, 30, 3), (5, 20, 0), (5, 20, 2), (5, 10, 3)]), [1, 2, 0, 3, 4]);
    }
}
