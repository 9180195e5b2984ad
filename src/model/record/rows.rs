//! Rows: the events of a run as plain data. Every module that explains a run consumes rows.

use std::path::PathBuf;

use super::activity::{Activity, MemoryKind};
use super::dependencies::{EventCall, EventRecord, SyncRecord};
use super::frame::Frame;
use super::ids::{
    CodeId, ContextId, CorrelationId, GraphId, GraphNodeId, LabelId, ModuleEpoch, NameId, Nanos, RangeId,
    ThreadId,
};
use super::loss::Loss;
use super::provenance::Provenance;
use super::unified::Unified;

/// A row of any kind, as it travels from its source (capture, an importer or a recording) to the consumers.
///
/// Rows that define an id (`Name`, `Label`, `Context`, `Module`) precede the first row that uses the id.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Row<'a> {
    /// A launch.
    Launch(Launch),
    /// Launches made while no window was open.
    Outside(OutsideLaunches),
    /// A GPU activity.
    Activity(Activity),
    /// Definition of a [`ContextId`].
    Context {
        /// Id used by launches.
        id: ContextId,
        /// Launching thread.
        thread: ThreadId,
        /// Quality of the stack.
        flags: ContextFlags,
        /// Stack, leaf first: the open ranges, innermost first, then the label of the API call, then code.
        frames: &'a [Frame],
    },
    /// Text of a [`NameId`], mangled as the tracer reports it. The tracer's text may be non-UTF-8 and is converted
    /// for this row.
    Name {
        /// Id by which activities refer to the name.
        id: NameId,
        /// Text of the name.
        text: &'a str,
    },
    /// Text of a [`LabelId`].
    Label {
        /// Id by which frames refer to the label.
        id: LabelId,
        /// Text of the label.
        text: &'a str,
    },
    /// Name of a [`RangeId`], as given by the application.
    Range {
        /// Id by which frames refer to the range.
        id: RangeId,
        /// Domain of the range; empty if the range has no domain.
        domain: &'a str,
        /// Name of the range.
        text: &'a str,
    },
    /// Definition of a [`CodeId`].
    Code(CodeObject<'a>),
    /// Function at an address of frames without a file, as named by the code generator. These rows come last. A
    /// checkpoint has such a row when the name first becomes known, and another with an empty name when the name
    /// becomes ambiguous.
    Generated {
        /// Address of the function, as in frames.
        address: u64,
        /// Function name; may be mangled.
        name: &'a str,
    },
    /// A mapped file that contains code.
    Module(Module),
    /// The recorded process.
    Process {
        /// Process id.
        id: u32,
        /// File name of the program.
        name: &'a str,
    },
    /// Origin of the recording. A recording may contain several facts of one kind.
    Provenance {
        /// Kind of fact.
        what: Provenance,
        /// Value of the fact.
        text: &'a str,
    },
    /// Name of a thread at its first launch.
    Thread {
        /// Kernel thread id.
        id: ThreadId,
        /// Thread name (`comm`).
        name: &'a str,
    },
    /// Stack that a thread was in from a given time on, while the thread made no call. Such rows exist only for times
    /// in which a GPU was idle.
    HostState(HostState),
    /// A completed call that launched nothing. These rows are interleaved with the launches of their thread in order
    /// of time.
    HostCallSpan(HostCallSpan),
    /// A CPU sample: a thread was on a CPU.
    Sampled(CpuSample),
    /// An off-CPU wait of a thread.
    Blocked(OffCpuWait),
    /// A completed call that waited for a GPU.
    Wait(Wait),
    /// Memory was allocated, or is about to be freed. Memory rows are in order of occurrence.
    Memory(MemoryCall),
    /// An event was recorded on a stream, as reported by the tracer.
    EventRecord(EventRecord),
    /// The host or a stream waited, as reported by the tracer.
    Sync(SyncRecord),
    /// A call recorded an event on a stream, or made a stream wait for it.
    EventCall(EventCall),
    /// Migration or page faults of unified memory.
    Unified(Unified),
    /// A graph node was created, by an API call or by stream capture.
    GraphNode {
        /// Graph that owns the node. The node's lifetime ends with the graph's.
        graph: GraphId,
        /// Node that was created, by CUPTI's number.
        node: GraphNodeId,
        /// Stack that created the node; the first frame is the API call's label.
        context: ContextId,
    },
    /// A node was copied; instantiation copies all nodes of a graph.
    GraphClone {
        /// Graph that owns the copy. An instantiation is made from such a copied graph.
        graph: GraphId,
        /// Copy of the node.
        node: GraphNodeId,
        /// Node that was copied.
        original: GraphNodeId,
    },
    /// An instantiation took over the operations of another graph's nodes, one by one in the order of the nodes.
    GraphUpdate {
        /// Instantiation that was updated.
        graph: GraphId,
        /// Graph whose nodes were taken over.
        source: GraphId,
        /// Correlation id of the call. Launches with lower ids ran the previous operations of the instantiation.
        correlation: CorrelationId,
    },
    /// A graph or an instantiation was destroyed. Work that the graph launched may still be running.
    GraphEnd {
        /// Graph that was destroyed.
        graph: GraphId,
    },
    /// A window was opened or closed.
    Window {
        /// Whether the window opened or closed.
        edge: WindowEdge,
        /// Time of the edge, ns since 1970.
        time: Nanos,
    },
    /// Launch callbacks were switched on or off. While they are off, launches are not even counted.
    CallbacksSwitched {
        /// Whether launch callbacks are on after the switch.
        on: bool,
        /// Time of the switch, ns since 1970.
        time: Nanos,
    },
    /// The program marked an instant on the timeline.
    Instant(Instant<'a>),
    /// A step of the program begins.
    Step(Step<'a>),
    /// A loss. Counts of rows of the same kind add up.
    Loss {
        /// Kind of loss.
        loss: Loss,
        /// Number of losses since the previous row of this kind.
        count: u64,
    },
    /// A sum that replaces single rows. Sums come last, and each sum occurs once. Module `encode` documents the keys.
    Sum {
        /// Encoded key of the sum.
        key: &'a [u8],
        /// Values of the sum.
        values: &'a [u64],
    },
}

/// The CPU side of starting GPU work. Every launch writes such a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Launch {
    /// Start time of the API call.
    pub time: Nanos,
    /// Duration in nanoseconds. `u32::MAX` means that duration or longer; 0 means that the row was written at the
    /// start of the call.
    pub duration: u32,
    /// Correlation id that the launch's activities will carry.
    pub correlation: CorrelationId,
    /// Correlation id of the enclosing call, if this is a driver call that is nested in a runtime call and has a
    /// separate id; otherwise equal to `correlation`. A row whose `within` differs is an *alias*: the same launch
    /// under a second id.
    pub within: CorrelationId,
    /// Launching context: the stack, and everything that belongs to the stack.
    pub context: ContextId,
}

const _: () = assert!(size_of::<Launch>() == 24, "Launch grew: one is written on every launch");

impl Launch {
    /// Whether this row only adds a second id to a launch.
    pub fn is_alias(&self) -> bool {
        self.within != self.correlation
    }
}

/// Launches made while no window was open. They are counted but not exported. Their correlation ids let the join
/// distinguish their activities from those of lost launches. If an id range grows, later rows repeat the range from
/// its first id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutsideLaunches {
    /// First correlation id of the range.
    pub first: CorrelationId,
    /// Last correlation id of the range. Every id in the range without a launch row was used by a launch made outside
    /// windows.
    pub last: CorrelationId,
    /// Number of launches not counted by earlier rows. Calls other than launches also use ids in the range.
    pub count: u32,
    /// End time of the last launch.
    pub over: Nanos,
}

