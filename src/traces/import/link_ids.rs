//! The ids by which operations find the calls that launched them.

use gpuflame_model::record::{IdMap, hash_one};

use super::call_records::CallRecords;
use super::op_records::OpRecord;

/// Returns the number of calls at the beginning of `calls` for which `is_before` returns true. There are usually few, so the
/// search goes further in ever larger steps.
pub(super) fn count_while(calls: &[u32], is_before: impl Fn(&u32) -> bool) -> usize {
    let mut known = 0;
    let mut step = 1;
    while calls.get(known + step - 1).is_some_and(&is_before) {
        known += step;
        step *= 2;
    }
    let next = &calls[known..calls.len().min(known + step)];
    known + next.partition_point(is_before)
}

/// The ids by which operations are linked to calls.
pub(super) enum LinkIds {
    Correlation,
    /// External ids, by number of the call and of the operation.
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

/// A set of ids that may contain a few more ids than it was made of.
pub(super) struct IdFilter {
    bits: Vec<u64>,
}

impl IdFilter {
    /// Number of bits for each id. With 8 bits, it contains an eighth of the other ids.
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
}
