//! Defines a table that interns the names in a trace. Interning saves memory, because millions of events use a few
//! hundred names.

use super::Text;
use gpuflame_model::record::IdMap;

/// Table of the interned names. Each name is stored once, and is identified by an index.
#[derive(Clone, Debug, Default)]
pub struct NameTable {
    texts: Vec<Box<str>>,
    numbers: IdMap<Box<[u8]>, u32>,
}

impl NameTable {
    /// Interns `text`, and returns the index of the name.
    pub(crate) fn intern(&mut self, text: Text<'_>) -> u32 {
        match self.numbers.get(text.raw()) {
            Some(&number) => number,
            None => self.insert(text.raw().into(), text.decode().into()),
        }
    }

    fn insert(&mut self, raw: Box<[u8]>, text: Box<str>) -> u32 {
        let number = self.texts.len() as u32;
        self.texts.push(text);
        self.numbers.insert(raw, number);
        number
    }

    /// Returns the name that has this index. The index must have been returned by this table.
    pub fn text(&self, number: u32) -> &str {
        &self.texts[number as usize]
    }

    /// Returns all names in the order of their indexes.
    pub(crate) fn texts(&self) -> impl Iterator<Item = &str> {
        self.texts.iter().map(|text| &**text)
    }

    /// Returns the number of names.
    pub fn len(&self) -> usize {
        self.texts.len()
    }

    /// Whether the table is empty.
    pub fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }

    /// Adds the names from a later part of the file. Returns the new index of each added name, at the position of its
    /// old index.
    pub(crate) fn append(&mut self, later: Self) -> Vec<u32> {
        let mut raw = vec![Box::<[u8]>::default(); later.texts.len()];
        later.numbers.into_iter().for_each(|(text, number)| raw[number as usize] = text);
        let texts = raw.into_iter().zip(later.texts);
        texts
            .map(|(raw, text)| match self.numbers.get(&raw) {
                Some(&number) => number,
                None => self.insert(raw, text),
            })
            .collect()
    }
}
