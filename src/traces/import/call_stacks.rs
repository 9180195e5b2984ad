//! Finds the call stack of each call: the slices that are open on the calling thread when the call begins, outermost
//! first.
//!
//! A slice is open from its start until just before its end. A slice with a duration of 0 is open only at its start.
//! Slices may overlap without being nested: a range that is entered in one function may outlive that function. After
//! the function has returned, stacks contain the range but not the function. So each stack is derived from the times of
//! slices, and no slice has a fixed parent.
//!
//! Two slices *cross* if they overlap, but neither of them encloses the other. The stacks of crossing slices have few
//! frames in common. In a trace with thousands of crossing slices, time and memory would grow with the square of the
//! number of these slices. So a slice is left out (and counted) if more than [`MAX_CROSSED`] of the slices that are
//! open around it end before this slice ends.
//!
//! A Python function cannot outlive the Python function that called it. If a function seems to outlive its caller and
//! to last until recording stops, the profiler has missed the function's end. PyTorch writes a duration until the end
//! of recording if it has not observed the end of a function. The true end of the function is unknown. We assume that
//! such a function ended together with the first slice in it, and at the latest with its caller. If that first slice is
//! a Python function, we assume that the outer function ended before this slice began.
//!
//! If a slice ends just after a call began, and most of the call is after the slice's end, the slice does not contain
//! the call. In this case, the profiler measured the end of the slice slightly too late.

use super::host_delays::HostDelays;
use super::operator_links::{Enclosing, OperatorLinks, OperatorScope};
use super::slice_runs::SliceRuns;
use super::slices::{FrameClass, ROOT, Slice, StackTree};

/// Maximum number of open slices that a new slice may cross.
const MAX_CROSSED: usize = 64;
/// Maximum number of open slices that are examined for crossing, beginning with the innermost one.
const MAX_EXAMINED: usize = 1024;
/// Maximum time in ns by which the end of a slice may be measured too late. The limit is below a microsecond, because
/// in a trace with times in whole microseconds, a call may seem to end after the slice that made the call.
const MAX_LATE_END_NS: i64 = 999;
/// Time in ns by which a Python function may seem to outlive its caller, because some traces have times in whole
/// microseconds.
const MAX_OUTLIVED_NS: i64 = 1_000;

/// Builds the stacks of all threads, one thread after another.
pub(super) struct StackBuilder<'a> {
    pub(super) tree: &'a mut StackTree,
    pub(super) links: &'a mut OperatorLinks,
    /// Time spans for which thread states are requested, for the thread whose stacks are being built.
    pub(super) delays: &'a mut HostDelays,
    /// Number of slices that were left out of all stacks because they cross too many other slices.
    pub(super) left_out: u64,
    /// Number of Python functions whose end the profiler missed.
    pub(super) unclosed: u64,
}

impl StackBuilder<'_> {
    /// Finds the stacks of the calls of one thread. The stack of each call is stored in `stacks` at the call's index.
    pub(super) fn build_thread(&mut self, slices: SliceRuns, stacks: &mut [u32]) {
        let mut open: Vec<OpenSlice> = Vec::new();
        let stop = slices.last_python_end();
        slices.for_each_in_order(|mut slice| {
            end_unclosed_function(&mut open, &slice);
            let ended = ended_before(&open, &slice);
            if self.delays.is_requested_before(slice.start) {
                self.close_one_by_one(&mut open, ended);
            }
            self.close_slices(&mut open, ended);
            let caller_end = missed_end(&open, &slice, stop);
            if let Some(end) = caller_end {
                self.unclosed += 1;
                slice.end = end;
            }
            let crosses = crosses_too_many(&open, &slice);
            if crosses && slice.call().is_none() {
                self.left_out += 1;
                return;
            }
            let mut opened = self.open_slice(&open, slice);
            opened.is_unclosed = caller_end.is_some();
            if let Some(call) = slice.call() {
                stacks[call as usize] = opened.node;
                self.links.note_call(call, &opened.scope);
            } else if let Some(number) = self.links.find_operator(&slice) {
                self.links.note_stack(number, opened.node);
            }
            if !crosses {
                open.push(opened);
            }
            self.delays.on_slice_begin(&slice, opened.node, self.tree);
        });
        self.close_one_by_one(&mut open, i64::MAX);
        self.delays.on_slices_end(i64::MAX, None, self.tree);
    }

    /// Closes the slices that have ended at `now`, one by one in the order of their ends. This order shows which slices
    /// were open at each moment while the thread delayed the GPU.
    fn close_one_by_one(&mut self, open: &mut Vec<OpenSlice>, now: i64) {
        while let Some(last) = open.last().map(|innermost| innermost.first_end).filter(|&last| last < now) {
            let over = open.iter().find(|at| at.slice.last_moment() == last).map(|at| at.slice.label());
            self.close_slices(open, last + 1);
            let left = open.last().map(|innermost| (innermost.node, innermost.slice.class()));
            self.delays.on_slices_end(last + 1, over.map(|label| (label, left)), self.tree);
        }
    }

    fn open_slice(&mut self, open: &[OpenSlice], slice: Slice) -> OpenSlice {
        let (below, first_end, around) =
            open.last().map_or((ROOT, i64::MAX, OperatorScope::OUTSIDE), |outer| {
                (outer.node, outer.first_end, outer.scope)
            });
        let (scope, parent) = self.links.enter_slice(&slice, open, around, below, self.tree);
        OpenSlice {
            slice,
            node: self.tree.child((parent, slice.label(), slice.class())),
            first_end: first_end.min(slice.last_moment()),
            scope,
            is_unclosed: false,
        }
    }

    /// Removes the slices that have ended at `now` from `open`. The slices that ended are usually the innermost slices.
    fn close_slices(&mut self, open: &mut Vec<OpenSlice>, now: i64) {
        while open.last().is_some_and(|innermost| innermost.slice.last_moment() < now) {
            open.pop();
        }
        if open.last().is_none_or(|innermost| innermost.first_end >= now) {
            return;
        }
        // A slice may end while slices inside it are still open.
        let first = open.partition_point(|at| at.first_end >= now);
        for OpenSlice { slice, .. } in open.split_off(first) {
            if slice.last_moment() >= now {
                let opened = self.open_slice(open, slice);
                open.push(opened);
            }
        }
    }
}

