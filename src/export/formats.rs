//! The formats that the recorder writes: all that the shared library has.

use super::format::Format;

/// Formats that the recorder writes.
pub static FORMATS: &[&Format] = &[&super::folded::FOLDED, &super::svg::SVG];

/// The format with this word, of those that the recorder writes.
pub fn format(word: &str) -> Option<&'static Format> {
    FORMATS.iter().copied().find(|format| format.word == word)
}
