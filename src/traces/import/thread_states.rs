//! Stores the stacks that a thread had over time, in about 5 bytes per stack. In a program that launches work
//! continually, each slice results in a new state. A trace of half a gigabyte may then contain a million states.

use gpuflame_model::record::{Fields, Payload};

/// States of one thread. A state is the stack that the thread had until the next state began.
#[derive(Debug, Default)]
pub(super) struct ThreadStates {
    /// Encoded states. Encoded states. Each state consists of the difference from the start of the previous state, and
    /// of the stack plus 1.
    bytes: Vec<u8>,
    last: i64,
}

impl ThreadStates {
    /// Adds a state, which means that the thread had the stack `stack` after the time `since`.
    pub(super) fn push(&mut self, since: i64, stack: u32) {
        let mut payload = Payload(&mut self.bytes);
        // The empty stack is more frequent than any other stack. The empty stack has the value `u32::MAX`. Adding 1
        // changes the value of the empty stack to 0, which takes only one byte.
        payload.difference(since as u64, self.last as u64).varint(stack.wrapping_add(1).into());
        self.last = since;
    }

    /// Returns the states in the order in which they were added, as pairs of start time and stack.
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