/// Returns a time limit: an open slice contains `slice` only if it ends after this time. The end of a range is always
/// exact, because the program itself ends the range.
fn ended_before(open: &[OpenSlice], slice: &Slice) -> i64 {
    if slice.call().is_none() {
        return slice.start;
    }
    let half = slice.end.saturating_sub(slice.start).max(0) / 2;
    let limit = slice.start.saturating_add(half.min(MAX_LATE_END_NS));
    let innermost = open.iter().rev().map(|outer| outer.slice);
    let ended = innermost.take_while(|outer| outer.class() != FrameClass::Range && outer.end <= limit);
    ended.map(|outer| outer.end).fold(slice.start, i64::max)
}

/// Returns the end of the caller of `slice`, if the end of `slice` was missed. The end was missed if `slice` is a
/// Python function that outlives its caller and lasts until `stop`, the end of the recording.
fn missed_end(open: &[OpenSlice], slice: &Slice, stop: i64) -> Option<i64> {
    if slice.end.saturating_add(MAX_OUTLIVED_NS) < stop {
        return None;
    }
    let is_python = |slice: &Slice| slice.class() == FrameClass::Python;
    let mut around = open.iter().rev().take(MAX_EXAMINED).map(|outer| outer.slice);
    let caller = around.find(is_python).filter(|_| is_python(slice))?;
    (slice.end > caller.end.saturating_add(MAX_OUTLIVED_NS)).then_some(caller.end)
}

/// Sets the end of the innermost open slice, if this slice is a Python function whose end was missed. The new end is
/// the end or the beginning of `next`, which is the first slice in the function.
fn end_unclosed_function(open: &mut [OpenSlice], next: &Slice) {
    let Some(function) = open.last_mut().filter(|function| function.is_unclosed) else { return };
    if next.start >= function.slice.end {
        return;
    }
    let end = if next.class() == FrameClass::Python { next.start } else { next.end };
    function.slice.end = function.slice.end.min(end);
    function.first_end = function.first_end.min(function.slice.last_moment());
    function.is_unclosed = false;
}

/// Whether `slice` crosses too many of the open slices: those that end before `slice` ends.
fn crosses_too_many(open: &[OpenSlice], slice: &Slice) -> bool {
    let end = slice.last_moment();
    let some_end_before = open.iter().rev().take(MAX_EXAMINED).take_while(|outer| outer.first_end < end);
    some_end_before.filter(|outer| outer.slice.last_moment() < end).nth(MAX_CROSSED).is_some()
}

impl Enclosing for OpenSlice {
    fn slice(&self) -> &Slice {
        &self.slice
    }
}

/// An open slice, and the stack that consists of this slice and the slices around it.
#[derive(Clone, Copy, Debug)]
struct OpenSlice {
    slice: Slice,
    node: u32,
    /// The earliest last open time of this slice and of the slices that enclose it.
    first_end: i64,
    /// Links that depend on the operators which enclose the slice.
    scope: OperatorScope,
    /// Whether the slice is a Python function whose end was missed, and no slice in it was processed yet.
    is_unclosed: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::import::slices::FrameClass;

    /// Returns the labels in the stack of the last slice, which is a call. Each slice is given as (start, end, class).
    /// In these tests, the label of a slice is the index of the slice.
    fn stack(slices: &[(i64, i64, u8)]) -> Vec<u32> {
        let last = slices.len() - 1;
        let all = (0..).zip(slices).map(|(at, &(start, end, class))| {
            let class = [FrameClass::Python, FrameClass::Range, FrameClass::Operator, FrameClass::Call]
                [class as usize];
            Slice::new((start, end), at, class, at)
        });
        let mut runs = SliceRuns::default();
        runs.extend(all);
        let mut stacks = vec![ROOT; slices.len()];
        let mut tree = StackTree::default();
        let (links, delays) = (&mut OperatorLinks::default(), &mut HostDelays::default());
        StackBuilder { tree: &mut tree, links, delays, left_out: 0, unclosed: 0 }
            .build_thread(runs, &mut stacks);
        let mut labels: Vec<u32> = tree.leaf_first(stacks[last]).map(|(label, _)| label).collect();
        labels.reverse();
        labels
    }

