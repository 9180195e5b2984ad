//! The rows: what happened, as plain data. Everything that explains is a consumer of these.

use super::deps::{EventCall, EventRecord, Sync};
use super::frame::Frame;
use super::ids::{
    ContextId, CorrelationId, DeviceId, GpuContextId, GraphId, GraphNodeId, LabelId, ModuleEpoch, NameId,
    Nanos, RangeId, StreamId, ThreadId,
};
use super::unified::Unified;

/// Any row, as it travels from capture (or an importer, or a recording) to the consumers.
///
/// A row that others refer to (`Name`, `Label`, `Context`, `Module`) comes before the first that does.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Row<'a> {
    /// A launch was made.
    Launch(Launch),
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
        /// The text.
        text: &'a str,
    },
    /// The text of a [`LabelId`].
    Label {
        /// The id that label frames hold.
        id: LabelId,
        /// The text.
        text: &'a str,
    },
    /// The name of a [`RangeId`], as the application gave it.
    Range {
        /// The id that range frames hold.
        id: RangeId,
        /// The domain that the name belongs to; empty where it has none.
        domain: &'a str,
        /// The name.
        text: &'a str,
    },
    /// A file that was mapped with code in it.
    Module(Module),
    /// The process that all this happened in.
    Process {
        /// Its number.
        id: u32,
        /// Its program.
        name: &'a str,
    },
    /// A thread's name, at the time it first launched.
    Thread {
        /// The thread.
        id: ThreadId,
        /// Its name (`comm`).
        name: &'a str,
    },
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
        /// The node.
        node: GraphNodeId,
        /// Who made it; the first frame is the API call's label.
        context: ContextId,
    },
    /// A node was copied, as instantiation does with all nodes of a graph.
    GraphClone {
        /// What the copy goes with: the copied graph, of which an instantiation is made.
        graph: GraphId,
        /// The copy.
        node: GraphNodeId,
        /// What it was copied from.
        original: GraphNodeId,
    },
    /// An instantiation took over what the nodes of another graph do, one by one in their order.
    GraphUpdate {
        /// The instantiation.
        graph: GraphId,
        /// The graph whose nodes it took over.
        source: GraphId,
        /// The id of the call: launches before it have lower ones, and ran what the instantiation did then.
        correlation: CorrelationId,
    },
    /// A graph or an instantiation was destroyed. What it launched may still run.
    GraphEnd {
        /// Which.
        graph: GraphId,
    },
    /// A window was opened or closed.
    Window {
        /// Which.
        edge: WindowEdge,
        /// When.
        time: Nanos,
    },
    /// Something was lost; counts add up over rows of the same kind.
    Loss {
        /// What.
        loss: Loss,
        /// How many.
        count: u64,
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

/// A call that waited: for an event, a stream, a device, or a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// When the call began.
    pub time: Nanos,
    /// How long it took, in nanoseconds.
    pub duration: u64,
    /// The id that the tracer gave the call.
    pub correlation: CorrelationId,
    /// Who waited.
    pub context: ContextId,
}

/// A call that allocates or frees memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryCall {
    /// When it returned or, if it frees, began.
    pub time: Nanos,
    /// The id that the tracer gave the call.
    pub correlation: CorrelationId,
    /// Who called.
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
    /// How much.
    pub bytes: u64,
}

/// One piece of work that a GPU did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Activity {
    /// The launch it belongs to.
    pub correlation: CorrelationId,
    /// Where it ran.
    pub device: DeviceId,
    /// The context on that GPU.
    pub context: GpuContextId,
    /// The stream of that context.
    pub stream: StreamId,
    /// The hardware channel; `None` where the tracer does not say.
    pub channel: Option<u32>,
    /// When it began; 0 = not collected.
    pub start: Nanos,
    /// When it ended; 0 = not collected (or still running when the trace was cut).
    pub end: Nanos,
    /// The graph execution it is part of; 0 = none.
    pub graph: GraphId,
    /// The node of that graph; 0 = none.
    pub graph_node: GraphNodeId,
    /// The node that this one was instantiated or last updated from, where the tracer says; else 0.
    pub source_node: GraphNodeId,
    /// Whether the GPU itself launched it, so that there is no launch on the CPU's side.
    pub device_launched: bool,
    /// Where its graph node was made. `None` = it is part of no graph, or nobody looked yet: it stands in no
    /// recording, since the rows about graphs that come before it say it.
    pub created: Option<Created>,
    /// What it was.
    pub detail: Detail,
}

