//! Defines a frame of a displayed stack, with its kind. Symbolization sets the kind, and drawing reads it. No code
//! guesses a frame's kind from brackets in its name.

use super::cause::Cause;
use super::strings::StringId;
use crate::record::Work;

/// Frame shown in place of a sample's Python functions, if those functions are uncertain.
pub const PYTHON_NOT_READ: &str = "[Python frames not read]";

/// Id of a displayed frame: dense, in order of first occurrence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ShownFrameId(pub(super) u32);

impl ShownFrameId {
    /// Returns the frame's position, for tables parallel to the frames.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A displayed frame: its kind, its name, and its source location and file if known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ShownFrame {
    /// Kind of thing that the frame represents.
    pub kind: ShownFrameKind,
    /// Displayed name.
    pub name: StringId,
    /// Source location, if known.
    pub source: Option<SourceLocation>,
    /// Mapped file that contains the frame's code; `None` if the frame is not code, or the code is not in a file.
    pub module: Option<StringId>,
    /// Reason why the frame's name is only an address; `None` if the frame has a name, or if no name was looked up.
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
    /// Path of the source file, as complete as it is known.
    pub file: StringId,
    /// Number of the line that was about to run, or that contains the call; 0 if unknown.
    pub line: u32,
}

/// Reason why a code frame has no name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Unnamed {
    /// The code has no file: it was generated while the program ran.
    Generated,
    /// Too many files were mapped at the address at different times, so the file of the code is unknown.
    ModuleUnknown,
    /// The file no longer exists.
    FileGone,
    /// Another file is now at the path: its build id differs from the build id of the loaded file.
    FileReplaced,
    /// The file cannot be read, or is not an executable or library.
    FileUnreadable,
    /// The file has no symbol for the address, because the file was stripped or never had such a symbol.
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

    /// Returns the reason in words.
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

/// Kind of thing that a frame represents. Pictures choose the frame's colour by this kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ShownFrameKind {
    /// Host code: C, C++, Rust.
    Code,
    /// A Python function.
    Python,
    /// A CUDA API call.
    Call,
    /// A range named by the application.
    Range,
    /// The process, thread, GPU or stream, as a frame at the root.
    Root,
    /// A kernel.
    Kernel,
    /// A copy.
    Copy,
    /// A fill.
    Set,
    /// A whole graph, or the mark between the launch of a graph and the graph's nodes.
    Graph,
    /// Traffic or faults of unified memory.
    Unified,
    /// Allocated memory.
    Allocation,
    /// Freed memory.
    Free,
    /// Time in which a GPU was idle.
    Idle(Cause),
    /// A mark of gpuflame for time that belongs to no stack.
    Marker,
    /// A frame for missing or lost data.
    Loss,
}

impl ShownFrameKind {
    /// Returns the kind for `work`.
    pub fn for_work(work: Work) -> Self {
        match work {
            Work::Kernel(_) => Self::Kernel,
            Work::Copy(_) => Self::Copy,
            Work::Set => Self::Set,
            Work::Graph => Self::Graph,
        }
    }

    /// Returns the word for the `kind` column of tables.
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