    #[test]
    fn a_range_that_outlives_its_function_stays_in_stacks_without_it() {
        // The slices are `main`, `__enter__`, the range that begins in `__enter__`, and a call inside the range after
        // `__enter__`.
        assert_eq!(stack(&[(0, 100, 0), (10, 20, 0), (15, 90, 1), (50, 60, 3)]), [0, 2, 3]);
        // The slices are those of the previous case, but one more slice was opened and closed before the call.
        assert_eq!(stack(&[(0, 100, 0), (10, 20, 0), (15, 90, 1), (30, 40, 2), (50, 60, 3)]), [0, 2, 4]);
        // The last call is made while both `__enter__` and the range are open.
        assert_eq!(stack(&[(0, 100, 0), (10, 20, 0), (15, 90, 1), (18, 60, 3)]), [0, 1, 2, 3]);
    }

    #[test]
    fn a_slice_is_closed_at_its_end_and_open_at_its_start_even_without_a_length() {
        assert_eq!(stack(&[(0, 10, 2), (10, 20, 3)]), [1]);
        assert_eq!(stack(&[(0, 16, 2), (10, 20, 3)]), [0, 1]);
        assert_eq!(stack(&[(10, 10, 2), (10, 10, 3)]), [0, 1]);
        assert_eq!(stack(&[(9, 9, 2), (10, 20, 3)]), [1]);
    }

    #[test]
    fn a_python_function_that_outlives_its_caller_ends_with_the_first_slice_in_it() {
        const US: i64 = 1000;
        let us = |slices: &[(i64, i64, u8)]| {
            let slices: Vec<_> =
                slices.iter().map(|(start, end, class)| (start * US, end * US, *class)).collect();
            stack(&slices)
        };
        // The slices are `main`, `step`, a function that seems to last until recording stops, and an operator in this
        // function. In each of the following cases, a call is added: in the operator, after the operator, or after the
        // end of `step`.
        let slices = [(0, 100, 0), (1, 50, 0), (2, 100, 0), (5, 9, 2)];
        let with_call = |start| [&slices[..], &[(start, start + 1, 3)]].concat();
        assert_eq!(us(&with_call(6)), [0, 1, 2, 3, 4]);
        assert_eq!(us(&with_call(20)), [0, 1, 4]);
        assert_eq!(us(&with_call(60)), [0, 4]);
        // The first slice in the function is a Python function. It is possible that `step`, and not the function,
        // called this Python function.
        assert_eq!(us(&[(0, 100, 0), (1, 50, 0), (2, 100, 0), (5, 9, 0), (6, 7, 3)]), [0, 1, 3, 4]);
        // In the next case, the function contains no slice.
        assert_eq!(us(&[(0, 100, 0), (1, 50, 0), (2, 100, 0), (60, 61, 3)]), [0, 3]);
        // In the next case, the function ends before recording stops.
        assert_eq!(us(&[(0, 110, 0), (1, 50, 0), (2, 100, 0), (5, 9, 2), (20, 21, 3)]), [0, 1, 2, 4]);
        // The times are in whole microseconds, so the function may seem to end 1 us after its caller.
        assert_eq!(us(&[(0, 110, 0), (1, 50, 0), (2, 51, 0), (5, 9, 2), (20, 21, 3)]), [0, 1, 2, 4]);
    }

    #[test]
    fn a_call_that_begins_just_before_the_end_of_a_slice_is_outside_the_slice() {
        // The slices are an operator, an operator inside it, and a call that ends after the inner operator.
        assert_eq!(stack(&[(0, 9_000, 2), (100, 1_150, 2), (1_000, 8_150, 3)]), [0, 2]);
        assert_eq!(
            stack(&[(0, 9_000, 2), (100, 2_000, 2), (1_000, 8_150, 3)]),
            [0, 1, 2],
            "a whole microsecond"
        );
        assert_eq!(stack(&[(0, 9_000, 2), (100, 1_150, 2), (1_000, 1_250, 3)]), [0, 1, 2], "most is inside");
        assert_eq!(stack(&[(0, 9_000, 2), (100, 1_150, 2), (1_000, 1_150, 3)]), [0, 1, 2]);
    }

    #[test]
    fn slices_that_begin_together_nest_by_length_then_class_then_file_order() {
        assert_eq!(stack(&[(5, 20, 2), (5, 30, 3), (5, 20, 0), (5, 20, 2), (5, 10, 3)]), [1, 2, 0, 3, 4]);
    }
}
