//! What a GPU did, piece by piece, with all that its records say.

use super::ids::{
    ContextId, CorrelationId, DeviceId, GpuContextId, GraphId, GraphNodeId, NameId, Nanos, StreamId,
};
use super::kinds::kinds;

/// One piece of work that a GPU did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Activity {
    /// The launch it belongs to.
    pub correlation: CorrelationId,
    /// The device that it ran on.
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
    /// What ran: a kernel, a copy, a fill or a graph.
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
    /// Registers of each thread.
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
    /// Bytes in all.
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
    /// The value that every element was set to.
    pub value: u32,
    /// Bytes in all.
    pub bytes: u64,
    /// Whether the call returned before the fill was done.
    pub is_async: bool,
}

kinds! {
    /// The direction of a copy, in the tracer's numbers (a newer one may send unknown ones).
    CopyKind(u8) {
        /// Host to device.
        HTOD = 1, "HtoD";
        /// Device to host.
        DTOH = 2, "DtoH";
        /// Host to an array.
        HTOA = 3, "HtoA";
        /// Array to host.
        ATOH = 4, "AtoH";
        /// Array to array.
        ATOA = 5, "AtoA";
        /// Array to device.
        ATOD = 6, "AtoD";
        /// Device to array.
        DTOA = 7, "DtoA";
        /// Within a device.
        DTOD = 8, "DtoD";
        /// Within the host.
        HTOH = 9, "HtoH";
        /// Between two devices.
        PTOP = 10, "PtoP";
    } else "unknown"
    /// The short name that flame graphs show.
    label
}

kinds! {
    /// What a piece of memory is, in the tracer's numbers (a newer one may send unknown ones).
    MemoryKind(u16) {
        /// CUPTI does not say.
        UNKNOWN = 0, "unknown";
        /// Of the host.
        PAGEABLE = 1, "pageable";
        /// Of the host, and locked.
        PINNED = 2, "pinned";
        /// Of a GPU.
        DEVICE = 3, "device";
        /// Of a GPU, as an array.
        ARRAY = 4, "array";
        /// Of both, which it moves between.
        MANAGED = 5, "managed";
        /// A variable of a GPU.
        DEVICE_STATIC = 6, "device_static";
        /// A variable of both.
        MANAGED_STATIC = 7, "managed_static";
    } else "unknown"
    /// The short name that the activities table shows.
    label
}
