//! What a frame of a shown stack is. Kinds stay kinds from whoever knows them to whoever draws them: nothing
//! is told from the brackets of a name.

use super::cause::Cause;
use super::strings::StringId;
use crate::record::Work;

/// A frame of a shown stack: dense, in order of first sight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ShownFrameId(pub(super) u32);

impl ShownFrameId {
    /// The position in tables that run beside the frames.
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// A frame as it is shown, and all that is known of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ShownFrame {
    /// What it stands for.
    pub kind: Kind,
    /// What it is called.
    pub name: StringId,
    /// Where it stands in its source, if that is known.
    pub source: Option<Source>,
    /// The file that was mapped where its code lies; `None` for what is no code or in no file.
    pub module: Option<StringId>,
    /// Why its name is only an address; `None` where it has one, or nobody looked for it.
    pub unnamed: Option<Unnamed>,
}

impl ShownFrame {
    /// A frame of which nothing else is known.
    pub fn new(kind: Kind, name: StringId) -> Self {
        Self { kind, name, source: None, module: None, unnamed: None }
    }
}

/// A line of a source file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Source {
    /// The file, with its folder as far as that is known.
    pub file: StringId,
    /// The line that was about to run or had made a call; 0 where it is not known.
    pub line: u32,
}

/// Why a frame of code has no name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Unnamed {
    /// It lies in no file: it was generated while the program ran.
    Generated,
    /// So many files lay there in turn that nobody knows which it is from.
    ModuleUnknown,
    /// The file is not there any more.
    FileGone,
    /// There is another file of that name now: its build id is not the one that was loaded.
    FileReplaced,
    /// The file cannot be read, or is no program.
    FileUnreadable,
    /// The file has no symbol for the address: it was stripped, or never had one.
    NoSymbol,
}

impl Unnamed {
    /// All reasons, in the order in which they are shown.
    pub const ALL: [Self; 6] = [
        Self::Generated,
        Self::ModuleUnknown,
        Self::FileGone,
        Self::FileReplaced,
        Self::FileUnreadable,
        Self::NoSymbol,
    ];

    /// The reason in words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Generated => "generated code, no file",
            Self::ModuleUnknown => "too many modules lay there",
            Self::FileGone => "file gone",
            Self::FileReplaced => "file replaced since, other build id",
            Self::FileUnreadable => "file unreadable",
            Self::NoSymbol => "no symbol, stripped",
        }
    }
}

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
