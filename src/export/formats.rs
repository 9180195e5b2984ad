//! All formats there are: a new one is a line here.

use super::format::Format;
#[cfg(feature = "cli")]
use super::{activities, chrome, cupti_text, extended, parquet, perfetto, pprof, sbt, speedscope};
use super::{folded, svg};

/// All formats. The first of two that a file's ending names equally well counts.
pub static FORMATS: &[&Format] = &[
    &folded::FOLDED,
    #[cfg(feature = "cli")]
    &extended::EXTENDED,
    &svg::SVG,
    #[cfg(feature = "cli")]
    &activities::CSV,
    #[cfg(feature = "cli")]
    &chrome::CHROME,
    #[cfg(feature = "cli")]
    &perfetto::PERFETTO,
    #[cfg(feature = "cli")]
    &pprof::PPROF,
    #[cfg(feature = "cli")]
    &speedscope::SPEEDSCOPE,
    #[cfg(feature = "cli")]
    &parquet::PARQUET,
    #[cfg(feature = "cli")]
    &sbt::SBT,
    #[cfg(feature = "cli")]
    &cupti_text::CUPTI_TEXT,
];

/// The format of this word.
pub fn format(word: &str) -> Option<&'static Format> {
    FORMATS.iter().copied().find(|format| format.word == word)
}
