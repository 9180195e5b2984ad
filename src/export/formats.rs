//! The formats that the recorder writes. The shared library contains no other formats.

use super::format::Format;

/// Formats that the recorder writes.
pub static FORMATS: &[&Format] = &[&super::folded::FOLDED, &super::svg::SVG];

/// Returns the format that this word selects, if the recorder writes it.
pub fn format(word: &str) -> Option<&'static Format> {
    FORMATS.iter().copied().find(|format| format.word == word)
}
