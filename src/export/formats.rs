//! Lists the formats that the recorder (the shared library in the recorded process) writes. The library contains no
//! formats other than these.

use super::format::Format;

/// Formats that the recorder can write.
pub static FORMATS: &[&Format] = &[&super::folded::FOLDED, &super::svg::SVG];

/// Returns the format that `word` selects. Returns `None` if the recorder does not write that format.
pub fn format(word: &str) -> Option<&'static Format> {
    FORMATS.iter().copied().find(|format| format.word == word)
}
