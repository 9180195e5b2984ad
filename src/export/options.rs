//! Options for drawing a view.

use crate::profile::{Measure, View};
pub use crate::settings::{GraphStacks, Names, Root, Unit};

/// Options for drawing a view.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Weight of a stack, for formats with a single weight. Default: nanoseconds, or the first value of the view.
    pub unit: Unit,
    /// Title, for formats that have one. Default: the view's.
    pub title: Option<String>,
    /// Name of the recorded program, for formats that include it. Default: `gpuflame`.
    pub name: Option<String>,
    /// Stacks of a graph node to show. Default: both.
    pub graph: GraphStacks,
    /// Root frames below all stacks. Default: none.
    pub root: Vec<Root>,
    /// Treatment of numbers in names. Default: they are folded.
    pub names: Names,
    /// Whether the complete paths to both calls around an idle gap are shown, instead of only the first function
    /// that they do not share. Default: false.
    pub all_frames: bool,
    /// Whether folded stacks have the whole names of kernels. Default: false, short names unless two kernels of the
    /// file share one.
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
    /// Index of the value of `view` that it shows.
    pub(super) fn value(self, view: &View) -> usize {
        match self {
            Self::Nanos | Self::Micros => 0,
            Self::Count => usize::from(view.values.len() > 1),
        }
    }

    /// Whether it divides the values of `view` by a thousand, which it does only for nanoseconds.
    pub(super) fn is_micros_of(self, view: &View) -> bool {
        self == Self::Micros && view.values[0].unit == Measure::Nanos
    }
}
