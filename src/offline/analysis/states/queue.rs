//! The number of operations of a stream that were launched and not finished.

use std::collections::VecDeque;

use super::collect::StreamOp;

/// Counts the operations of one stream that were launched and not finished, while the operations are walked.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// Ends of the operations that were not finished at the last launch.
    ends: VecDeque<u64>,
    last: (u64, u64),
    longest: u64,
    is_unsorted: bool,
}

impl Queue {
    /// Adds the next operation.
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

    /// Returns the maximum number. `ops` returns the operations again, which are needed if they were not launched, or did not
    /// end, in the order in which they began.
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

/// Returns the time at which an operation was launched. Operations without a launch count from their start.
pub(super) fn queued_since(op: &StreamOp) -> u64 {
    if op.call == 0 { op.start } else { op.call.min(op.start) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuflame_model::record::{ContextId, Work};

    /// Operations given by call, start and end.
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
        // The second is launched while the first runs, the third at its end.
        assert_eq!(longest(&[(1, 2, 10), (5, 10, 20), (20, 30, 40)]), 2);
        // Launches are not known.
        assert_eq!(longest(&[(0, 2, 10), (0, 10, 20)]), 1);
        // No operation takes time.
        assert_eq!(longest(&[(5, 5, 5), (5, 5, 5)]), 0);
        assert_eq!(longest(&[]), 0);
    }

    #[test]
    fn operations_in_any_order_are_counted() {
        // The first to begin is launched last, and ends last. From 4 on all three are in the queue.
        assert_eq!(longest(&[(4, 5, 50), (1, 6, 10), (2, 7, 9)]), 3);
        // The first ended when the last two were launched.
        assert_eq!(longest(&[(1, 2, 3), (6, 7, 20), (5, 8, 9)]), 2);
    }
}
