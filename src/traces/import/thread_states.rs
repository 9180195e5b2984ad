//! The stacks of a thread by time, in about 5 bytes each. A program that launches all the time has a state for each slice:
//! a million in half a gigabyte.

use gpuflame_model::record::{Fields, Payload};

/// States of a thread, each from its start to the start of the next one.
#[derive(Debug, Default)]
pub(super) struct ThreadStates {
    /// For each state, the difference to the start of the state before, and the stack plus 1.
    bytes: Vec<u8>,
    last: i64,
}

impl ThreadStates {
    /// Adds the state of being in `stack` from `since` on.
    pub(super) fn push(&mut self, since: i64, stack: u32) {
        let mut payload = Payload(&mut self.bytes);
        // The empty stack, which is the most frequent one, has the highest number.
        payload.difference(since as u64, self.last as u64).varint(stack.wrapping_add(1).into());
        self.last = since;
    }

    /// Returns the states in the order in which they were added, as (start, stack).
    pub(super) fn iter(&self) -> impl Iterator<Item = (i64, u32)> {
        let (mut fields, mut last) = (Fields(&self.bytes), 0);
        std::iter::from_fn(move || {
            last = fields.difference(last)?;
            Some((last as i64, (fields.varint()? as u32).wrapping_sub(1)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::slices::ROOT;
    use super::*;

    #[test]
    fn states_come_back_as_they_were_added() {
        let added = [
            (i64::MIN, 0),
            (-1, ROOT),
            (0, 7),
            (0, 127),
            (1_700_000_000_000_000_000, ROOT),
            (1_700_000_000_000_040_000, 3_000_000),
            (i64::MAX, ROOT - 1),
            (5, 1),
        ];
        let mut states = ThreadStates::default();
        added.iter().for_each(|&(since, stack)| states.push(since, stack));
        assert_eq!(states.iter().collect::<Vec<_>>(), added);
    }
}
