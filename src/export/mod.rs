//! The exporters turn a [`Profile`](crate::profile::Profile) and one of its views, or joined rows, into the bytes of a
//! file.
//!
//! Each format is one function and a line of [`FORMATS`] (or, for rows that cannot be stored, one sink). A format can
//! draw any view without code specific to that view. A format depends on no clock, path or flag: the same input gives
//! the same bytes, regardless of the order in which CUPTI's buffers arrived. Every format shows lost and unmatched
//! data: as frames and comments in folded files, as frames and in the subtitle of pictures, as rows in tables.

mod activities;
#[cfg(feature = "cli")]
mod arrow;
#[cfg(feature = "cli")]
mod callers;
mod chrome;
mod clean;
mod colors;
#[cfg(feature = "cli")]
mod columns;
#[cfg(feature = "cli")]
mod compare;
mod compose;
mod cupti_text;
#[cfg(feature = "cli")]
mod extended;
mod flame;
mod folded;
mod format;
mod formats;
mod frame;
mod json;
#[cfg(feature = "cli")]
mod lines;
mod numbers;
mod options;
mod order;
#[cfg(feature = "cli")]
mod parquet;
#[cfg(feature = "cli")]
mod perfetto;
#[cfg(feature = "cli")]
mod pprof;
mod roots;
#[cfg(feature = "cli")]
mod sbt;
mod short;
mod short_name_svg;
mod source;
#[cfg(feature = "cli")]
mod speedscope;
mod stack_table;
#[cfg(feature = "cli")]
mod stacks;
mod svg;
mod table;
mod threads;

#[cfg(test)]
mod tests;

pub use activities::ActivityTable;
pub use chrome::ChromeText;
#[cfg(feature = "cli")]
pub(crate) use clean::frame as clean_frame;
#[cfg(feature = "cli")]
pub(crate) use clean::guarded;
pub(crate) use clean::line as clean_line;
#[cfg(feature = "cli")]
pub use compare::{explain_mismatch, write_diff_folded, write_diff_svg, write_lines_svg};
#[cfg(feature = "cli")]
pub use compose::event_place;
pub use compose::{folded_names, stack_names, work_name};
pub use cupti_text::CuptiText;
pub use folded::FOLDED;
#[cfg(feature = "cli")]
pub use folded::write_lines_folded;
#[cfg(feature = "cli")]
pub use format::WriteEvents;
pub use format::{DrawView, Drawing, Format, Writes};
pub(crate) use formats::LIVE;
pub use formats::{FORMATS, format};
#[cfg(feature = "cli")]
pub use lines::Lines;
pub use options::{GraphStacks, Names, Options, Root, Unit};
#[cfg(feature = "cli")]
pub(crate) use short::short_kernels;
pub use source::{SourceLine, source_line};
pub use stack_table::write_stacks_csv;
pub use svg::{SVG, draw_once};
pub use table::write_csv;
