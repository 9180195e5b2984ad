//! What a thread was in when it made a call: the slices of time that are open then, outermost first.
//!
//! A slice is open from its start until its end, and at its start even if it has no length. Slices need not nest: a
//! range that is entered in one function may outlive it, and then stands in stacks without that function. So a call's
//! stack is told by the times alone, and by no slice's parent.

use super::late::Late;
use super::slices::{Interval, ROOT, StackTree};
use super::told::{Told, Within};
use super::work::CallRecord;

/// Reads the slices of one thread after another.
pub(super) struct Stacks<'a> {
    pub(super) tree: &'a mut StackTree,
    pub(super) told: &'a mut Told,
    /// What this thread was in when it was late.
    pub(super) late: &'a mut Late,
}

impl Stacks<'_> {
    /// Finds the stacks of the calls of one thread. Of two slices the outer one begins earlier; of those that begin
    /// together it ends later, or has the lower rank, or stands earlier in the file.
    pub(super) fn thread(&mut self, mut slices: Vec<Interval>, calls: &mut [CallRecord]) {
        // A stable sort would take half as much memory again.
        slices.sort_unstable_by(|a, b| a.start.cmp(&b.start).then_with(|| a.depth().cmp(&b.depth())));
        let mut open: Vec<Open> = Vec::new();
        for slice in slices {
            if self.late.is_near(slice.start) {
                self.close_one_by_one(&mut open, slice.start);
            }
            self.close(&mut open, slice.start);
            let opened = self.open(open.last(), slice);
            if let Some(call) = slice.call() {
                calls[call as usize].stack = opened.node;
                self.told.called(call, &opened.within);
            } else if let Some(number) = self.told.of(&slice) {
                self.told.opened(number, opened.node);
            }
            open.push(opened);
            self.late.begins(&slice, opened.node, self.tree);
        }
        self.close_one_by_one(&mut open, i64::MAX);
        self.late.ends(i64::MAX, None, self.tree);
    }

    /// Takes out what is over at `now` in the order in which it ended: of times in which the thread was late it is to be
    /// known what was open when.
    fn close_one_by_one(&mut self, open: &mut Vec<Open>, now: i64) {
        while let Some(last) = open.last().map(|innermost| innermost.first_end).filter(|&last| last < now) {
            let over = open.iter().find(|at| at.interval.last_moment() == last).map(|at| at.interval.label());
            self.close(open, last + 1);
            let left = open.last().map(|innermost| (innermost.node, innermost.interval.rank()));
            self.late.ends(last + 1, over.map(|label| (label, left)), self.tree);
        }
    }

    fn open(&mut self, outer: Option<&Open>, interval: Interval) -> Open {
        let (below, first_end, around) = outer
            .map_or((ROOT, i64::MAX, Within::NOTHING), |outer| (outer.node, outer.first_end, outer.within));
        let (within, parent) = self.told.enter(self.told.of(&interval), around, below, self.tree);
        Open {
            interval,
            node: self.tree.child((parent, interval.label(), interval.rank())),
            first_end: first_end.min(interval.last_moment()),
            within,
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
}

/// A slice that is open, in its stack.
#[derive(Clone, Copy, Debug)]
struct Open {
    interval: Interval,
    node: u32,
    /// The last moment of the one that is over first, of this and all that it stands on.
    first_end: i64,
    /// What it stands in, of what is told of operators.
    within: Within,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::import::slices::Rank;

    /// Slices as (start, end, rank), each labelled by its position; the stack of the last, which is a call.
    fn stack(slices: &[(i64, i64, u8)]) -> Vec<u32> {
        let last = slices.len() - 1;
        let intervals = (0..).zip(slices).map(|(at, &(start, end, rank))| {
            let rank = [Rank::Python, Rank::Range, Rank::Operator, Rank::Call][rank as usize];
            Interval::new((start, end), at, rank, at)
        });
        let mut calls = vec![CallRecord::default(); slices.len()];
        let mut tree = StackTree::default();
        let (told, late) = (&mut Told::default(), &mut Late::default());
        Stacks { tree: &mut tree, told, late }.thread(intervals.collect(), &mut calls);
        let mut labels: Vec<u32> = tree.leaf_first(calls[last].stack).map(|(label, _)| label).collect();
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
