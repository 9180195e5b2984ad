//! Options for drawing a view.

pub use gpuflame_model::options::{GraphStacks, NameFolding, Root, Unit};
use gpuflame_model::profile::View;

/// Options for drawing a view.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Weight of a stack, for formats that write a single weight per stack. Default: nanoseconds, or the view's first
    /// value if the view has no times.
    pub unit: Unit,
    /// Title, for formats that show a title. Default: the view's title.
    pub title: Option<String>,
    /// Name of the recorded program, for formats that include the name. Default: `gpuflame`.
    pub name: Option<String>,
    /// Stacks to show for a graph node. Default: both stacks.
    pub graph: GraphStacks,
    /// Frames added at the root of all stacks. Default: none.
    pub root: Vec<Root>,
    /// Treatment of numbers in names. Default: numbers are folded.
    pub names: NameFolding,
    /// Whether to show the complete stacks of both calls around an idle gap. If false, frames that differ between the
    /// two stacks are shortened: only the first function and the call are shown. Default: false.
    pub all_frames: bool,
    /// Whether folded stacks contain the full names of kernels. If false, folded stacks contain short names, unless two
    /// kernels of the file would have the same short name. Default: false.
    pub whole_kernels: bool,
    /// Maximum number of frames in folded stacks of idle time; `None`: no limit. If there are more frames than this,
    /// light frames are merged as in pictures, and the sum of the weights stays the same. Default: all.
    pub max_idle_frames: Option<usize>,
    /// Whether to omit `[correlation N]`, the last frame of a line that shows a single launch. Default: false.
    pub without_correlation: bool,
}

impl Options {
    /// Returns the heading of the picture: the title in the options, or the title of the view if the options have none.
    pub fn title<'a>(&'a self, view: &View) -> &'a str {
        self.title.as_deref().unwrap_or(view.title)
    }
}
