//! Defines GPU activities. An [`Activity`] contains the fields of CUPTI's activity records.

use super::ids::{
    ContextId, CorrelationId, DeviceId, GpuContextId, GraphId, GraphNodeId, NameId, Nanos, StreamId,
};
use super::kinds::kinds;

/// A piece of work done by a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Activity {
    /// Correlation id of the launch that started the activity.
    pub correlation: CorrelationId,
    /// Device on which the activity ran.
    pub device: DeviceId,
    /// GPU context in which the activity ran.
    pub context: GpuContextId,
    /// Stream of that context.
    pub stream: StreamId,
    /// Hardware channel; `None` if the tracer does not report the channel.
    pub channel: Option<u32>,
    /// Start time; 0 if CUPTI did not collect the time.
    pub start: Nanos,
    /// End time; 0 if CUPTI did not collect the time, or the activity was still running when the trace ended.
    pub end: Nanos,
    /// Graph execution to which the activity belongs; 0 if none.
    pub graph: GraphId,
    /// Node of that graph; 0 if none.
    pub graph_node: GraphNodeId,
    /// Node from which `graph_node` was instantiated or last updated; 0 if the tracer does not report it.
    pub source_node: GraphNodeId,
    /// Whether the GPU itself launched the activity. An activity that the GPU launched has no launch on the CPU side.
    pub device_launched: bool,
    /// Origin of the activity's graph node. `None` if the activity is not part of a graph, or if the origin is not yet
    /// resolved. Recordings do not contain the origin: readers derive it from the graph rows that precede the activity.
    pub created: Option<Created>,
    /// Kind of work with the fields of that kind: a kernel, a copy, a fill or a graph.
    pub detail: Detail,
}

impl Activity {
    /// Returns the GPU time in nanoseconds; `None` if the times were not collected, or the end is before the start.
    pub fn duration(&self) -> Option<u64> {
        if self.start.0 == 0 || self.end.0 == 0 { None } else { self.end.0.checked_sub(self.start.0) }
    }

    /// Returns the kind of work, without the fields that only that kind has.
    pub fn work(&self) -> Work {
        match self.detail {
            Detail::Kernel(k) => Work::Kernel(k.name),
            Detail::Copy(c) => Work::Copy(c.kind),
            Detail::Set(_) => Work::Set,
            Detail::Graph => Work::Graph,
        }
    }

    /// Returns the number of bytes moved or set; 0 for kernels and graphs.
    pub fn bytes(&self) -> u64 {
        match self.detail {
            Detail::Kernel(_) | Detail::Graph => 0,
            Detail::Copy(c) => c.bytes,
            Detail::Set(s) => s.bytes,
        }
    }
}

/// Kind of work that flame graphs distinguish: a kernel by name, a copy by direction, a fill, or a graph.
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

/// Origin of a graph node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Created {
    /// The node was created on this stack.
    Context(ContextId),
    /// The node was created before recording began, or is a copy of such a node.
    BeforeRecording,
    /// The origin is unknown: the tracer did not announce the node, or gpuflame could not store the announcement.
    Unknown,
}

impl Created {
    /// Returns the frame that flame graphs show if the node has no stack.
    pub fn label(self) -> Option<&'static str> {
        match self {
            Self::Context(_) => None,
            Self::BeforeRecording => Some("[graph made before recording]"),
            Self::Unknown => Some("[graph node unknown]"),
        }
    }

    /// Returns the word for ledgers and tables: lower case, no blanks.
    pub fn word(self) -> &'static str {
        match self {
            Self::Context(_) => "created",
            Self::BeforeRecording => "graph_made_before_recording",
            Self::Unknown => "graph_node_unknown",
        }
    }
}

/// Fields of an activity that depend on its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Detail {
    /// A kernel ran.
    Kernel(KernelDetail),
    /// Memory was copied.
    Copy(CopyDetail),
    /// Memory was filled.
    Set(SetDetail),
    /// A whole graph ran, without activities for its nodes.
    Graph,
}

/// Launch parameters of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KernelDetail {
    /// Mangled name of the kernel.
    pub name: NameId,
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads per block in x, y, z.
    pub block: [u32; 3],
    /// Registers per thread.
    pub registers: u16,
    /// Shared memory fixed at compile time, in bytes per block.
    pub static_shared: u32,
    /// Shared memory requested at launch, in bytes per block.
    pub dynamic_shared: u32,
}

/// Parameters of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CopyDetail {
    /// Direction of the copy.
    pub kind: CopyKind,
    /// Kind of memory that was read.
    pub from: MemoryKind,
    /// Kind of memory that was written.
    pub to: MemoryKind,
    /// Source GPU and destination GPU, if the copy is between two GPUs (peer to peer).
    pub peers: Option<(DeviceId, DeviceId)>,
    /// Total bytes.
    pub bytes: u64,
    /// Whether the call returned before the copy was done.
    pub is_async: bool,
    /// Number of copies for which the activity stands; greater than one if the driver combined a batch of copies.
    pub copies: u32,
}

/// Parameters of a fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SetDetail {
    /// Kind of memory that was written.
    pub memory: MemoryKind,
    /// Value to which every element was set.
    pub value: u32,
    /// Total bytes.
    pub bytes: u64,
    /// Whether the call returned before the fill was done.
    pub is_async: bool,
}

kinds! {
    /// Direction of a copy, in CUPTI's numbers. Newer versions of CUPTI may report numbers that are not listed here.
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
    /// Returns the short name that flame graphs show.
    label
}

kinds! {
    /// Kind of memory, in CUPTI's numbers. Newer versions of CUPTI may report numbers that are not listed here.
    MemoryKind(u16) {
        /// CUPTI does not report the kind of memory.
        UNKNOWN = 0, "unknown";
        /// Pageable host memory.
        PAGEABLE = 1, "pageable";
        /// Pinned host memory.
        PINNED = 2, "pinned";
        /// Device memory.
        DEVICE = 3, "device";
        /// Array in device memory.
        ARRAY = 4, "array";
        /// Managed memory, which moves between host and GPUs.
        MANAGED = 5, "managed";
        /// Static variable on a GPU.
        DEVICE_STATIC = 6, "device_static";
        /// Static managed variable.
        MANAGED_STATIC = 7, "managed_static";
    } else "unknown"
    /// Returns the short name that the activities table shows.
    label
}
