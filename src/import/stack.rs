//! What a thread was in when it made a call: the stretches of time that enclose the call, outermost first.
//!
//! Traces with times cut to microseconds have children that seem to end a little behind their parents, so
//! a stretch belongs to the innermost one that has not ended when it *begins*, wherever it ends.

use std::cmp::Reverse;

use super::work::CallRecord;
use crate::record::IdMap;

/// A stretch of time on a thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interval {
    pub(super) start: i64,
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
    /// Finds the stacks of the calls of one thread.
    pub(super) fn thread(&mut self, mut intervals: Vec<Interval>, calls: &mut [CallRecord]) {
        intervals.sort_by_key(|interval| (interval.start, Reverse(interval.end), interval.rank));
        let mut open: Vec<(Interval, u32)> = Vec::new();
        for interval in intervals {
            while open.last().is_some_and(|(outer, _)| !encloses(outer, &interval)) {
                open.pop();
            }
            let node = self.child(open.last().map_or(ROOT, |&(_, node)| node), interval.label);
            if let Some(call) = interval.call {
                calls[call as usize].stack = node;
            }
            open.push((interval, node));
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

/// Whether `inner`, which begins no earlier, lies in `outer`.
fn encloses(outer: &Interval, inner: &Interval) -> bool {
    inner.start < outer.end || (inner.start == outer.end && inner.end <= outer.end)
}