/// Stack that a thread was in, from one moment until the thread's next such row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostState {
    /// Thread.
    pub thread: ThreadId,
    /// Start time of this state.
    pub since: Nanos,
    /// Stack. [`ContextId::NONE`] means that the stack is unknown from then on.
    pub context: ContextId,
}

/// A call that waited, allocated or freed. Its fields show what a thread did between its launches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostCallSpan {
    /// End time of the call.
    pub ended: Nanos,
    /// Duration in nanoseconds; `u32::MAX` means that duration or longer.
    pub duration: u32,
    /// Stack that made the call.
    pub context: ContextId,
}

/// Stack of a thread, sampled each time the thread has consumed another `period` of CPU time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuSample {
    /// Time of the sample.
    pub time: Nanos,
    /// CPU time that the sample represents, in nanoseconds.
    pub period: u32,
    /// Sampled thread.
    pub thread: ThreadId,
    /// Stack of the thread.
    pub context: ContextId,
}

/// Time in which a thread was off-CPU voluntarily: the thread slept, or waited for any reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffCpuWait {
    /// Time at which the thread left the CPU.
    pub time: Nanos,
    /// Duration in nanoseconds.
    pub duration: u64,
    /// Waiting thread.
    pub thread: ThreadId,
    /// Stack of the thread.
    pub context: ContextId,
}

