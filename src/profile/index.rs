//! The look-up part of an interning table: positions by hash, 5 bytes a bucket.
//!
//! The things themselves lie in the caller's `Vec`, once. A `HashMap` from thing to position would store
//! each a second time, which for stack nodes is more than the node itself.

use hashbrown::HashTable;

/// Positions by hash.
#[derive(Clone, Debug, Default)]
pub(crate) struct Index(HashTable<u32>);

impl Index {
    /// One with room for so many.
    pub(crate) fn with_room(count: usize) -> Self {
        Self(HashTable::with_capacity(count))
    }

    /// The position of a thing with this hash for which `is_it` holds.
    pub(crate) fn find(&self, hash: u64, is_it: impl Fn(u32) -> bool) -> Option<u32> {
        self.0.find(hash, |&position| is_it(position)).copied()
    }

    /// Adds the position of a thing that [`Index::find`] did not find. `hash_of` gives the hashes of the
    /// things added before.
    pub(crate) fn insert(&mut self, hash: u64, position: u32, hash_of: impl Fn(u32) -> u64) {
        self.0.insert_unique(hash, position, |&position| hash_of(position));
    }

    /// Has the thing with this hash that is at `old`, which was added, be found at `new`.
    pub(crate) fn replace(&mut self, hash: u64, old: u32, new: u32) {
        *self.0.find_mut(hash, |&position| position == old).expect("it was added") = new;
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        self.0.allocation_size()
    }
}
