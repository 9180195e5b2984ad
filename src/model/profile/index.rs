//! An index for a table of interned values. The index maps the hash of a value to the value's position in a `Vec`, with
//! 5 bytes per bucket.
//!
//! The values are stored only once, in the caller's `Vec`. A `HashMap` from value to position would store each value
//! twice. For nodes of the stack tree, an entry of a `HashMap` would be larger than the node itself.

use hashbrown::HashTable;

/// Maps hashes of values to positions of values.
#[derive(Clone, Debug, Default)]
pub struct Index(HashTable<u32>);

impl Index {
    /// Creates an index with capacity for `count` entries.
    pub fn with_capacity(count: usize) -> Self {
        Self(HashTable::with_capacity(count))
    }

    /// Returns the position of the value that has this hash and for which `matches` returns true.
    pub fn find(&self, hash: u64, matches: impl Fn(u32) -> bool) -> Option<u32> {
        self.0.find(hash, |&position| matches(position)).copied()
    }

    /// Adds the position of a value for which [`Index::find`] found no position. `hash_of` must return the hash of the
    /// value at a given position. While the table grows, `hash_of` is called for values that were added earlier.
    pub fn insert(&mut self, hash: u64, position: u32, hash_of: impl Fn(u32) -> u64) {
        self.0.insert_unique(hash, position, |&position| hash_of(position));
    }

    /// Changes the stored position of the value with this hash from `old` to `new`.
    pub fn replace(&mut self, hash: u64, old: u32, new: u32) {
        *self.0.find_mut(hash, |&position| position == old).expect("it was added") = new;
    }

    /// Size of the table in bytes.
    pub fn heap_bytes(&self) -> usize {
        self.0.allocation_size()
    }
}
