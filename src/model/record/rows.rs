//! Defines rows, which describe the events of a run as plain data. All modules that compute a profile of a run read
//! rows.

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

/// A row, which describes an event of a run or defines an id. Capture, importers and readers of recordings produce
/// rows. The modules that compute a profile consume rows.
///
/// A row that defines an id (such as `Name`, `Label`, `Context` or `Module`) comes before the first row that uses the
/// id.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Row<'a> {
    /// A launch.
    Launch(Launch),
    /// A range of launches that were made while no window was open.
    Outside(OutsideLaunches),
    /// A GPU activity.
    Activity(Activity),
    /// Definition of a [`ContextId`].
    Context {
        /// Id by which launches and other rows refer to the context.
        id: ContextId,
        /// Thread that makes the launches.
        thread: ThreadId,
        /// Flags about defects of the stack.
        flags: ContextFlags,
        /// Frames of the stack, leaf first. The open ranges come first (innermost first), then the label of the API
        /// call, then the code.
        frames: &'a [Frame],
    },
    /// Text of a [`NameId`]. Kernel names are mangled, as the tracer reports them. Names that are not UTF-8 were
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
    /// Name of a function that was generated at run time, as published by the code generator. In a recording that
    /// contains all rows, the names of generated functions come last. In a checkpoint, the row comes as soon as the
    /// name is known. If a different function uses the same address later, the name is ambiguous, and the checkpoint
    /// contains a second row with an empty name.
    Generated {
        /// Address in the function's code, as it occurs in a frame.
        address: u64,
        /// Name of the function, which may be mangled.
        name: &'a str,
    },
    /// A function to which a native frame belongs. The recorded process looked up the function in the frame's file when
    /// the process exited. The first row for a frame contains the function that was compiled on its own. Further rows
    /// contain the functions that were inlined into this function, outermost first.
    Function {
        /// Native frame whose function was looked up.
        frame: Frame,
        /// Function to which the frame belongs. The name is empty if the file has no symbol for the frame.
        function: FrameFunction<'a>,
    },
    /// A file, mapped into memory, that contains code.
    Module(Module),
    /// The process that was recorded.
    Process {
        /// Process id.
        id: u32,
        /// File name of the program.
        name: &'a str,
    },
    /// A fact about the origin of the recording, such as the host's name. A recording may contain several facts of one
    /// kind.
    Provenance {
        /// Kind of fact.
        what: Provenance,
        /// Value of the fact, for example the name of a host.
        text: &'a str,
    },
    /// Name that a thread had at its first launch.
    Thread {
        /// Kernel thread id.
        id: ThreadId,
        /// Thread name (`comm`).
        name: &'a str,
    },
    /// A stack that a thread enters between two of its calls. Rows of this kind exist only for times at which a GPU was
    /// idle.
    HostState(HostState),
    /// A completed API call that launched no work. The rows about calls are sorted by time, together with the launches
    /// of the same thread.
    HostCallSpan(HostCallSpan),
    /// A CPU sample: the stack of a thread that was on a CPU.
    Sampled(CpuSample),
    /// A wait during which a thread was off-CPU.
    Blocked(OffCpuWait),
    /// A completed API call that waited for a GPU.
    Wait(Wait),
    /// A call that allocated memory, or that is about to free memory. Rows about allocations and frees are in the order
    /// of the calls.
    Memory(MemoryCall),
    /// The tracer's record that a CUDA event was recorded on a stream.
    EventRecord(EventRecord),
    /// The tracer's record that the host or a stream waited.
    Sync(SyncRecord),
    /// An API call that recorded a CUDA event on a stream, or made a stream wait for a CUDA event.
    EventCall(EventCall),
    /// Migration or page faults of unified memory.
    Unified(Unified),
    /// A graph node was created, by an API call or by stream capture.
    GraphNode {
        /// Graph to which the new node belongs. The node exists as long as this graph exists.
        graph: GraphId,
        /// CUPTI's id of the node that was created.
        node: GraphNodeId,
        /// Context (stack and API call) that created the node. The first frame of the context's stack is the label of
        /// the API call.
        context: ContextId,
    },
    /// A graph node was copied. When a graph is instantiated, all nodes of the graph are copied.
    GraphClone {
        /// Graph that owns the copy. To instantiate a graph, CUDA first copies the graph, and then creates the
        /// instantiation from the copy.
        graph: GraphId,
        /// The node that is the copy.
        node: GraphNodeId,
        /// The node that was copied.
        original: GraphNodeId,
    },
    /// An instantiation of a graph was updated from a different graph. Each node of the instantiation then has the
    /// operation of the other graph's node at the same position.
    GraphUpdate {
        /// Instantiation that was updated.
        graph: GraphId,
        /// Graph from which the instantiation was updated.
        source: GraphId,
        /// Correlation id of the call that updated the instantiation. Launches with lower correlation ids ran the
        /// earlier operations.
        correlation: CorrelationId,
    },
    /// A node of a graph waits for a second node.
    GraphEdge(GraphEdge),
    /// A node of a graph ran a function on the host.
    HostNode(HostNode),
    /// The attributes of a launch.
    LaunchAttributes(LaunchAttributes),
    /// A graph, or an instantiation of a graph, was destroyed. Work that was launched from the graph may still be
    /// running.
    GraphEnd {
        /// Graph that was destroyed.
        graph: GraphId,
    },
    /// A window was opened or closed.
    Window {
        /// Whether the window opened or closed.
        edge: WindowEdge,
        /// Time at which the window opened or closed, in ns since 1970.
        time: Nanos,
    },
    /// Launch callbacks were switched on or off. While launch callbacks are off, launches are neither recorded nor
    /// counted.
    CallbacksSwitched {
        /// Whether launch callbacks are on after this switch.
        on: bool,
        /// Time of the switch, in ns since 1970.
        time: Nanos,
    },
    /// The program marked an instant on the timeline.
    Instant(Instant<'a>),
    /// A step of the program, such as a training step, begins.
    Step(Step<'a>),
    /// A number of items that were lost. Each row adds to the total for its kind of loss.
    Loss {
        /// Kind of loss.
        loss: Loss,
        /// Number of items lost since the previous row about the same kind of loss.
        count: u64,
    },
    /// A sum over a run, in a recording that contains sums instead of single rows. The rows with sums come last in a
    /// recording, and each sum has one row. Module `encode` documents the keys.
    Sum {
        /// Encoded key of the sum.
        key: &'a [u8],
        /// Values of the sum.
        values: &'a [u64],
    },
}

/// A launch: an API call on the CPU that starts GPU work. There is one launch row for each launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Launch {
    /// Time at which the API call began.
    pub time: Nanos,
    /// Duration of the API call in nanoseconds. The highest value, `u32::MAX`, means at least `u32::MAX` nanoseconds.
    /// The value 0 means that the row was written when the call began.
    pub duration: u32,
    /// Correlation id of the launch. Activities of the launch have the same id.
    pub correlation: CorrelationId,
    /// Usually the same id as `correlation`. If a runtime call made this driver call and has a different id, this field
    /// is the id of the runtime call. If this id and `correlation` differ, the row is an *alias*, which gives the
    /// launch a second id.
    pub within: CorrelationId,
    /// Launch context: the stack (with its API call and open ranges) and the thread.
    pub context: ContextId,
}

