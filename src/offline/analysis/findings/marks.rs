//! A map from small integers to values. The map can be cleared in constant time. Clearing must be fast, because the map
//! is cleared for each gap of a trace, and a trace may have a million gaps.

use gpuflame_model::record::IdMap;

/// Map from integers to values, which can be cleared in constant time.
#[derive(Debug, Default)]
pub(super) struct Marks {
    /// Values of small keys, each as (round, value). The round of an entry is the value that the field `round` had when
    /// the entry was set. A value that was set in an earlier round counts as removed.
    listed: Vec<(u32, u32)>,
    others: IdMap<u32, u32>,
    round: u32,
}

/// Keys below this limit are looked up in a list instead of a hash table. The list of values takes at most 8 MB.
pub(super) const MAX_LISTED: u32 = 1 << 20;

impl Marks {
    /// Removes all values by starting a new round.
    pub(super) fn clear(&mut self) {
        self.round += 1;
        self.others.clear();
    }

    pub(super) fn get(&self, number: u32) -> Option<usize> {
        if number >= MAX_LISTED {
            return self.others.get(&number).map(|value| *value as usize);
        }
        let &(round, value) = self.listed.get(number as usize)?;
        (round == self.round).then_some(value as usize)
    }

    pub(super) fn set(&mut self, number: u32, value: usize) {
        if number >= MAX_LISTED {
            self.others.insert(number, value as u32);
            return;
        }
        if self.listed.len() <= number as usize {
            // Rounds are counted from 1, so an entry with round 0 has no value.
            self.listed.resize(number as usize + 1, (0, 0));
        }
        self.listed[number as usize] = (self.round, value as u32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_last_until_all_are_removed() {
        let mut marks = Marks::default();
        for round in 0..3 {
            marks.clear();
            for number in [0, 7, MAX_LISTED - 1, MAX_LISTED, u32::MAX] {
                assert_eq!(marks.get(number), None);
                marks.set(number, round);
                assert_eq!(marks.get(number), Some(round));
            }
            assert_eq!((marks.get(6), marks.get(7)), (None, Some(round)));
        }
    }
}
