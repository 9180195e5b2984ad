//! What somebody who draws a view may choose.

use crate::profile::{Measure, View};
pub use crate::settings::{GraphStacks, Names, Root, Unit};

/// How to draw a view.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// What a stack weighs, where a format has one weight. Default: nanoseconds, or what the view counts first.
    pub unit: Unit,
    /// The heading, where a format has one. Default: the view's.
    pub title: Option<String>,
    /// What was recorded, where a format says that. Default: `gpuflame`.
    pub name: Option<String>,
    /// Which stacks of a graph node to show. Default: both.
    pub graph: GraphStacks,
    /// The frames below all stacks. Default: none.
    pub root: Vec<Root>,
    /// What becomes of numbers in names. Default: they are folded.
    pub names: Names,
    /// Whether all is shown that led to each of two calls between which a GPU was idle, and not only the first function that
    /// they do not share. Default: false.
    pub all_frames: bool,
    /// Whether folded stacks have the whole names of kernels. Default: short ones, where no two kernels of a file share them.
    pub whole_kernels: bool,
    /// Whether lines of single launches leave out `[correlation N]`, their last frame. Default: false.
    pub without_correlation: bool,
}

impl Options {
    pub(super) fn title<'a>(&'a self, view: &View) -> &'a str {
        self.title.as_deref().unwrap_or(view.title)
    }
}

impl Unit {
    /// Which of the values of `view` it shows.
    pub(super) fn value(self, view: &View) -> usize {
        match self {
            Self::Nanos | Self::Micros => 0,
            Self::Count => usize::from(view.values.len() > 1),
        }
    }

    /// Whether it divides what `view` counts by a thousand: nanoseconds, and nothing else.
    pub(super) fn is_micros_of(self, view: &View) -> bool {
        self == Self::Micros && view.values[0].unit == Measure::Nanos
    }
}
