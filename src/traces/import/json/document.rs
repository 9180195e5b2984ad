//! A JSON file that is held in memory as a whole, for formats in which elements refer to earlier and later elements.
//! Values are read from the text when they are needed, without building a tree.

use std::io::Read;

use super::super::Text;
use super::buffer::PADDING;
use super::cursor::{self, Shape, Value, skip_blanks};
use super::damage;
use super::number::{parse_integer, parse_unsigned};
use gpuflame_model::error::{Error, ErrorKind, Result};

#[cfg(not(target_arch = "x86_64"))]
type BaselineSet = super::mask::Portable;
#[cfg(target_arch = "x86_64")]
type BaselineSet = super::mask::Sse2;

/// Maximum size in bytes of a JSON file that is read into memory.
const MAX_FILE_BYTES: u64 = 4 << 30;

/// The text of a JSON file.
pub struct Document {
    padded: Vec<u8>,
}

impl Document {
    /// Reads the whole file into memory.
    pub fn read(input: impl Read) -> Result<Self> {
        let mut padded = Vec::new();
        input.take(MAX_FILE_BYTES).read_to_end(&mut padded)?;
        if padded.len() as u64 == MAX_FILE_BYTES {
            return Err(Error::new(
                ErrorKind::Format,
                "is larger than 4 GiB, the limit for files that are read into memory",
            ));
        }
        padded.extend_from_slice(&[0; PADDING]);
        Ok(Self { padded })
    }

    /// Creates a document from a text that is in memory.
    pub fn from_bytes(text: &[u8]) -> Self {
        Self { padded: [text, &[0; PADDING]].concat() }
    }

    /// Replaces each byte that is not UTF-8 by an escape such as `\xe9`, so that the rest of the value can be shown.
    #[must_use]
    pub fn with_escaped_bytes(self) -> Self {
        if std::str::from_utf8(&self.padded).is_ok() {
            return self;
        }
        let mut padded = Vec::with_capacity(self.padded.len());
        for chunk in self.padded.utf8_chunks() {
            padded.extend_from_slice(chunk.valid().as_bytes());
            for byte in chunk.invalid() {
                padded.extend_from_slice(format!("\\\\x{byte:02x}").as_bytes());
            }
        }
        Self { padded }
    }

    /// Returns the size of the file in bytes.
    pub fn bytes(&self) -> u64 {
        (self.padded.len() - PADDING) as u64
    }

    /// Returns the outermost value in the file.
    pub fn root(&self) -> Result<Node<'_>> {
        let at = skip_blanks(&self.padded, 0);
        let (value, _) = cursor::read_value::<BaselineSet>(&self.padded, at).map_err(|stop| {
            let what = format!("truncated or damaged: expected {} at byte {}", stop.expected, stop.at);
            Error::new(ErrorKind::Format, what)
        })?;
        Ok(Node { padded: &self.padded, value })
    }
}

impl Document {
    /// Checks the syntax of the whole file, which must consist of a single value. [`Node`] itself skips damaged values
    /// without reporting an error.
    ///
    /// # Errors
    /// Returns a `Format` error with the position of the first invalid byte.
    pub fn check_syntax(&self) -> Result<()> {
        let text = &self.padded[..self.padded.len() - PADDING];
        match damage::find_first_damage(text) {
            None => {}
            Some((at, expected)) => return Err(damaged(at, expected)),
        }
        let value = self.root()?.value;
        // The byte range of a string does not include the quotes.
        let end = value.end as usize + usize::from(matches!(value.shape, Shape::String | Shape::Escaped));
        let rest = text.get(end..).unwrap_or_default();
        match rest.iter().position(|byte| !byte.is_ascii_whitespace()) {
            None => Ok(()),
            Some(at) => Err(damaged(end + at, "the end of the file")),
        }
    }
}

fn damaged(at: usize, expected: &str) -> Error {
    Error::new(ErrorKind::Format, format!("damaged: expected {expected} at byte {at}"))
}

/// A value of a document.
#[derive(Clone, Copy)]
pub struct Node<'a> {
    padded: &'a [u8],
    value: Value,
}

impl<'a> Node<'a> {
    /// Returns the value of `key` in an object. The keys of the object are compared one after another.
    pub fn get(self, key: &str) -> Option<Self> {
        self.entries().find(|(name, _)| &*name.decode() == key).map(|(_, value)| value)
    }

    /// Returns the keys and values of this object. If this value is not an object, returns no items.
    pub fn entries(self) -> impl Iterator<Item = (Text<'a>, Self)> {
        let mut at = self.first_inside(b'{');
        std::iter::from_fn(move || {
            let from = at.filter(|&at| self.padded[at] == b'"')?;
            let key = cursor::read_string::<BaselineSet>(self.padded, from + 1).ok()?;
            let after = cursor::skip_colon(self.padded, key.end as usize + 1).ok()?;
            let (value, next) = self.value(after)?;
            at = next;
            Some((Text::json(key.slice(self.padded), key.shape == Shape::Escaped), value))
        })
    }

    /// Returns the elements of this array. If this value is not an array, returns no items.
    pub fn items(self) -> impl Iterator<Item = Self> {
        let mut at = self.first_inside(b'[');
        std::iter::from_fn(move || {
            let (value, next) = self.value(at?)?;
            at = next;
            Some(value)
        })
    }

    /// Returns the text of a string value.
    pub fn text(self) -> Text<'a> {
        Text::json(self.value.slice(self.padded), self.value.shape == Shape::Escaped)
    }

    /// Returns the bytes of the value as written in the file. For a string, these are the bytes between the quotes.
    pub fn raw(self) -> &'a [u8] {
        self.value.slice(self.padded)
    }

    /// Whether this value is a string.
    pub fn is_string(self) -> bool {
        matches!(self.value.shape, Shape::String | Shape::Escaped)
    }

    /// Returns the bytes of the value as written in the file, including the quotes of a string.
    pub fn json(self) -> &'a [u8] {
        let (start, end) = (self.value.start as usize, self.value.end as usize);
        match self.value.shape {
            Shape::String | Shape::Escaped => &self.padded[start - 1..end + 1],
            _ => &self.padded[start..end],
        }
    }

    /// Returns the value as a signed integer.
    pub fn integer(self) -> Option<i64> {
        parse_integer(self.value.slice(self.padded))
    }

    /// Returns the value as an unsigned integer.
    pub fn unsigned(self) -> Option<u64> {
        parse_unsigned(self.value.slice(self.padded))
    }

    fn first_inside(self, bracket: u8) -> Option<usize> {
        let start = self.value.start as usize;
        let is_kind = self.value.shape == Shape::Nested && self.padded[start] == bracket;
        is_kind.then(|| skip_blanks(self.padded, start + 1))
    }

    /// Returns the value at `at`, and the position of the next value in the same array or object.
    fn value(self, at: usize) -> Option<(Self, Option<usize>)> {
        let (value, next) = cursor::read_value::<BaselineSet>(self.padded, at).ok()?;
        let next = skip_blanks(self.padded, next);
        let next = (self.padded[next] == b',').then(|| skip_blanks(self.padded, next + 1));
        Some((Self { value, ..self }, next))
    }
}
