//! Output formats of the `gpuflame` command: the formats that the recorder also writes, and formats that need all rows
//! in memory or depend on large libraries.

mod activities;
mod activity_columns;
mod arrow;
mod callers;
mod chakra;
mod chrome;
mod chrome_copy;
mod compare;
mod cupti_text;
mod extended;
mod folded_stacks;
mod linked_trace;
mod operators;
mod parquet;
mod perfetto;
mod pprof;
mod sbt;
mod sorted_stacks;
mod speedscope;
mod strict_json;

#[cfg(test)]
mod tests;

use gpuflame_export::format::Format;
use gpuflame_export::{FOLDED, SVG};

pub use chakra::write_chakra;
pub use chrome::{ChromeOptions, chrome_metadata, has_calls_in_operators, write_chrome, write_chrome_events};
pub use chrome_copy::{Addition, ChromeCopy, TrackFinder, Tracks};
pub use compare::{explain_mismatch, write_diff_folded, write_diff_svg, write_lines_svg};
pub use folded_stacks::{FoldedStacks, write_lines_folded};
pub use linked_trace::write_linked_trace;
pub use operators::Operators;
pub use perfetto::{SliceTrack, TrackSlice, write_perfetto_with_tracks};

/// All formats. If a file extension matches two formats equally well, the first format is used.
pub static FORMATS: &[&Format] = &[
    &FOLDED,
    &extended::EXTENDED,
    &SVG,
    &activities::CSV,
    &chrome::CHROME,
    &perfetto::PERFETTO,
    &pprof::PPROF,
    &speedscope::SPEEDSCOPE,
    &parquet::PARQUET,
    &arrow::ARROW,
    &sbt::SBT,
    &cupti_text::CUPTI_TEXT,
];

/// Returns the output format whose name is `word`.
pub fn format(word: &str) -> Option<&'static Format> {
    FORMATS.iter().copied().find(|format| format.word == word)
}
