//! Defines rows, which are the events of a run as plain data. Every module that explains a run reads rows.

use std::path::PathBuf;

use super::activity::{Activity, MemoryKind};
use super::dependencies::{EventCall, EventRecord, GraphEdge, HostNode, LaunchAttributes, SyncRecord};
use super::frame::Frame;
use super::ids::{
    CodeId, ContextId, CorrelationId, GraphId, GraphNodeId, LabelId, ModuleEpoch, NameId, Nanos, RangeId,
    ThreadId,
};
use super::loss::Loss;
use super::provenance::Provenance;
use super::unified::Unified;

/// A row of any kind. Capture, importers and recordings produce rows; the modules that explain a run consume them.
///
/// A row that defines an id (`Name`, `Label`, `Context`, `Module`) precedes the first row that uses the id.
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
        /// Quality of the stack: whether it is complete and certain.
        flags: ContextFlags,
        /// Stack, leaf first: the open ranges (innermost first), then the label of the API call, then the code.
        frames: &'a [Frame],
    },
    /// Text of a [`NameId`]. Kernel names are mangled, as the tracer reports them. A name that is not UTF-8 was
    /// converted.
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
    /// Name of a generated function, which has an address but no file, as published by the code generator. These rows
    /// come last. A checkpoint contains this row as soon as the name is known. If another function later uses the
    /// address, the checkpoint contains a second row, with an empty name, because the name is then ambiguous.
    Generated {
        /// Address of the function, as frames contain it.
        address: u64,
        /// Function name; may be mangled.
        name: &'a str,
    },
    /// A function at a native frame, which the process looked up in the frame's file when it exited. The first row of a
    /// frame contains the function whose code this is; further rows contain the functions inlined into it, outermost
    /// first.
    Function {
        /// The frame.
        frame: Frame,
        /// The function. The name is empty if the file has no symbol for the frame.
        function: FrameFunction<'a>,
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
    /// A fact about the origin of the recording. A recording may contain several facts of one kind.
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
    /// Stack that a thread has from a given time on. The thread made no call at that time. Such rows exist only for
    /// times in
    /// which a GPU was idle.
    HostState(HostState),
    /// A completed call that launched nothing. These rows and the launches of the same thread are in the order of their
    /// times.
    HostCallSpan(HostCallSpan),
    /// A CPU sample: a thread was on a CPU.
    Sampled(CpuSample),
    /// An off-CPU wait of a thread.
    Blocked(OffCpuWait),
    /// A completed call that waited for a GPU.
    Wait(Wait),
    /// Memory was allocated, or is about to be freed. These rows are in the order in which the calls occurred.
    Memory(MemoryCall),
    /// An event was recorded on a stream, as reported by the tracer.
    EventRecord(EventRecord),
    /// The host or a stream waited, as reported by the tracer.
    Sync(SyncRecord),
    /// A call recorded an event on a stream, or made a stream wait for an event.
    EventCall(EventCall),
    /// Migration or page faults of unified memory.
    Unified(Unified),
    /// A graph node was created, by an API call or by stream capture.
    GraphNode {
        /// Graph that owns the node. The node exists as long as the graph.
        graph: GraphId,
        /// Node that was created, by CUPTI's number.
        node: GraphNodeId,
        /// Stack that created the node; the first frame is the API call's label.
        context: ContextId,
    },
    /// A node was copied; instantiation copies all nodes of a graph.
    GraphClone {
        /// Graph that owns the copy. To instantiate a graph, CUDA first copies the graph, and then makes the
        /// instantiation from the copy.
        graph: GraphId,
        /// Copy of the node.
        node: GraphNodeId,
        /// Node that was copied.
        original: GraphNodeId,
    },
    /// An instantiation was updated from another graph: each node of the instantiation took over the operation of the
    /// other graph's node at the same position.
    GraphUpdate {
        /// Instantiation that was updated.
        graph: GraphId,
        /// Graph whose operations were taken over.
        source: GraphId,
        /// Correlation id of the updating call. Launches with lower ids ran the operations from before the update.
        correlation: CorrelationId,
    },
    /// A node of a graph waits for another node.
    GraphEdge(GraphEdge),
    /// A node of a graph ran a function on the host.
    HostNode(HostNode),
    /// A launch with attributes returned.
    LaunchAttributes(LaunchAttributes),
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
    /// Launch callbacks were switched on or off. While they are off, launches are neither recorded nor counted.
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
    /// A loss. The total of a kind of loss is the sum of its rows.
    Loss {
        /// Kind of loss.
        loss: Loss,
        /// Number of losses since the previous row of the same kind of loss.
        count: u64,
    },
    /// A sum that replaces single rows. Rows of sums come last, and each sum has one row. Module `encode` documents the
    /// keys.
    Sum {
        /// Encoded key of the sum.
        key: &'a [u8],
        /// Values of the sum.
        values: &'a [u64],
    },
}