impl Activity {
    /// Nanoseconds of GPU time, or `None` where the times were not collected or run backwards.
    pub fn duration(&self) -> Option<u64> {
        if self.start.0 == 0 || self.end.0 == 0 { None } else { self.end.0.checked_sub(self.start.0) }
    }

    /// The kind of work, without its particulars.
    pub fn work(&self) -> Work {
        match self.detail {
            Detail::Kernel(k) => Work::Kernel(k.name),
            Detail::Copy(c) => Work::Copy(c.kind),
            Detail::Set(_) => Work::Set,
            Detail::Graph => Work::Graph,
        }
    }

    /// Bytes moved or set; 0 for kernels and graphs.
    pub fn bytes(&self) -> u64 {
        match self.detail {
            Detail::Kernel(_) | Detail::Graph => 0,
            Detail::Copy(c) => c.bytes,
            Detail::Set(s) => s.bytes,
        }
    }
}

/// What names an activity in a flame graph: a kernel's name, a copy's direction, or a fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Work {
    /// A kernel.
    Kernel(NameId),
    /// A copy.
    Copy(CopyKind),
    /// A fill.
    Set,
    /// A whole graph.
    Graph,
}

/// Where a graph node was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Created {
    /// On this stack.
    Context(ContextId),
    /// Before recording began, or by copying a node that was.
    BeforeRecording,
    /// Nobody knows: the tracer did not announce it, or what it announced could not be kept.
    Unknown,
}

impl Created {
    /// The frame that flame graphs show where there is no stack.
    pub fn label(self) -> Option<&'static str> {
        match self {
            Self::Context(_) => None,
            Self::BeforeRecording => Some("[graph made before recording]"),
            Self::Unknown => Some("[graph node unknown]"),
        }
    }

    /// The word that ledgers and tables show where there is no stack; lower case, no blanks.
    pub fn word(self) -> &'static str {
        match self {
            Self::Context(_) => "created",
            Self::BeforeRecording => "graph_made_before_recording",
            Self::Unknown => "graph_node_unknown",
        }
    }
}

/// The particulars of an activity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// A kernel ran.
    Kernel(KernelDetail),
    /// Memory was copied.
    Copy(CopyDetail),
    /// Memory was filled.
    Set(SetDetail),
    /// A whole graph ran, of whose nodes there are no activities.
    Graph,
}

/// How a kernel was launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelDetail {
    /// Its (mangled) name.
    pub name: NameId,
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads a block in x, y, z.
    pub block: [u32; 3],
    /// Registers a thread.
    pub registers: u16,
    /// Shared memory fixed at compile time, bytes a block.
    pub static_shared: u32,
    /// Shared memory asked for at launch, bytes a block.
    pub dynamic_shared: u32,
}

/// A copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyDetail {
    /// From where to where.
    pub kind: CopyKind,
    /// The memory read.
    pub from: MemoryKind,
    /// The memory written.
    pub to: MemoryKind,
    /// The GPUs read and written, where they differ (peer to peer).
    pub peers: Option<(DeviceId, DeviceId)>,
    /// Size.
    pub bytes: u64,
    /// Whether the call returned before the copy was done.
    pub is_async: bool,
    /// How many copies it is: more than one where the driver made one of a batch.
    pub copies: u32,
}

/// A fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetDetail {
    /// The memory written.
    pub memory: MemoryKind,
    /// The value.
    pub value: u32,
    /// Size.
    pub bytes: u64,
    /// Whether the call returned before the fill was done.
    pub is_async: bool,
}

/// The direction of a copy, in the tracer's numbers (a newer one may send unknown ones).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CopyKind(pub u8);

impl CopyKind {
    /// Host to device.
    pub const HTOD: Self = Self(1);
    /// Device to host.
    pub const DTOH: Self = Self(2);
    /// Within a device.
    pub const DTOD: Self = Self(8);
    /// Within the host.
    pub const HTOH: Self = Self(9);
    /// Between two devices.
    pub const PTOP: Self = Self(10);

    /// The short name that flame graphs show.
    pub fn label(self) -> &'static str {
        match self.0 {
            1 => "HtoD",
            2 => "DtoH",
            3 => "HtoA",
            4 => "AtoH",
            5 => "AtoA",
            6 => "AtoD",
            7 => "DtoA",
            8 => "DtoD",
            9 => "HtoH",
            10 => "PtoP",
            _ => "unknown",
        }
    }
}