const _: () = assert!(size_of::<Launch>() == 24, "Launch grew: one is written on every launch");

impl Launch {
    /// Whether this row only adds a second id to a launch, instead of describing a launch.
    pub fn is_alias(&self) -> bool {
        self.within != self.correlation
    }
}

/// A range of correlation ids of launches that were made while no window was open. Launches outside of windows are
/// counted but not exported. If an activity has no launch row, its id is compared with these ranges. If the activity's
/// id is in a range, its launch was made outside of windows; otherwise its launch was lost. When a range grows, a later
/// row contains the whole range again, beginning at its first id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutsideLaunches {
    /// First correlation id of the range.
    pub first: CorrelationId,
    /// Last correlation id of the range. A launch with an id in the range was made outside of windows, unless it has a
    /// launch row.
    pub last: CorrelationId,
    /// Number of launches in the range that earlier rows have not counted. (The range may also contain ids of other API
    /// calls.)
    pub count: u32,
    /// Time at which the last launching call in the range ended.
    pub over: Nanos,
}

/// State of a thread between its calls: the stack that the thread had from a given time until the next row of this
/// kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostState {
    /// Thread that had the stack.
    pub thread: ThreadId,
    /// Time at which the thread entered the state.
    pub since: Nanos,
    /// Context that contains the thread's stack. The value [`ContextId::NONE`] means that the stack of the thread is
    /// unknown after `since`.
    pub context: ContextId,
}

/// An API call that waited, or that allocated or freed memory. API calls that do not launch work show what a thread did
/// between its launches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostCallSpan {
    /// Time at which the call ended.
    pub ended: Nanos,
    /// Duration of the call in nanoseconds. The highest value, `u32::MAX`, means at least `u32::MAX` nanoseconds.
    pub duration: u32,
    /// Context (stack and API function) of the call.
    pub context: ContextId,
}

/// Stack of a thread that was on a CPU. A sample is taken each time the thread has used `period` more nanoseconds of
/// CPU time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuSample {
    /// Time at which the sample was taken.
    pub time: Nanos,
    /// CPU time that the sample represents, in nanoseconds.
    pub period: u32,
    /// Sampled thread.
    pub thread: ThreadId,
    /// Context that contains the stack of the thread.
    pub context: ContextId,
}

/// A period during which a thread was off-CPU because it slept or waited, and not because it was preempted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffCpuWait {
    /// Time at which the thread left the CPU.
    pub time: Nanos,
    /// Duration of the wait in nanoseconds.
    pub duration: u64,
    /// Thread that waited.
    pub thread: ThreadId,
    /// Context that contains the stack of the thread.
    pub context: ContextId,
}

