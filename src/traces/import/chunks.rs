//! A list that is stored in chunks. A chunk stays at its address when the list grows. Chunks at the start of the list
//! can be freed while later chunks are still in use.

/// A list whose items are accessed by index.
#[derive(Debug)]
pub(super) struct Chunks<T>(Vec<Vec<T>>);

/// Number of items per chunk.
const CHUNK: usize = 4096;

impl<T> Default for Chunks<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Chunks<T> {
    pub(super) fn push(&mut self, item: T) {
        match self.0.last_mut().filter(|chunk| chunk.len() < CHUNK) {
            Some(chunk) => chunk.push(item),
            None => {
                // No capacity is reserved for the first chunk, so that a small trace uses little memory.
                let mut chunk = Vec::with_capacity(if self.0.is_empty() { 0 } else { CHUNK });
                chunk.push(item);
                self.0.push(chunk);
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        self.0.split_last().map_or(0, |(last, full)| full.len() * CHUNK + last.len())
    }

    /// Returns the item at the index `number`. This item must not have been freed.
    #[inline]
    pub(super) fn get(&self, number: u32) -> &T {
        &self.0[number as usize / CHUNK][number as usize % CHUNK]
    }

    /// Returns the item at the index `number` for modification. This item must not have been freed.
    #[inline]
    pub(super) fn get_mut(&mut self, number: u32) -> &mut T {
        &mut self.0[number as usize / CHUNK][number as usize % CHUNK]
    }

    /// Frees the chunk before the item at the index `number`, if this item is the first one of its chunk. The items of
    /// the freed chunk must not be accessed again.
    pub(super) fn free_before(&mut self, number: u32) {
        if let Some(chunk) = (number as usize / CHUNK).checked_sub(1)
            && (number as usize).is_multiple_of(CHUNK)
        {
            self.0[chunk] = Vec::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_keep_their_numbers_while_those_before_are_freed() {
        let mut chunks = Chunks::default();
        assert_eq!(chunks.len(), 0);
        (0..3 * CHUNK).for_each(|item| chunks.push(item));
        assert_eq!(chunks.len(), 3 * CHUNK);
        *chunks.get_mut(2 * CHUNK as u32) = 7;
        (0..=2 * CHUNK as u32).for_each(|number| chunks.free_before(number));
        assert_eq!((*chunks.get(2 * CHUNK as u32), *chunks.get(3 * CHUNK as u32 - 1)), (7, 3 * CHUNK - 1));
        assert_eq!(chunks.0[..2], [const { Vec::<usize>::new() }; 2]);
        assert_eq!(chunks.len(), 3 * CHUNK);
    }
}
