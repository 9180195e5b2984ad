//! All text of a profile, each string once, in one allocation.

use super::index::Index;
use crate::record::hash_one;

/// A string of [`Strings`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StringId(pub(super) u32);

impl StringId {
    /// That of the string which was the `at`th to be stored.
    pub(crate) fn at(at: u32) -> Self {
        Self(at)
    }

    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// Interned strings.
#[derive(Clone, Debug, Default)]
pub struct Strings {
    text: String,
    /// Where each string ends in `text`; it begins where the one before ends.
    ends: Vec<usize>,
    index: Index,
}

impl Strings {
    /// None yet, with room for so many of so many bytes in all.
    pub(crate) fn with_room(count: usize, bytes: usize) -> Self {
        let text = String::with_capacity(bytes);
        Self { text, ends: Vec::with_capacity(count), index: Index::with_room(count) }
    }

    /// The id of `text`, which is stored on first sight.
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

    /// The text of `id`, which must come from this table.
    pub fn get(&self, id: StringId) -> &str {
        slice(&self.text, &self.ends, id.0)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Bytes held on the heap.
    pub fn heap_bytes(&self) -> usize {
        self.text.capacity() + self.ends.capacity() * size_of::<usize>() + self.index.heap_bytes()
    }
}

/// What a string takes: its text, where it ends, and a bucket of the index.
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
        let mut strings = Strings::default();
        let ids = ["main", "", "déjà vu", "main", ""].map(|text| strings.intern(text));
        assert_eq!(ids.map(|id| strings.get(id)), ["main", "", "déjà vu", "main", ""]);
        assert_eq!(strings.len(), 3);
    }
}
