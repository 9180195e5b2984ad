//! How long a device was busy: the union of the times of its activities, in one pass and bounded space.
//!
//! Activities arrive roughly in order, but the tracer's buffers are unordered among each other, so the
//! newest stretches of busy time are kept apart until they are [`HORIZON`] behind. An activity that
//! reaches back beyond that is cut off there, and what is cut off is counted as late: the union is too
//! small by at most that much. Unordered stretches wait in one vector that is sorted when it is full,
//! which costs less for each activity than any ordered map.

use crate::record::Nanos;

/// Stretches that are kept apart: 1 MiB for each device that did anything, with room to sort.
const ROOM: usize = 1 << 16;
/// How many of them stay when there is no more room.
const HORIZON: usize = ROOM / 2;

/// A stretch of time that the device was busy in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Stretch {
    start: u64,
    end: u64,
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Busy {
    stretches: Vec<Stretch>,
    /// Of everything that ended before `floor`.
    closed: u64,
    floor: u64,
    late: u64,
    first: u64,
    last: u64,
}

impl Default for Busy {
    fn default() -> Self {
        Self { stretches: Vec::new(), closed: 0, floor: 0, late: 0, first: u64::MAX, last: 0 }
    }
}

impl Busy {
    /// Adds an activity; `start <= end`.
    pub(super) fn add(&mut self, start: u64, end: u64) {
        self.first = self.first.min(start);
        self.last = self.last.max(end);
        let from = start.max(self.floor).min(end);
        self.late = self.late.saturating_add(from - start);
        if from == end {
            return;
        }
        if let Some(newest) = self.stretches.last_mut()
            && newest.start <= from
            && from <= newest.end
        {
            newest.end = newest.end.max(end);
            return;
        }
        if self.stretches.len() == ROOM {
            self.make_room();
        }
        self.stretches.push(Stretch { start: from, end });
    }

    /// The union so far and how much of it may be missing, in nanoseconds.
    pub(super) fn total(&self) -> (u64, u64) {
        let mut stretches = self.stretches.clone();
        merge(&mut stretches);
        (self.closed + stretches.iter().map(|s| s.end - s.start).sum::<u64>(), self.late)
    }

    /// The first start and the last end.
    pub(super) fn extent(&self) -> (Nanos, Nanos) {
        (Nanos(self.first.min(self.last)), Nanos(self.last))
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.stretches.capacity() * size_of::<Stretch>()
    }

    fn make_room(&mut self) {
        merge(&mut self.stretches);
        let closing = self.stretches.len().saturating_sub(HORIZON);
        for stretch in self.stretches.drain(..closing) {
            self.closed += stretch.end - stretch.start;
            self.floor = stretch.end;
        }
    }
}

/// Sorts, and makes one stretch of those that touch. The sort finds the ordered runs that the tracer's
/// buffers are, so it is nearly linear.
fn merge(stretches: &mut Vec<Stretch>) {
    stretches.sort();
    stretches.dedup_by(|next, kept| {
        let touch = next.start <= kept.end;
        if touch {
            kept.end = kept.end.max(next.end);
        }
        touch
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::testing::Chance;

    /// The union by marking every nanosecond.
    fn oracle(times: &[(u64, u64)]) -> u64 {
        let mut marks = vec![false; 4000];
        for &(start, end) in times {
            marks[start as usize..end as usize].fill(true);
        }
        marks.into_iter().filter(|&mark| mark).count() as u64
    }

    #[test]
    fn the_union_is_that_of_the_oracle_in_any_order() {
        for seed in 1..200 {
            let mut chance = Chance::new(seed);
            let mut time = || {
                let start = chance.below(3900);
                (start, start + chance.below(60))
            };
            let times: Vec<_> = (0..60).map(|_| time()).collect();
            let mut busy = Busy::default();
            times.iter().for_each(|&(start, end)| busy.add(start, end));
            assert_eq!(busy.total(), (oracle(&times), 0));
        }
    }

    #[test]
    fn more_stretches_than_there_is_room_for_are_still_exact_when_nearly_in_order() {
        let mut chance = Chance::new(1);
        let mut starts: Vec<u64> = (0..500_000).map(|i| 1000 + i * 10).collect();
        chance.shuffle(&mut starts, 10_000);
        let mut busy = Busy::default();
        starts.iter().for_each(|&start| busy.add(start, start + 7));
        assert_eq!(busy.total(), (3_500_000, 0));
        assert_eq!(busy.extent(), (Nanos(1000), Nanos(1000 + 499_999 * 10 + 7)));
        assert!(busy.heap_bytes() <= ROOM * 16);
    }

    #[test]
    fn what_comes_too_late_is_counted_and_bounds_the_error() {
        let mut busy = Busy::default();
        (0..200_000_u64).for_each(|i| busy.add(1000 + i * 10, 1007 + i * 10));
        busy.add(0, 100);
        busy.add(1000, 1007);
        let (sum, late) = busy.total();
        assert_eq!((sum, late), (1_400_000, 107));
    }
}
