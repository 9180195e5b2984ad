//! Options for drawing a view.

pub use gpuflame_model::options::{GraphStacks, NameFolding, Root, Unit};
use gpuflame_model::profile::View;

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
    pub names: NameFolding,
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
    /// Heading of the picture: the given one, or the view's.
    pub fn title<'a>(&'a self, view: &View) -> &'a str {
        self.title.as_deref().unwrap_or(view.title)
    }
}
