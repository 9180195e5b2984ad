//! Data structures for the ids by which operations are linked to the calls that launched them.

use std::cell::Cell;

use gpuflame_model::record::{IdMap, hash_one};

use super::call_records::CallRecords;
use super::op_records::OpRecord;

/// Returns the number of items at the beginning of `sorted` for which `is_before` returns true. The number is usually
/// small, so the search begins at the first item and doubles its step each time.
pub(super) fn count_while<T>(sorted: &[T], is_before: impl Fn(&T) -> bool) -> usize {
    let mut known = 0;
    let mut step = 1;
    while sorted.get(known + step - 1).is_some_and(&is_before) {
        known += step;
        step *= 2;
    }
    let next = &sorted[known..sorted.len().min(known + step)];
    known + next.partition_point(is_before)
}

/// The position that the previous search in a sorted list has found. In a trace, most searches find a position near the
/// previous one.
#[derive(Debug, Default)]
pub(super) struct LastFound(Cell<usize>);

impl LastFound {
    /// Returns the number of items for which `is_before` returns true, as [`slice::partition_point`] does.
    pub(super) fn partition_point<T>(&self, sorted: &[T], is_before: impl Fn(&T) -> bool) -> usize {
        let last = self.0.get().min(sorted.len());
        let found = match sorted[..last].last().is_none_or(&is_before) {
            true => last + count_while(&sorted[last..], is_before),
            false => sorted[..last].partition_point(is_before),
        };
        self.0.set(found);
        found
    }
}

/// Kind of ids by which operations are linked to calls.
pub(super) enum LinkIds {
    Correlation,
    /// External ids, keyed by the index of the call or operation.
    External {
        calls: IdMap<u32, u64>,
        ops: IdMap<u32, u64>,
    },
}

impl LinkIds {
    pub(super) fn is_correlation(&self) -> bool {
        matches!(self, Self::Correlation)
    }

    pub(super) fn of_call(&self, number: u32, calls: &CallRecords) -> u64 {
        match self {
            Self::Correlation => calls.correlation_of(number),
            Self::External { calls, .. } => calls.get(&number).copied().unwrap_or(0),
        }
    }

    pub(super) fn of_op(&self, number: u32, op: OpRecord<'_>) -> u64 {
        match self {
            Self::Correlation => op.correlation,
            Self::External { ops, .. } => ops.get(&number).copied().unwrap_or(0),
        }
    }
}

/// A set of ids that may give false positives: it may seem to contain ids that were not added.
pub(super) struct IdFilter {
    bits: Vec<u64>,
}

impl IdFilter {
    /// Number of bits in the filter per added id. With 8 bits, about an eighth of all ids that were not added are false
    /// positives.
    const BITS_PER_ID: usize = 8;

    pub(super) fn new(ids: impl ExactSizeIterator<Item = u64>) -> Self {
        let words = (ids.len() * Self::BITS_PER_ID / 64 + 1).next_power_of_two();
        let mut filter = Self { bits: vec![0; words] };
        for id in ids {
            let (word, bit) = filter.place(id);
            filter.bits[word] |= bit;
        }
        filter
    }

    fn place(&self, id: u64) -> (usize, u64) {
        let hash = hash_one(&id);
        (hash as usize >> 6 & (self.bits.len() - 1), 1 << (hash & 63))
    }

    pub(super) fn may_have(&self, id: u64) -> bool {
        let (word, bit) = self.place(id);
        self.bits[word] & bit != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_at_the_beginning_are_counted_in_lists_of_any_length() {
        for length in 0..40 {
            let calls: Vec<u32> = (0..length).collect();
            for first in 0..=length {
                assert_eq!(count_while(&calls, |call| *call < first), first as usize);
            }
        }
    }

    #[test]
    fn a_search_from_the_last_position_finds_items_before_and_after_it() {
        let (sorted, last) = ([2, 4, 4, 4, 6, 8, 8, 10], LastFound::default());
        for (wanted, position) in [(0, 0), (9, 7), (4, 1), (4, 1), (5, 4), (11, 8), (8, 5), (0, 0), (11, 8)] {
            assert_eq!(last.partition_point(&sorted, |item| *item < wanted), position, "{wanted}");
        }
        assert_eq!(last.partition_point(&sorted[..2], |item| *item < 3), 1, "the list may become shorter");
        assert_eq!(last.partition_point(&[0; 0], |item| *item < 3), 0);
    }
}
