//! Writers: a [`Profile`](crate::profile::Profile) or joined rows in, a file's bytes out.
//!
//! Each is one function (or, for rows that must not be kept, one sink). They know no clock, path or flag:
//! the same input gives the same bytes, whatever the order in which the GPU's buffers came in. What was
//! lost or has no partner is in every one of them: as frames and comments in folded files, as frames and
//! the subtitle in pictures, as rows in tables.

mod activities;
#[cfg(feature = "cli")]
mod callers;
#[cfg(feature = "cli")]
mod chrome;
mod clean;
#[cfg(feature = "cli")]
mod compare;
#[cfg(feature = "cli")]
mod cupti_text;
#[cfg(feature = "cli")]
mod extended;
mod flame;
mod folded;
mod leaf;
mod missing;
#[cfg(feature = "cli")]
mod parquet;
#[cfg(feature = "cli")]
mod perfetto;
#[cfg(feature = "cli")]
mod pprof;
mod roots;
#[cfg(feature = "cli")]
mod sbt;
#[cfg(feature = "cli")]
mod speedscope;
mod stack;
#[cfg(feature = "cli")]
mod stacks;
mod svg;
mod table;

#[cfg(test)]
mod tests;

pub use activities::ActivityTable;
#[cfg(feature = "cli")]
pub use chrome::write_chrome;
#[cfg(feature = "cli")]
pub(crate) use clean::frame as clean_frame;
#[cfg(feature = "cli")]
pub use compare::{Lines, lines, write_diff_folded, write_diff_svg, write_lines_folded, write_lines_svg};
#[cfg(feature = "cli")]
pub use cupti_text::write_cupti_text;
#[cfg(feature = "cli")]
pub use extended::write_extended;
pub use folded::{FoldedOptions, write_folded, write_idle_folded, write_memory_folded, write_wait_folded};
pub use leaf::name as work_name;
#[cfg(feature = "cli")]
pub use parquet::write_parquet;
#[cfg(feature = "cli")]
pub use perfetto::write_perfetto;
#[cfg(feature = "cli")]
pub use pprof::write_pprof;
pub use roots::Root;
#[cfg(feature = "cli")]
pub use sbt::write_sbt;
#[cfg(feature = "cli")]
pub use speedscope::write_speedscope;
#[cfg(feature = "cli")]
pub use stack::event_place;
pub use stack::stack_names;
pub use svg::{SvgOptions, write_idle_svg, write_memory_svg, write_svg, write_wait_svg};
pub use table::write_csv;

use std::str::FromStr;

use crate::error::{Error, ErrorKind};

/// What the width of a frame means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unit {
    /// GPU time in nanoseconds. The sum over a folded file is exact.
    #[default]
    Nanos,
    /// GPU time in microseconds. Each line is rounded by itself, half up, so that the sum may be off by
    /// half a microsecond a line.
    Micros,
    /// Activities, and launches that had none.
    Count,
}

impl Unit {
    /// All units.
    pub const ALL: [Self; 3] = [Self::Nanos, Self::Micros, Self::Count];

    /// The word that selects it: `ns`, `us` or `count`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Nanos => "ns",
            Self::Micros => "us",
            Self::Count => "count",
        }
    }
}

/// Which of the two stacks of a graph node to show: that on which the graph was launched, or that on which
/// the node was made, by the API or by the capture of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GraphStacks {
    /// The launch, `[graph]`, and what the other does not share with it.
    #[default]
    Both,
    /// Where the node was made. Where that is not known, the launch, and why.
    Capture,
    /// The launch.
    Launch,
}

impl FromStr for GraphStacks {
    type Err = Error;

    fn from_str(word: &str) -> Result<Self, Error> {
        match word {
            "both" => Ok(Self::Both),
            "capture" => Ok(Self::Capture),
            "launch" => Ok(Self::Launch),
            _ => Err(Error::new(
                ErrorKind::Setting,
                format!("`{word}` is none of a graph's stacks; use both, capture or launch"),
            )),
        }
    }
}

impl FromStr for Unit {
    type Err = Error;

    fn from_str(word: &str) -> Result<Self, Error> {
        Self::ALL.into_iter().find(|unit| unit.word() == word).ok_or_else(|| {
            Error::new(ErrorKind::Setting, format!("`{word}` is no unit; use ns, us or count"))
        })
    }
}
