//! The list of all formats. A new format needs one line in this list.

use super::format::Format;

/// All formats. If a file extension fits two formats equally well, the first format is used.
pub static FORMATS: &[&Format] = &[
    &super::folded::FOLDED,
    #[cfg(feature = "cli")]
    &super::extended::EXTENDED,
    &super::svg::SVG,
    #[cfg(feature = "cli")]
    &super::activities::CSV,
    #[cfg(feature = "cli")]
    &super::chrome::CHROME,
    #[cfg(feature = "cli")]
    &super::perfetto::PERFETTO,
    #[cfg(feature = "cli")]
    &super::pprof::PPROF,
    #[cfg(feature = "cli")]
    &super::speedscope::SPEEDSCOPE,
    #[cfg(feature = "cli")]
    &super::parquet::PARQUET,
    #[cfg(feature = "cli")]
    &super::arrow::ARROW,
    #[cfg(feature = "cli")]
    &super::sbt::SBT,
    #[cfg(feature = "cli")]
    &super::cupti_text::CUPTI_TEXT,
];

/// Formats that a process writes about itself. These are all formats of the shared library, even in a build that
/// includes the command.
pub(crate) static LIVE: [&Format; 2] = [&super::folded::FOLDED, &super::svg::SVG];

/// Returns the format that `word` selects.
pub fn format(word: &str) -> Option<&'static Format> {
    FORMATS.iter().copied().find(|format| format.word == word)
}
