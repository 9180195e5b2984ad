//! All formats there are: a new one is a line here.

use super::format::Format;

/// All formats. The first of two that a file's ending names equally well counts.
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

/// Those that a process writes of itself: all that the shared library has, also where it is built together with the
/// command.
pub(crate) static LIVE: [&Format; 2] = [&super::folded::FOLDED, &super::svg::SVG];

/// The format of this word.
pub fn format(word: &str) -> Option<&'static Format> {
    FORMATS.iter().copied().find(|format| format.word == word)
}
