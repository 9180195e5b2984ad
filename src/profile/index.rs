//! The look-up part of an interning table: an open-addressed table of positions, 4 bytes a bucket.
//!
//! The things themselves lie in the caller's `Vec`, once. A `HashMap` from thing to position would store
//! each a second time, which for stack nodes is more than the node itself.

const EMPTY: u32 = u32::MAX;

/// Positions by hash. Never more than three quarters full.
#[derive(Clone, Debug, Default)]
pub(crate) struct Index {
    buckets: Vec<u32>,
    len: usize,
}

impl Index {
    /// One with room for so many: it does not grow before, and hardly ever has two things in one place.
    pub(crate) fn with_room(count: usize) -> Self {
        Self { buckets: vec![EMPTY; (count * 2).next_power_of_two()], len: 0 }
    }

    /// The position of a thing with this hash for which `is_it` holds.
    pub(crate) fn find(&self, hash: u64, is_it: impl Fn(u32) -> bool) -> Option<u32> {
        let mask = self.buckets.len().checked_sub(1)?;
        let mut at = hash as usize & mask;
        while self.buckets[at] != EMPTY {
            if is_it(self.buckets[at]) {
                return Some(self.buckets[at]);
            }
            at = (at + 1) & mask;
        }
        None
    }

    /// Adds the position of a thing that [`Index::find`] did not find. `hash_of` gives the hashes of the
    /// things added before.
    pub(crate) fn insert(&mut self, hash: u64, position: u32, hash_of: impl Fn(u32) -> u64) {
        if (self.len + 1) * 4 > self.buckets.len() * 3 {
            let size = (self.buckets.len() * 2).max(16);
            let old = std::mem::replace(&mut self.buckets, vec![EMPTY; size]);
            old.into_iter().filter(|&p| p != EMPTY).for_each(|p| self.put(hash_of(p), p));
        }
        self.put(hash, position);
        self.len += 1;
    }

    /// Has the thing with this hash that is at `old`, which was added, be found at `new`.
    pub(crate) fn replace(&mut self, hash: u64, old: u32, new: u32) {
        let mask = self.buckets.len() - 1;
        let mut at = hash as usize & mask;
        while self.buckets[at] != old {
            debug_assert_ne!(self.buckets[at], EMPTY, "it was never added");
            at = (at + 1) & mask;
        }
        self.buckets[at] = new;
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        self.buckets.capacity() * size_of::<u32>()
    }

    fn put(&mut self, hash: u64, position: u32) {
        let mask = self.buckets.len() - 1;
        let mut at = hash as usize & mask;
        while self.buckets[at] != EMPTY {
            at = (at + 1) & mask;
        }
        self.buckets[at] = position;
    }
}
