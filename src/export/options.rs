//! Options for drawing a view.

use crate::profile::{Measure, View};
pub use crate::settings::{GraphStacks, Names, Root, Unit};

/// Options for drawing a view.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Weight of a stack, for formats that have a single weight. Default: nanoseconds, or the first value of the
    /// view.
    pub unit: Unit,
    /// Title, for formats that have a title. Default: the view's title.
    pub title: Option<String>,
    /// Name of the recorded program, for formats that include the name. Default: `gpuflame`.
    pub name: Option<String>,
    /// Stacks to show for a graph node. Default: both stacks.
    pub graph: GraphStacks,
    /// Frames added at the root of all stacks. Default: none.
    pub root: Vec<Root>,
    /// Treatment of numbers in names. Default: numbers are folded.
    pub names: Names,
    /// Whether to show the complete paths to both calls around an idle gap, instead of only the first function that
    /// the paths do not share. Default: false.
    pub all_frames: bool,
    /// Whether folded stacks have the full names of kernels. Default: false, so that kernels have short names unless
    /// two kernels of the file share a short name.
    pub whole_kernels: bool,
    /// Whether lines of single launches omit their last frame, `[correlation N]`. Default: false.
    pub without_correlation: bool,
}

impl Options {
    pub(super) fn title<'a>(&'a self, view: &View) -> &'a str {
        self.title.as_deref().unwrap_or(view.title)
    }
}

impl Unit {
    /// Returns the index of the value of `view` that the options select.
    pub(super) fn value(self, view: &View) -> usize {
        match self {
            Self::Nanos | Self::Micros => 0,
            Self::Count => usize::from(view.values.len() > 1),
        }
    }

    /// Whether to divide the values of `view` by a thousand, as is done only for nanoseconds.
    pub(super) fn is_micros_of(self, view: &View) -> bool {
        self == Self::Micros && view.values[0].unit == Measure::Nanos
    }
}
