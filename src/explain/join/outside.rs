//! Stores the ids of launches that were made outside of windows, as ranges. Launches outside of windows do not have one
//! row each. An activity was launched outside of windows if its id is in a stored range and no launch row has this id.

use gpuflame_model::record::Nanos;

/// Maximum number of id ranges. All ranges together take 96 KiB. Ids below the oldest stored range are no longer found.
const MAX_RANGES: usize = 1 << 12;

/// A range of correlation ids that were unrolled to 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct IdRange {
    first: u64,
    last: u64,
    /// Time at which the last launch in the range ended.
    over: Nanos,
}

/// Ranges of correlation ids, in ascending order. The ranges do not overlap.
#[derive(Debug, Default)]
pub(super) struct OutsideRanges(Vec<IdRange>);

impl OutsideRanges {
    /// Adds the ids from `first` to `last`. Overlapping ranges are merged. Ranges overlap if different threads report
    /// them, or if a range has grown and is delivered again from its beginning.
    pub(super) fn add(&mut self, first: u64, last: u64, over: Nanos) {
        let mut range = IdRange { first, last: last.max(first), over };
        let from = self.0.partition_point(|kept| kept.last < first);
        let to = self.0.partition_point(|kept| kept.first <= range.last);
        for kept in &self.0[from..to.max(from)] {
            range.first = range.first.min(kept.first);
            range.last = range.last.max(kept.last);
            range.over = range.over.max(kept.over);
        }
        self.0.splice(from..to.max(from), [range]);
        if self.0.len() > MAX_RANGES {
            self.0.remove(0);
        }
    }

    /// Returns the time at which the last launch ended in the range that contains `id`. Returns `None` if no range
    /// contains `id`.
    pub(super) fn find(&self, id: u64) -> Option<Nanos> {
        let at = self.0.partition_point(|range| range.last < id);
        self.0.get(at).filter(|range| range.first <= id).map(|range| range.over)
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.0.capacity() * size_of::<IdRange>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_ranges_are_merged() {
        let mut outside = OutsideRanges::default();
        outside.add(10, 20, Nanos(5));
        outside.add(40, 40, Nanos(7));
        outside.add(15, 30, Nanos(6));
        assert_eq!(outside.0.len(), 2);
        let found = [9, 10, 30, 31, 40, 41].map(|id| outside.find(id).map(|over| over.0));
        assert_eq!(found, [None, Some(6), Some(6), None, Some(7), None]);
        outside.add(5, 50, Nanos(1));
        assert_eq!(outside.0, [IdRange { first: 5, last: 50, over: Nanos(7) }]);
    }

    #[test]
    fn the_oldest_of_too_many_ranges_is_forgotten() {
        let mut outside = OutsideRanges::default();
        (0..MAX_RANGES as u64 + 1).for_each(|at| outside.add(10 * at, 10 * at + 1, Nanos(at)));
        assert_eq!(outside.0.len(), MAX_RANGES);
        assert_eq!((outside.find(0), outside.find(10)), (None, Some(Nanos(1))));
    }
}
