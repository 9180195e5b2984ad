//! What a frame of a shown stack is. Kinds stay kinds from whoever knows them to whoever draws them: nothing
//! is told from the brackets of a name.

use super::sample::Cause;
use crate::record::Work;

/// What a frame stands for; pictures colour by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Code of the host: C, C++, Rust.
    Code,
    /// A function of a Python program.
    Python,
    /// A call of CUDA's API.
    Call,
    /// A range that the application named.
    Range,
    /// The process, thread, GPU or stream below all.
    Root,
    /// A kernel.
    Kernel,
    /// A copy.
    Copy,
    /// A fill.
    Set,
    /// A whole graph, or the mark between its launch and its nodes.
    Graph,
    /// Traffic or faults of memory that the host and GPUs share.
    Unified,
    /// Memory that was allocated.
    Allocation,
    /// Memory that was freed.
    Free,
    /// Time in which a GPU had nothing to do.
    Idle(Cause),
    /// A mark of ours: a stretch of time that no stack says.
    Marker,
    /// Something missing or lost.
    Loss,
}

impl Kind {
    /// What `work` is.
    pub fn of(work: Work) -> Self {
        match work {
            Work::Kernel(_) => Self::Kernel,
            Work::Copy(_) => Self::Copy,
            Work::Set => Self::Set,
            Work::Graph => Self::Graph,
        }
    }

    /// The word in a table's `kind` column.
    pub fn word(self) -> &'static str {
        match self {
            Self::Code => "cpu",
            Self::Python => "python",
            Self::Call => "call",
            Self::Range => "range",
            Self::Root => "root",
            Self::Kernel => "kernel",
            Self::Copy => "copy",
            Self::Set => "set",
            Self::Graph => "graph",
            Self::Unified => "unified",
            Self::Allocation => "allocation",
            Self::Free => "free",
            Self::Idle(_) => "idle",
            Self::Marker => "marker",
            Self::Loss => "missing",
        }
    }
}
