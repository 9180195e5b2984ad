//! Exporters write files from a [`Profile`](gpuflame_model::profile::Profile) and one of its views, or from rows that
//! the join has matched to launches.
//!
//! To add a format, write one function and add one line to [`FORMATS`]. If a format has too many rows to store, write a
//! sink (such as `activities`) instead. A format contains no code for single views, so it can draw any view. The same
//! input results in the same bytes, because the output does not depend on a clock, a path, a flag, or the order in
//! which CUPTI's buffers arrived. Every format shows lost and unmatched data: folded files as frames and comments,
//! pictures as frames and in the subtitle, tables as rows.

#![forbid(unsafe_code)]

pub mod activities;
pub mod chrome;
pub mod clean;
pub mod compose;
pub mod cupti_text;

pub mod flame;
pub mod folded;
pub mod format;
mod formats;
pub mod frame;
pub mod json;
pub mod numbers;
pub mod options;
pub mod order;
pub mod picture;
pub mod roots;
pub mod short_names;
pub mod source;
pub mod stack_table;
mod summary_text;
pub mod svg;
pub mod table;
pub mod threads;
mod title;

#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod testing;
#[cfg(test)]
mod tests;

pub use activities::ActivityTable;
pub use chrome::ChromeText;
pub use clean::frame as clean_frame;
pub use clean::guarded;
pub use clean::line as clean_line;
pub use compose::event_site;
pub use compose::{folded_names, stack_names, work_name};
pub use cupti_text::CuptiText;
pub use folded::FOLDED;
pub use format::WriteEvents;
pub use format::{DrawView, Drawing, Format, Writes};
pub use formats::{FORMATS, format};
pub use options::{GraphStacks, NameFolding, Options, Root, Unit};
pub use short_names::short_kernels;
pub use source::{
    ExecutedLine, InnermostFrames, SourceLine, StackEnd, executed_line, innermost_frames, is_library_frame,
    source_line, user_function,
};
pub use stack_table::write_stacks_csv;
pub use summary_text::{
    busy_and_idle_lines, cause_words, complete_line, counted, grouped, host_place, idle_place, percent,
    summary_lines, work_line,
};
pub use svg::SVG;
pub use table::write_csv;
pub use title::run_facts;
