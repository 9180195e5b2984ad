//! Defines frames of displayed stacks, with their kind. The symbolizer sets the kind of each frame, and the code that
//! draws flame graphs reads the kind. Code must not guess the kind of a frame from brackets in its name.

use super::cause::Cause;
use super::strings::StringId;
use crate::record::Work;

/// Name of the frame that replaces the Python functions of a CPU sample if it is uncertain which functions were
/// running.
pub const PYTHON_NOT_READ: &str = "[Python frames not read]";

/// Id of a displayed frame. Ids are consecutive, in order of first occurrence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ShownFrameId(pub(super) u32);

impl ShownFrameId {
    /// Returns the index of the frame, for tables with one entry per displayed frame.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A displayed frame, with its kind, its name, and (if known) its source location and mapped file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ShownFrame {
    /// Kind of the frame, such as a Python function or a kernel.
    pub kind: ShownFrameKind,
    /// Displayed name.
    pub name: StringId,
    /// Source location of the frame, if it is known.
    pub source: Option<SourceLocation>,
    /// Path of the executable or library that contains the frame's code. The path is `None` if the frame is not code,
    /// or if the code is not in a file.
    pub module: Option<StringId>,
    /// Reason why the frame's name is only an address. The reason is `None` if the frame has a name, or if no name was
    /// looked up.
    pub unnamed: Option<Unnamed>,
}

impl ShownFrame {
    /// Creates a frame that has only a kind and a name.
    pub fn new(kind: ShownFrameKind, name: StringId) -> Self {
        Self { kind, name, source: None, module: None, unnamed: None }
    }
}

/// A line of a source file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SourceLocation {
    /// Path of the source file. The path may be relative, or consist of the file name alone.
    pub file: StringId,
    /// Line number of the call, or of the code that was about to run. The value is 0 if the line is unknown.
    pub line: u32,
}

/// Reason why a code frame has no name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Unnamed {
    /// The code is not in any file, because it was generated while the program ran.
    Generated,
    /// Too many files were mapped at the address at different times, so the file of the code is unknown.
    ModuleUnknown,
    /// The executable or library no longer exists.
    FileGone,
    /// Another file with a different build id is now at the path of the executable or library.
    FileReplaced,
    /// The file cannot be read, or is not an executable or library.
    FileUnreadable,
    /// The file has no symbol for the address. The file's symbols were stripped, or the file never had this symbol.
    NoSymbol,
}

impl Unnamed {
    /// All reasons, in display order.
    pub const ALL: [Self; 6] = [
        Self::Generated,
        Self::ModuleUnknown,
        Self::FileGone,
        Self::FileReplaced,
        Self::FileUnreadable,
        Self::NoSymbol,
    ];

    /// Returns a few words that describe the reason.
    pub fn words(self) -> &'static str {
        match self {
            Self::Generated => "generated code, no file",
            Self::ModuleUnknown => "too many modules at this address",
            Self::FileGone => "file gone",
            Self::FileReplaced => "file replaced since, other build id",
            Self::FileUnreadable => "file unreadable",
            Self::NoSymbol => "no symbol, stripped",
        }
    }
}

/// Kind of a displayed frame. The kind determines the frame's colour in pictures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ShownFrameKind {
    /// Native host code, for example in C, C++ or Rust.
    Code,
    /// A Python function.
    Python,
    /// A CUDA API call.
    Call,
    /// An NVTX range or a range of gpuflame's API, with a name given by the application.
    Range,
    /// A process, thread, GPU or stream, as a frame at the root of a stack.
    Root,
    /// A kernel.
    Kernel,
    /// A memory copy.
    Copy,
    /// A memory fill.
    Set,
    /// A whole CUDA graph, or the marker frame between the launch of a graph and the graph's nodes.
    Graph,
    /// Migrations or page faults of unified memory.
    Unified,
    /// Memory that was allocated.
    Allocation,
    /// Memory that was freed.
    Free,
    /// Time in which a GPU was idle.
    Idle(Cause),
    /// A label by which gpuflame shows time that belongs to no stack.
    Marker,
    /// A frame that shows that data are missing or lost.
    Loss,
}

impl ShownFrameKind {
    /// Returns the frame kind for a kind of GPU work.
    pub fn for_work(work: Work) -> Self {
        match work {
            Work::Kernel(_) => Self::Kernel,
            Work::Copy(_) => Self::Copy,
            Work::Set => Self::Set,
            Work::Graph => Self::Graph,
        }
    }

    /// Returns the word that the column `kind` of tables shows.
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