/// The CPU side of starting GPU work. Every launch produces such a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Launch {
    /// Start time of the API call.
    pub time: Nanos,
    /// Duration in nanoseconds. `u32::MAX` means at least `u32::MAX` nanoseconds. 0 means that the row was written
    /// when the call started.
    pub duration: u32,
    /// Correlation id that the launch's activities will carry.
    pub correlation: CorrelationId,
    /// Correlation id of the enclosing call, if this is a driver call inside a runtime call and each of the two calls
    /// has its own id; otherwise equal to `correlation`. If `within` differs from `correlation`, the row is an *alias*,
    /// which gives the launch a second id.
    pub within: CorrelationId,
    /// Launching context: the stack, with its ranges and thread.
    pub context: ContextId,
}

const _: () = assert!(size_of::<Launch>() == 24, "Launch grew: one is written on every launch");

impl Launch {
    /// Whether this row only adds a second id to a launch.
    pub fn is_alias(&self) -> bool {
        self.within != self.correlation
    }
}

/// Launches made while no window was open, which are counted but not exported. If an activity has no launch row, the
/// join compares its correlation id with these ranges: the launch was made outside windows if the id is in a range, and
/// was lost otherwise. If a range of ids grows, a later row repeats the range from its first id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutsideLaunches {
    /// First correlation id of the range.
    pub first: CorrelationId,
    /// Last correlation id of the range. If an id in the range has no launch row, any launch with that id was made
    /// outside windows.
    pub last: CorrelationId,
    /// Number of launches in the range that earlier rows did not count. (The range also contains ids of other calls.)
    pub count: u32,
    /// Time at which the last of these launches ended.
    pub over: Nanos,
}

/// Stack of a thread, from a given time until the thread's next row of this kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostState {
    /// Thread that was in the stack.
    pub thread: ThreadId,
    /// Time from which the thread was in the stack.
    pub since: Nanos,
    /// Stack of the thread. [`ContextId::NONE`] means that the stack is unknown from `since` on.
    pub context: ContextId,
}

/// A call that waited, or that allocated or freed memory, and so shows what a thread did between its launches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostCallSpan {
    /// End time of the call.
    pub ended: Nanos,
    /// Duration in nanoseconds; `u32::MAX` means at least `u32::MAX` nanoseconds.
    pub duration: u32,
    /// Stack that made the call.
    pub context: ContextId,
}

/// Stack of a thread that was on a CPU. A sample is taken each time the thread has used another `period` of CPU time.
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

/// A period in which a thread had left its CPU voluntarily: the thread slept, or waited for any reason.
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
    /// End time of the call; for a call that frees memory, its start time.
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
/// Quality of a context's stack: whether it is complete and certain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct ContextFlags(pub u32);

impl ContextFlags {
    /// The stack was deeper than the capture buffer, so the frames closest to the root are missing.
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
    /// Epoch that distinguishes the module from other modules at the same addresses. Several modules may share an
    /// address only if their epoch is [`ModuleEpoch::OUTSIDE`].
    pub epoch: ModuleEpoch,
    /// First mapped address.
    pub start: u64,
    /// The address after the last mapped address.
    pub end: u64,
    /// Difference between addresses in memory and addresses in the file: `address - bias` is the ELF virtual address.
    pub bias: u64,
    /// Path of the file according to the kernel, as bytes that need not be UTF-8. Code without a file has an empty
    /// path.
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

/// A function at a native frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameFunction<'a> {
    /// Name of the function; may be mangled.
    pub name: &'a str,
    /// Address in the frame's file at which the function begins; `None` if unknown. For a function that consists of
    /// several parts, debug information contains the address 0.
    pub start: Option<u64>,
    /// Path of the source file; empty if unknown.
    pub file: &'a str,
    /// Line in the source file; 0 if unknown.
    pub line: u32,
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

/// Beginning of a step, such as a training or decoding step. Module `step_spans` determines where steps end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step<'a> {
    /// Time at which the step began.
    pub time: Nanos,
    /// End of the step; `None` if it is unknown, and the step then lasts until the next step begins.
    pub end: Option<Nanos>,
    /// Thread that began the step.
    pub thread: ThreadId,
    /// Number of the step in its process, counted from 1. In a trace of another tool, the position of the step.
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