/// A call that waited for an event, a stream, a device or a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// Start time of the call.
    pub time: Nanos,
    /// Duration of the call in nanoseconds.
    pub duration: u64,
    /// Correlation id that the tracer assigned to the call.
    pub correlation: CorrelationId,
    /// Context (stack and API function) of the call.
    pub context: ContextId,
}

/// A call that allocates or frees memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryCall {
    /// Time at which the call ended. For a call that frees memory, this field is the time at which the call began.
    pub time: Nanos,
    /// Correlation id that the tracer assigned to the call.
    pub correlation: CorrelationId,
    /// Context (stack and API function) of the call.
    pub context: ContextId,
    /// Address or handle of the allocated or freed memory.
    pub address: u64,
    /// Size and kind of the allocated memory, or `None` if the call frees memory.
    pub allocated: Option<Allocation>,
}

/// Memory that a call allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Allocation {
    /// Kind of memory, such as device, pinned or managed.
    pub memory: MemoryKind,
    /// Size of the memory in bytes.
    pub bytes: u64,
}
/// Flags about defects of a context's stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct ContextFlags(pub u32);

impl ContextFlags {
    /// The stack had more frames than the capture buffer, so the frames closest to the root are missing.
    pub const TRUNCATED: u32 = 1;
    /// At least one frame had no unwind information and was found through its frame pointer.
    pub const GUESSED: u32 = 2;
    /// Unwinding ended before the root of the stack, because a frame had neither unwind information nor a frame
    /// pointer.
    pub const CUT: u32 = 4;

    /// Whether all bits of `flag` are set.
    pub fn has(self, flag: u32) -> bool {
        self.0 & flag == flag
    }

    /// Returns the label that flame graphs show at the root, in place of the missing frames.
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
    /// Epoch that distinguishes the module from other modules at the same addresses. Modules with the same epoch do not
    /// overlap, except modules with the epoch [`ModuleEpoch::OUTSIDE`].
    pub epoch: ModuleEpoch,
    /// First mapped address.
    pub start: u64,
    /// End of the mapped addresses (exclusive), in the memory of the process.
    pub end: u64,
    /// Difference between an address in memory and the ELF virtual address in the file: `address - bias` is the ELF
    /// virtual address.
    pub bias: u64,
    /// Path of the file as reported by the Linux kernel. The path may be non-UTF-8. The path is empty if the code is
    /// not in a file.
    pub path: PathBuf,
    /// GNU build id of the file, or an empty list if the file has no build id.
    pub build_id: Vec<u8>,
}

/// A Python function, as the interpreter describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeObject<'a> {
    /// Id by which frames refer to the Python function.
    pub id: CodeId,
    /// Version of the interpreter, such as `0x030b`. The version determines the encoding of `lines`.
    pub version: u16,
    /// First line of the function.
    pub first_line: u32,
    /// Path of the function's source file, as it was passed to the interpreter.
    pub file: &'a str,
    /// Qualified name of the function. Before Python 3.11, this field contains only the last part of the qualified
    /// name.
    pub name: &'a str,
    /// Line table of the function's instructions. The field is empty if the line table is unknown.
    pub lines: &'a [u8],
}

/// A function to which a native frame belongs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameFunction<'a> {
    /// Name of the function, which may be mangled.
    pub name: &'a str,
    /// Address in the frame's file at which the function begins. The field is `None` if the address is unknown. The
    /// address is 0 if the function's code consists of several parts, because debug information contains this value for
    /// such a function.
    pub start: Option<u64>,
    /// Path of the source file. Empty if the path is unknown.
    pub file: &'a str,
    /// Line number in the source file, or 0 if the line is unknown.
    pub line: u32,
}

/// An instant that the program marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instant<'a> {
    /// Time of the instant.
    pub time: Nanos,
    /// Thread that marked the instant.
    pub thread: ThreadId,
    /// Text that the program passed with the mark.
    pub text: &'a str,
}

/// The beginning of a step of the program, such as a training or decoding step. Module `step_spans` determines where
/// steps end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step<'a> {
    /// Time at which the step began.
    pub time: Nanos,
    /// Time at which the step ended. The field is `None` if the end is unknown; the step then lasts until the next step
    /// begins.
    pub end: Option<Nanos>,
    /// Thread that began the step.
    pub thread: ThreadId,
    /// Sequence number of the step in the process, starting at 1. In another tool's trace, the number is the position
    /// of the step in the trace.
    pub number: u64,
    /// Name of the range whose beginning started the step. Empty if a call of `gpuflame_step()` started the step.
    pub name: &'a str,
}

/// Whether a window opens or closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WindowEdge {
    /// The window opens: launches after this time are recorded.
    Open,
    /// The window closes: launches after this time are only counted as made outside of windows.
    Close,
}
