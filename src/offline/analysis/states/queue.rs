//! Computes the maximum number of operations of a stream that were in flight (launched but not finished) at the same
//! time.

use std::collections::VecDeque;

use super::collect::StreamOp;

/// Counts the operations of one stream that are in flight. The operations are added in the order in which they began.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// Ends of the operations that were still in flight at the last launch.
    ends: VecDeque<u64>,
    last: (u64, u64),
    longest: u64,
    is_unsorted: bool,
}

impl Queue {
    /// Adds the next operation of the stream.
    pub(super) fn add(&mut self, op: &StreamOp) {
        let entered = queued_since(op);
        self.is_unsorted |= entered < self.last.0 || op.end < self.last.1;
        if self.is_unsorted {
            return;
        }
        self.last = (entered, op.end);
        self.ends.push_back(op.end);
        while self.ends.front().is_some_and(|end| *end <= entered) {
            self.ends.pop_front();
        }
        self.longest = self.longest.max(self.ends.len() as u64);
    }

    /// Returns the maximum number of operations in flight. `ops` is a second iteration over the same operations. The
    /// second iteration is used only if the operations were not launched, or did not end, in the order in which they
    /// began.
    pub(super) fn longest<I: Iterator<Item = StreamOp>>(&self, ops: impl Fn() -> I) -> u64 {
        if !self.is_unsorted {
            return self.longest;
        }
        let mut entered: Vec<u64> = ops().map(|op| queued_since(&op)).collect();
        let mut left: Vec<u64> = ops().map(|op| op.end).collect();
        entered.sort();
        left.sort();
        let (mut done, mut most) = (0, 0);
        for (at, time) in entered.iter().enumerate() {
            while done < left.len() && left[done] <= *time {
                done += 1;
            }
            most = most.max((at + 1).saturating_sub(done));
        }
        most as u64
    }
}

/// Returns the time at which an operation was launched. If the launch is unknown, returns the time at which the
/// operation starts.
pub(super) fn queued_since(op: &StreamOp) -> u64 {
    if op.call == 0 { op.start } else { op.call.min(op.start) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuflame_model::record::{ContextId, Work};

    /// Returns the maximum number of operations in flight. The operations are given as (call, start, end).
    fn longest(ops: &[(u64, u64, u64)]) -> u64 {
        let op = |&(call, start, end): &(u64, u64, u64)| {
            let (call_ns, context) = (1, ContextId::FIRST);
            StreamOp { start, end, call, call_ns, context, work: Work::Set }
        };
        let mut queue = Queue::default();
        ops.iter().for_each(|one| queue.add(&op(one)));
        queue.longest(|| ops.iter().map(op))
    }

    #[test]
    fn operations_wait_in_a_queue_until_they_end() {
        // The second operation is launched while the first operation runs. The third operation is launched when the
        // second operation ends.
        assert_eq!(longest(&[(1, 2, 10), (5, 10, 20), (20, 30, 40)]), 2);
        // The launches of these operations are unknown.
        assert_eq!(longest(&[(0, 2, 10), (0, 10, 20)]), 1);
        // Both operations have zero duration.
        assert_eq!(longest(&[(5, 5, 5), (5, 5, 5)]), 0);
        assert_eq!(longest(&[]), 0);
    }

    #[test]
    fn operations_in_any_order_are_counted() {
        // The operation that begins first is launched last and ends last. At time 4, all three operations are in the
        // queue.
        assert_eq!(longest(&[(4, 5, 50), (1, 6, 10), (2, 7, 9)]), 3);
        // The first operation had ended when the other two operations were launched.
        assert_eq!(longest(&[(1, 2, 3), (6, 7, 20), (5, 8, 9)]), 2);
    }
}
