//! Stores the times in a trace in 4 bytes each. Consecutive times in a trace are less than a few seconds apart, so only
//! the difference between a time and a nearby base time is stored.

use gpuflame_model::record::IdMap;

use super::chunks::Chunks;

/// A list of times. Each time is accessed by its index.
#[derive(Debug, Default)]
pub(super) struct NearTimes {
    /// Difference between each time and the base of its block, or [`FAR`] if the time is in `far`.
    offsets: Chunks<u32>,
    /// Base of each block. The base is a time that is [`MARGIN_NS`] before the first time in the block.
    bases: Vec<i64>,
    far: IdMap<u32, i64>,
}

/// Number of times per block. All times in a block have the same base.
const BLOCK: usize = 64;
/// Time in ns by which the base of a block is before the first time in the block. This margin is needed because other
/// times in the block may be before the first entry.
const MARGIN_NS: i64 = 1 << 31;
/// Marks a time whose difference from the base does not fit into 4 bytes.
const FAR: u32 = u32::MAX;

impl NearTimes {
    pub(super) fn push(&mut self, time: i64) {
        let number = self.offsets.len();
        if number.is_multiple_of(BLOCK) {
            self.bases.push(time.saturating_sub(MARGIN_NS));
        }
        let offset = time.checked_sub(self.bases[number / BLOCK]);
        let offset = offset.and_then(|offset| u32::try_from(offset).ok()).unwrap_or(FAR);
        self.offsets.push(offset);
        if offset == FAR {
            self.far.insert(number as u32, time);
        }
    }

    /// Frees the times before the index `number`, in the same way as [`Chunks::free_before`].
    pub(super) fn free_before(&mut self, number: u32) {
        self.offsets.free_before(number);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = i64> {
        (0..self.offsets.len() as u32).map(|number| self.get(number))
    }

    #[inline]
    pub(super) fn get(&self, number: u32) -> i64 {
        match *self.offsets.get(number) {
            FAR => self.far_time(number),
            offset => self.bases[number as usize / BLOCK] + i64::from(offset),
        }
    }

    #[cold]
    fn far_time(&self, number: u32) -> i64 {
        self.far.get(&number).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_any_distance_and_order_come_back() {
        let near = (0..200).map(|at| 1_700_000_000_000_000_000 + at * 3_000_000);
        let extremes = [0, i64::MIN, i64::MAX, -1, 1 << 31, (1 << 32) - 1, 1 << 32, i64::MAX - 1];
        let all: Vec<i64> = near.clone().rev().chain(extremes).chain([7; 100]).chain(extremes).collect();
        let mut times = NearTimes::default();
        all.iter().for_each(|time| times.push(*time));
        assert!((0..).zip(&all).all(|(number, time)| times.get(number) == *time));
        let mut times = NearTimes::default();
        near.for_each(|time| times.push(time));
        assert!(times.far.is_empty(), "64 neighbours are at most 0.2 s apart");
    }
}
