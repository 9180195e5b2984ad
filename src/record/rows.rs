//! The rows: what happened, as plain data. Everything that explains is a consumer of these.

use std::path::PathBuf;

use super::activity::{Activity, MemoryKind};
use super::deps::{EventCall, EventRecord, Sync};
use super::frame::Frame;
use super::ids::{
    CodeId, ContextId, CorrelationId, GraphId, GraphNodeId, LabelId, ModuleEpoch, NameId, Nanos, RangeId,
    ThreadId,
};
use super::loss::Loss;
use super::provenance::Provenance;
use super::unified::Unified;

/// Any row, as it travels from capture (or an importer, or a recording) to the consumers.
///
/// A row that others refer to (`Name`, `Label`, `Context`, `Module`) comes before the first that does.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Row<'a> {
    /// A launch was made.
    Launch(Launch),
    /// Launches were made while no window was open.
    Outside(Outside),
    /// The GPU did something.
    Activity(Activity),
    /// The meaning of a [`ContextId`].
    Context {
        /// The id that launches point to.
        id: ContextId,
        /// The thread that launched.
        thread: ThreadId,
        /// How good the stack is.
        flags: ContextFlags,
        /// The stack, leaf first: the ranges that were open, innermost first, the API call's label, and code.
        frames: &'a [Frame],
    },
    /// The text of a [`NameId`], as the tracer gave it (mangled; not always UTF-8 there, made so here).
    Name {
        /// The id that activities point to.
        id: NameId,
        /// Its text.
        text: &'a str,
    },
    /// The text of a [`LabelId`].
    Label {
        /// The id that label frames hold.
        id: LabelId,
        /// Its text.
        text: &'a str,
    },
    /// The name of a [`RangeId`], as the application gave it.
    Range {
        /// The id that range frames hold.
        id: RangeId,
        /// The domain that the name belongs to; empty where it has none.
        domain: &'a str,
        /// The symbol, mangled as the compiler made it.
        text: &'a str,
    },
    /// The meaning of a [`CodeId`].
    Code(Code<'a>),
    /// The function at an address of frames that lie in no file, as whoever generated it calls it. Comes last; in
    /// checkpoints when it is first known, and with an empty name when it is known no more.
    Generated {
        /// As frames have it.
        address: u64,
        /// The function's name; perhaps mangled.
        name: &'a str,
    },
    /// A file that was mapped with code in it.
    Module(Module),
    /// The process that all this happened in.
    Process {
        /// The process id.
        id: u32,
        /// The name of the program's file.
        name: &'a str,
    },
    /// Where all this comes from; of a kind there may be several.
    Provenance {
        /// What is said.
        what: Provenance,
        /// And that is it.
        text: &'a str,
    },
    /// A thread's name, at the time it first launched.
    Thread {
        /// The thread, as the kernel numbers it.
        id: ThreadId,
        /// Its name (`comm`).
        name: &'a str,
    },
    /// What a thread was in from then on, without making a call: told only of times in which a GPU had nothing to do.
    Inside(Inside),
    /// A call that launched nothing is over. Of each thread they come among its launches, in the order of time.
    Called(Called),
    /// A thread was found on a processor.
    Sampled(Sampled),
    /// A thread waited, without a processor.
    Blocked(Blocked),
    /// A call waited for a GPU, and is over.
    Wait(Wait),
    /// Memory was allocated, or is about to be freed. These rows are in the order in which it happened.
    Memory(MemoryCall),
    /// An event was put on a stream, as the tracer says.
    EventRecord(EventRecord),
    /// The host or a stream waited, as the tracer says.
    Sync(Sync),
    /// A call put an event on a stream, or had a stream wait for it.
    EventCall(EventCall),
    /// Pages of memory that the host and GPUs share moved, or faulted.
    Unified(Unified),
    /// A node of a graph was made, by the API or by the capture of a stream.
    GraphNode {
        /// The graph, with which the node goes.
        graph: GraphId,
        /// The node, as CUPTI numbers it.
        node: GraphNodeId,
        /// Who made it; the first frame is the API call's label.
        context: ContextId,
    },
    /// A node was copied, as instantiation does with all nodes of a graph.
    GraphClone {
        /// What the copy goes with: the copied graph, of which an instantiation is made.
        graph: GraphId,
        /// The node that is the copy.
        node: GraphNodeId,
        /// What it was copied from.
        original: GraphNodeId,
    },
    /// An instantiation took over what the nodes of another graph do, one by one in their order.
    GraphUpdate {
        /// The instantiation that was updated.
        graph: GraphId,
        /// The graph whose nodes it took over.
        source: GraphId,
        /// The id of the call: launches before it have lower ones, and ran what the instantiation did then.
        correlation: CorrelationId,
    },
    /// A graph or an instantiation was destroyed. What it launched may still run.
    GraphEnd {
        /// The destroyed graph.
        graph: GraphId,
    },
    /// A window was opened or closed.
    Window {
        /// Whether it opened or closed.
        edge: WindowEdge,
        /// Time of the edge, ns since 1970.
        time: Nanos,
    },
    /// From now on the tracer tells of launches, or does not: then they are not even counted.
    Told {
        /// Whether it does.
        on: bool,
        /// Since when, ns since 1970.
        time: Nanos,
    },
    /// The program marked an instant of the timeline.
    Instant(Instant<'a>),
    /// Something was lost; counts add up over rows of the same kind.
    Loss {
        /// The kind of loss.
        loss: Loss,
        /// How many were lost since the last such row.
        count: u64,
    },
    /// What rows came to that are not there. Comes last, each once; `encode` draws what keys say.
    Sum {
        /// What was added up.
        key: &'a [u8],
        /// How much there was of it.
        values: &'a [u64],
    },
}

/// The CPU side of starting GPU work. One is written on every launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Launch {
    /// When the API call began.
    pub time: Nanos,
    /// How long it took, in nanoseconds; `u32::MAX` = that long or longer; 0 = written when it began.
    pub duration: u32,
    /// The id its activities will carry.
    pub correlation: CorrelationId,
    /// The id of the call around it, where a driver call nested in a runtime call has an id of its own;
    /// else its own id. Rows with another id here are *aliases*: the same launch under a second name.
    pub within: CorrelationId,
    /// Who launched: the stack, and all that goes with it.
    pub context: ContextId,
}

