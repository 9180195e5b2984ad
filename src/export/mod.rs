//! Writers: a [`Profile`](crate::profile::Profile) or joined rows in, a file's bytes out.
//!
//! Each is one function (or, for rows that must not be kept, one sink). They know no clock, path or flag:
//! the same input gives the same bytes, whatever the order in which the GPU's buffers came in. What was
//! lost or has no partner is in every one of them: as frames and comments in folded files, as frames and
//! the subtitle in pictures, as rows in tables.

mod activities;
mod clean;
mod flame;
mod folded;
mod leaf;
mod missing;
mod stack;
mod svg;
mod table;

#[cfg(test)]
mod tests;

pub use activities::ActivityTable;
pub use folded::{FoldedOptions, write_folded, write_idle_folded};
pub use leaf::name as work_name;
pub use stack::stack_names;
pub use svg::{SvgOptions, write_idle_svg, write_svg};
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

impl FromStr for Unit {
    type Err = Error;

    fn from_str(word: &str) -> Result<Self, Error> {
        Self::ALL.into_iter().find(|unit| unit.word() == word).ok_or_else(|| {
            Error::new(ErrorKind::Setting, format!("`{word}` is no unit; use ns, us or count"))
        })
    }
}