/// What a piece of memory is, in the tracer's numbers (a newer one may send unknown ones).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MemoryKind(pub u16);

impl MemoryKind {
    /// Of the host, and locked.
    pub const PINNED: Self = Self(2);
    /// Of a GPU.
    pub const DEVICE: Self = Self(3);
    /// Of both, which it moves between.
    pub const MANAGED: Self = Self(5);

    /// The short name that the activities table shows.
    pub fn label(self) -> &'static str {
        match self.0 {
            1 => "pageable",
            2 => "pinned",
            3 => "device",
            4 => "array",
            5 => "managed",
            6 => "device_static",
            7 => "managed_static",
            _ => "unknown",
        }
    }
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

/// A mapped file with code in it, over a stretch of epochs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    /// The first epoch in which it was seen; it holds until a later module covers its addresses.
    pub epoch: ModuleEpoch,
    /// First address.
    pub start: u64,
    /// One past the last address.
    pub end: u64,
    /// `address - bias` is the address inside the file's own address space (ELF virtual address).
    pub bias: u64,
    /// Where the file lies; empty for code without a file.
    pub path: String,
    /// The GNU build id; empty where the file has none.
    pub build_id: Vec<u8>,
}

/// The edge of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WindowEdge {
    /// Recording began.
    Open,
    /// Recording ended.
    Close,
}

/// Ways to lose something. Each has a line in the ledger and a row in every export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
#[non_exhaustive]
pub enum Loss {
    /// Launch records for which no chunk was free.
    LaunchesDropped = 1,
    /// Activity records that the tracer itself dropped.
    ActivitiesDropped = 2,
    /// Activity records that could not be read (unknown layout, or a kind we never asked for).
    ActivitiesUnreadable = 3,
    /// Launches made inside gpuflame's own callback (by a signal handler): counted, not recorded.
    StacksNested = 4,
    /// Stacks for which no memory was left.
    StacksDropped = 5,
    /// Stacks deeper than the capture buffer.
    StacksTruncated = 6,
    /// Stacks with a frame found by frame pointer only.
    StacksGuessed = 7,
    /// Stacks whose walk ended before the bottom.
    StacksCut = 8,
    /// Asynchronous launches that the driver refused; they are in no other count. (A synchronous copy that
    /// fails was recorded by then, and is a launch without an activity.)
    LaunchesFailed = 9,
    /// Launches that only added a node to a graph being captured; they have no activity of their own.
    LaunchesCaptured = 10,
    /// Graph nodes (and copies of them) that were made and could not be kept: no id, or no memory.
    GraphNodesDropped = 11,
    /// Ranges that were opened and are in no stack, or under no name, or open for longer than they were: there
    /// were too many.
    RangesDropped = 12,
    /// Calls that waited, were about events, allocated or freed, which there was no room to keep.
    HostCallsDropped = 13,
}

impl Loss {
    /// All kinds, in the order the ledger prints them.
    pub const ALL: [Self; 13] = [
        Self::LaunchesDropped,
        Self::ActivitiesDropped,
        Self::ActivitiesUnreadable,
        Self::StacksNested,
        Self::StacksDropped,
        Self::StacksTruncated,
        Self::StacksGuessed,
        Self::StacksCut,
        Self::LaunchesFailed,
        Self::LaunchesCaptured,
        Self::GraphNodesDropped,
        Self::RangesDropped,
        Self::HostCallsDropped,
    ];

    /// The word that ledgers and tables show; lower case, no blanks.
    pub fn label(self) -> &'static str {
        match self {
            Self::LaunchesDropped => "launches_dropped",
            Self::ActivitiesDropped => "activities_dropped",
            Self::ActivitiesUnreadable => "activities_unreadable",
            Self::StacksNested => "stacks_nested",
            Self::StacksDropped => "stacks_dropped",
            Self::StacksTruncated => "stacks_truncated",
            Self::StacksGuessed => "stacks_guessed",
            Self::StacksCut => "stacks_cut",
            Self::LaunchesFailed => "launches_failed",
            Self::LaunchesCaptured => "launches_captured",
            Self::GraphNodesDropped => "graph_nodes_dropped",
            Self::RangesDropped => "ranges_dropped",
            Self::HostCallsDropped => "host_calls_dropped",
        }
    }
}