/// A call that waited: for an event, a stream, a device, or a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// Start time of the call.
    pub time: Nanos,
    /// Duration in nanoseconds.
    pub duration: u64,
    /// Correlation id that the tracer assigned to the call.
    pub correlation: CorrelationId,
    /// Stack that made the call.
    pub context: ContextId,
}

/// A call that allocates or frees memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryCall {
    /// End time of the call. For a call that frees, the start time.
    pub time: Nanos,
    /// Correlation id that the tracer assigned to the call.
    pub correlation: CorrelationId,
    /// Stack that made the call.
    pub context: ContextId,
    /// Address or handle of the memory.
    pub address: u64,
    /// Memory allocated; `None` if the call frees memory.
    pub allocated: Option<Allocation>,
}

/// Memory allocated by a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Allocation {
    /// Kind of memory: device, pinned or managed.
    pub memory: MemoryKind,
    /// Size in bytes.
    pub bytes: u64,
}
/// Quality of a context's stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct ContextFlags(pub u32);

impl ContextFlags {
    /// The stack was deeper than the capture buffer, so the frames at the root are missing.
    pub const TRUNCATED: u32 = 1;
    /// At least one frame had no unwind information and was found through its frame pointer.
    pub const GUESSED: u32 = 2;
    /// The walk ended before the root of the stack, because a frame had neither unwind information nor a frame
    /// pointer.
    pub const CUT: u32 = 4;

    /// Whether all the bits of `flag` are set.
    pub fn has(self, flag: u32) -> bool {
        self.0 & flag == flag
    }

    /// Returns the label that flame graphs show in place of the missing frames at the root.
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

/// A mapped file that contains code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    /// Epoch that distinguishes the module from other modules at the same addresses. [`ModuleEpoch::OUTSIDE`] may
    /// have several modules at one address.
    pub epoch: ModuleEpoch,
    /// First mapped address.
    pub start: u64,
    /// One past the last mapped address.
    pub end: u64,
    /// Difference between mapped and file addresses: `address - bias` is the address inside the file's own address
    /// space (ELF virtual address).
    pub bias: u64,
    /// Path of the file according to the kernel: bytes, possibly non-UTF-8. The path is empty for code without a
    /// file.
    pub path: PathBuf,
    /// GNU build id; empty if the file has none.
    pub build_id: Vec<u8>,
}

/// A Python function, as the interpreter describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeObject<'a> {
    /// Id by which frames refer to the function.
    pub id: CodeId,
    /// Interpreter version, such as `0x030b`, which determines the encoding of `lines`.
    pub version: u16,
    /// First line of the function.
    pub first_line: u32,
    /// Path of the function's source, as passed to the interpreter.
    pub file: &'a str,
    /// Qualified name of the function; before Python 3.11, the plain name.
    pub name: &'a str,
    /// Line table of the function's instructions; empty if unknown.
    pub lines: &'a [u8],
}

/// An instant named by the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instant<'a> {
    /// Time of the instant.
    pub time: Nanos,
    /// Thread that marked the instant.
    pub thread: ThreadId,
    /// Name of the instant.
    pub text: &'a str,
}

/// Beginning of a step, such as a training or decoding step. `step_spans` defines the end of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step<'a> {
    /// Time at which the step began.
    pub time: Nanos,
    /// End of the step; `None` if the step lasts until the next step begins.
    pub end: Option<Nanos>,
    /// Thread that began the step.
    pub thread: ThreadId,
    /// Number of the step in its process, counted from 1. In a trace, the position of the step.
    pub number: u64,
    /// Name of the range that began the step; empty if a call of `gpuflame_step()` began it.
    pub name: &'a str,
}

/// Edge of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WindowEdge {
    /// Launches are recorded from now on.
    Open,
    /// Launches are counted as outside from now on.
    Close,
}
