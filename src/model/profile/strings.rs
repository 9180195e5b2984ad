//! Stores the strings of a profile in one table. Each string is stored once, and all strings share one allocation.

use super::index::Index;
use crate::record::hash_one;

/// Id of a string in [`StringTable`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StringId(pub(super) u32);

impl StringId {
    /// Returns the id of the string at position `at` of the table.
    pub fn from_index(at: u32) -> Self {
        Self(at)
    }

    /// Returns the position of the string in the order in which strings were stored.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Interned strings.
#[derive(Clone, Debug, Default)]
pub struct StringTable {
    text: String,
    /// For each string, its end offset in `text`. Each string starts at the end of the previous string.
    ends: Vec<usize>,
    index: Index,
}

impl StringTable {
    /// Creates an empty table with capacity for `count` strings of `bytes` bytes in total.
    pub fn with_capacity(count: usize, bytes: usize) -> Self {
        let text = String::with_capacity(bytes);
        Self { text, ends: Vec::with_capacity(count), index: Index::with_capacity(count) }
    }

    /// Returns the id of `text`. Stores `text` if the table does not contain it yet.
    pub fn intern(&mut self, text: &str) -> StringId {
        let hash = hash_one(text);
        if let Some(at) = self.index.find(hash, |at| self.get(StringId(at)) == text) {
            return StringId(at);
        }
        let at = self.ends.len() as u32;
        self.index.insert(hash, at, |at| hash_one(slice(&self.text, &self.ends, at)));
        self.text.push_str(text);
        self.ends.push(self.text.len());
        StringId(at)
    }

    /// Returns the text of `id`. The id must come from this table.
    pub fn get(&self, id: StringId) -> &str {
        slice(&self.text, &self.ends, id.0)
    }

    /// Returns the number of strings.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether the table is empty.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Returns the number of bytes that the table holds on the heap.
    pub fn heap_bytes(&self) -> usize {
        self.text.capacity() + self.ends.capacity() * size_of::<usize>() + self.index.heap_bytes()
    }
}

/// Returns the number of bytes that a string takes in the table: for its text, its end offset, and a bucket of the
/// index.
pub(super) fn bytes(text: &str) -> usize {
    text.len() + size_of::<usize>() + 6
}

fn slice<'a>(text: &'a str, ends: &[usize], at: u32) -> &'a str {
    let start = (at as usize).checked_sub(1).map_or(0, |before| ends[before]);
    &text[start..ends[at as usize]]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_string_is_stored_once_and_found_again() {
        let mut strings = StringTable::default();
        let ids = ["main", "", "déjà vu", "main", ""].map(|text| strings.intern(text));
        assert_eq!(ids.map(|id| strings.get(id)), ["main", "", "déjà vu", "main", ""]);
        assert_eq!(strings.len(), 3);
    }
}
