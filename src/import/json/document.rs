//! A whole JSON file in memory, for formats that refer back and forth. Values are looked at where they
//! stand; nothing is built of them.

use std::io::Read;

use super::super::Text;
use super::buffer::PADDING;
use super::cursor::{self, Shape, Value, blanks};
use super::number::{integer, unsigned};
use crate::error::{Error, ErrorKind, Result};

#[cfg(not(target_arch = "x86_64"))]
type Here = super::mask::Portable;
#[cfg(target_arch = "x86_64")]
type Here = super::mask::Sse2;

/// No larger file is taken into memory.
const LARGEST: u64 = 4 << 30;

/// The bytes of a file.
pub(crate) struct Document {
    padded: Vec<u8>,
}

impl Document {
    pub(crate) fn read(input: impl Read) -> Result<Self> {
        let mut padded = Vec::new();
        input.take(LARGEST).read_to_end(&mut padded)?;
        if padded.len() as u64 == LARGEST {
            return Err(Error::new(
                ErrorKind::Format,
                "is larger than 4 GiB, which is more than is taken into memory",
            ));
        }
        padded.extend_from_slice(&[0; PADDING]);
        Ok(Self { padded })
    }

    pub(crate) fn bytes(&self) -> u64 {
        (self.padded.len() - PADDING) as u64
    }

    /// The value that the file is.
    pub(crate) fn root(&self) -> Result<Node<'_>> {
        let at = blanks(&self.padded, 0);
        let (value, _) = cursor::value::<Here>(&self.padded, at).map_err(|stop| {
            let what = format!("cut short or damaged: {} should stand at byte {}", stop.wanted, stop.at);
            Error::new(ErrorKind::Format, what)
        })?;
        Ok(Node { padded: &self.padded, value })
    }
}

/// A value of a document.
#[derive(Clone, Copy)]
pub(crate) struct Node<'a> {
    padded: &'a [u8],
    value: Value,
}

impl<'a> Node<'a> {
    /// The value of a key, by looking through all before it.
    pub(crate) fn get(self, key: &str) -> Option<Self> {
        self.entries().find(|(name, _)| &*name.decode() == key).map(|(_, value)| value)
    }

    /// The keys and values of an object; nothing for other values.
    pub(crate) fn entries(self) -> impl Iterator<Item = (Text<'a>, Self)> {
        let mut at = self.inside(b'{');
        std::iter::from_fn(move || {
            let from = at.filter(|&at| self.padded[at] == b'"')?;
            let key = cursor::string::<Here>(self.padded, from + 1).ok()?;
            let behind = cursor::colon(self.padded, key.end as usize + 1).ok()?;
            let (value, next) = self.value(behind)?;
            at = next;
            Some((Text::json(key.of(self.padded), key.shape == Shape::Escaped), value))
        })
    }

    /// The elements of an array; nothing for other values.
    pub(crate) fn items(self) -> impl Iterator<Item = Self> {
        let mut at = self.inside(b'[');
        std::iter::from_fn(move || {
            let (value, next) = self.value(at?)?;
            at = next;
            Some(value)
        })
    }

    /// A string.
    pub(crate) fn text(self) -> Text<'a> {
        Text::json(self.value.of(self.padded), self.value.shape == Shape::Escaped)
    }

    pub(crate) fn integer(self) -> Option<i64> {
        integer(self.value.of(self.padded))
    }

    pub(crate) fn unsigned(self) -> Option<u64> {
        unsigned(self.value.of(self.padded))
    }

    fn inside(self, bracket: u8) -> Option<usize> {
        let start = self.value.start as usize;
        let is_it = self.value.shape == Shape::Nested && self.padded[start] == bracket;
        is_it.then(|| blanks(self.padded, start + 1))
    }

    /// The value at `at`, and where the next one of the same array or object stands.
    fn value(self, at: usize) -> Option<(Self, Option<usize>)> {
        let (value, next) = cursor::value::<Here>(self.padded, at).ok()?;
        let next = blanks(self.padded, next);
        let next = (self.padded[next] == b',').then(|| blanks(self.padded, next + 1));
        Some((Self { value, ..self }, next))
    }
}