const _: () = assert!(size_of::<Launch>() == 24, "Launch grew: one is written on every launch");

impl Launch {
    /// Whether this row only gives a launch a second id.
    pub fn is_alias(&self) -> bool {
        self.within != self.correlation
    }
}

/// Launches made while no window was open: they are counted and in no output, and their ids tell their
/// activities apart from those whose launch was lost. Rows of ranges that grow repeat what they said of ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outside {
    /// The first id of one.
    pub first: CorrelationId,
    /// The last: whatever has an id between the two and no launch of its own was launched outside.
    pub last: CorrelationId,
    /// How many launches, beyond those of earlier rows. Calls of other kinds have ids between theirs.
    pub count: u32,
    /// When the last of them was over.
    pub over: Nanos,
}

/// What a thread was in, from one moment on until the next that is told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inside {
    /// The thread.
    pub thread: ThreadId,
    /// Since when.
    pub since: Nanos,
    /// The stack; [`ContextId::NONE`] = nobody knows, from then on.
    pub context: ContextId,
}

/// A call that waited, allocated or freed: what is needed of it to tell what a thread did between its launches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Called {
    /// When it was over.
    pub ended: Nanos,
    /// How long it took, in nanoseconds; `u32::MAX` = that long or longer.
    pub duration: u32,
    /// The stack that made the call.
    pub context: ContextId,
}

/// Where a thread was when it had taken so much more processor time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampled {
    /// When.
    pub time: Nanos,
    /// For how much processor time it stands, in nanoseconds.
    pub period: u32,
    /// The thread.
    pub thread: ThreadId,
    /// Its stack.
    pub context: ContextId,
}

/// A time in which a thread had left its processor of its own accord: it slept, or waited for anything at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// When it left.
    pub time: Nanos,
    /// For how long, in nanoseconds.
    pub duration: u64,
    /// The thread.
    pub thread: ThreadId,
    /// Its stack.
    pub context: ContextId,
}

/// A call that waited: for an event, a stream, a device, or a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// When the call began.
    pub time: Nanos,
    /// How long it took, in nanoseconds.
    pub duration: u64,
    /// The id that the tracer gave the call.
    pub correlation: CorrelationId,
    /// The stack that waited.
    pub context: ContextId,
}

/// A call that allocates or frees memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryCall {
    /// When it returned or, if it frees, began.
    pub time: Nanos,
    /// The id that the tracer gave the call.
    pub correlation: CorrelationId,
    /// The stack that made the call.
    pub context: ContextId,
    /// Where the memory lies, or its handle.
    pub address: u64,
    /// What it allocated; `None` = it frees.
    pub allocated: Option<Allocated>,
}

/// What a call allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Allocated {
    /// What memory: device, pinned or managed.
    pub memory: MemoryKind,
    /// The size of the memory in bytes.
    pub bytes: u64,
}
/// How good the stack of a context is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct ContextFlags(pub u32);

impl ContextFlags {
    /// The stack was deeper than the capture buffer; its root is missing.
    pub const TRUNCATED: u32 = 1;
    /// At least one frame had no unwind information and was found by its frame pointer.
    pub const GUESSED: u32 = 2;
    /// The walk ended before the bottom of the stack (no unwind information, no frame pointer).
    pub const CUT: u32 = 4;

    /// Whether all the bits of `flag` are set.
    pub fn has(self, flag: u32) -> bool {
        self.0 & flag == flag
    }

    /// What flame graphs show in the place of the frames that are missing below the root.
    pub fn label(self) -> Option<&'static str> {
        if self.has(Self::TRUNCATED) {
            Some("[stack truncated]")
        } else if self.has(Self::CUT) {
            Some("[stack cut short]")
        } else {
            None
        }
    }
}

/// A mapped file with code in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    /// What sets it apart from others that lay there; of [`ModuleEpoch::OUTSIDE`] there may be several.
    pub epoch: ModuleEpoch,
    /// The first mapped address.
    pub start: u64,
    /// One past the last address.
    pub end: u64,
    /// `address - bias` is the address inside the file's own address space (ELF virtual address).
    pub bias: u64,
    /// Where the file lies, as the kernel has it: bytes, not always text; empty for code without a file.
    pub path: PathBuf,
    /// The GNU build id; empty where the file has none.
    pub build_id: Vec<u8>,
}

/// A function of a Python program, as its interpreter has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code<'a> {
    /// The id that frames hold.
    pub id: CodeId,
    /// The interpreter's version, as in `0x030b`: what `lines` looks like depends on it.
    pub version: u16,
    /// The line that the function begins in.
    pub first_line: u32,
    /// Where its source is, as the interpreter was told.
    pub file: &'a str,
    /// Its qualified name; the bare one before 3.11.
    pub name: &'a str,
    /// Which lines its instructions are of; empty where nobody knows.
    pub lines: &'a [u8],
}

/// An instant that the program gave a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instant<'a> {
    /// When.
    pub time: Nanos,
    /// On which thread.
    pub thread: ThreadId,
    /// The name.
    pub text: &'a str,
}

/// The edge of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WindowEdge {
    /// Launches are recorded from now on.
    Open,
    /// Launches are counted as outside from now on.
    Close,
}
