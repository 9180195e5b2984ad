//! What a thread was in when it made a call: the slices of time that are open then, outermost first.
//!
//! A slice is open from its start until its end, and at its start even if it has no length. Slices need not nest: a
//! range that is entered in one function may outlive it, and then stands in stacks without that function. So a call's
//! stack is told by the times alone, and by no slice's parent.

use std::cmp::Reverse;

use super::work::CallRecord;
use crate::record::IdMap;

/// A slice: a stretch of time on a thread, with a name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interval {
    pub(super) start: i64,
    /// The first moment behind it.
    pub(super) end: i64,
    pub(super) label: u32,
    /// Which is the outer one of two that cover the same time: Python frames, ranges, operators, calls.
    pub(super) rank: u8,
    /// The number of the call, if it is one.
    pub(super) call: Option<u32>,
}

/// All stacks, as a tree.
#[derive(Debug, Default)]
pub(super) struct StackTree {
    nodes: Vec<(u32, u32)>,
    index: IdMap<(u32, u32), u32>,
}

const ROOT: u32 = u32::MAX;

impl StackTree {
    /// Finds the stacks of the calls of one thread. Of two slices the outer one begins earlier; of those that begin
    /// together it ends later, or has the lower rank, or stands earlier in the file.
    pub(super) fn thread(&mut self, mut intervals: Vec<Interval>, calls: &mut [CallRecord]) {
        intervals.sort_by_key(|interval| (interval.start, Reverse(interval.end), interval.rank));
        let mut open: Vec<Open> = Vec::new();
        for interval in intervals {
            self.close(&mut open, interval.start);
            let opened = self.open(open.last(), interval);
            if let Some(call) = interval.call {
                calls[call as usize].stack = opened.node;
            }
            open.push(opened);
        }
    }

    fn open(&mut self, outer: Option<&Open>, interval: Interval) -> Open {
        let (parent, first_end) = outer.map_or((ROOT, i64::MAX), |outer| (outer.node, outer.first_end));
        Open {
            interval,
            node: self.child(parent, interval.label),
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

    fn child(&mut self, parent: u32, label: u32) -> u32 {
        let next = self.nodes.len() as u32;
        let node = *self.index.entry((parent, label)).or_insert(next);
        if node == next {
            self.nodes.push((parent, label));
        }
        node
    }

    /// The labels of a stack, innermost first.
    pub(super) fn leaf_first(&self, stack: u32) -> impl Iterator<Item = u32> {
        let mut at = stack;
        std::iter::from_fn(move || {
            let &(parent, label) = self.nodes.get(at as usize)?;
            at = parent;
            Some(label)
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
            rank,
            call: (at == last).then_some(0),
        });
        let mut calls = [CallRecord::default()];
        let mut tree = StackTree::default();
        tree.thread(intervals.collect(), &mut calls);
        let mut labels: Vec<u32> = tree.leaf_first(calls[0].stack).collect();
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
