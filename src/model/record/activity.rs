//! Defines GPU activities. An [`Activity`] contains the fields that CUPTI's activity records have.

use super::ids::{
    ContextId, CorrelationId, DeviceId, GpuContextId, GraphId, GraphNodeId, NameId, Nanos, StreamId,
};
use super::kinds::kinds;

/// An activity: one kernel, copy or fill that a GPU ran, or a whole graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Activity {
    /// Correlation id of the launch that caused the activity.
    pub correlation: CorrelationId,
    /// Device on which the activity ran.
    pub device: DeviceId,
    /// GPU context in which the activity ran.
    pub context: GpuContextId,
    /// Stream on which the activity ran. The stream's id is unique only within `context`.
    pub stream: StreamId,
    /// Hardware channel on which the activity ran, or `None` if the tracer does not report the channel.
    pub channel: Option<u32>,
    /// Time at which the activity began, or 0 if CUPTI did not collect this time.
    pub start: Nanos,
    /// Time at which the activity ended. The value is 0 if CUPTI did not collect this time, or if the activity was
    /// still running when the trace ended.
    pub end: Nanos,
    /// Executable graph to which the activity belongs, or 0 if the activity belongs to no graph.
    pub graph: GraphId,
    /// Graph node that the activity ran, or 0 if the activity belongs to no graph node.
    pub graph_node: GraphNodeId,
    /// Graph node from which `graph_node` was instantiated or last updated, or 0 if the tracer does not report this
    /// node.
    pub source_node: GraphNodeId,
    /// Whether code on the GPU launched the activity. No API call of the host launched an activity that the GPU
    /// launched.
    pub device_launched: bool,
    /// Stack that created the activity's graph node, or the reason why this stack is unknown. The field is `None` if
    /// the activity does not belong to a graph, or if the creating stack was not looked up yet. Recordings do not
    /// contain this field. Readers of a recording derive the stack from the rows about graphs that come before the
    /// activity.
    pub created: Option<Created>,
    /// Kind of work (a kernel, copy, fill or graph), with the fields that only this kind has.
    pub detail: Detail,
}

impl Activity {
    /// Returns the duration in nanoseconds. Returns `None` if the times were not collected, or if the end is before the
    /// start.
    pub fn duration(&self) -> Option<u64> {
        if self.start.0 == 0 || self.end.0 == 0 { None } else { self.end.0.checked_sub(self.start.0) }
    }

    /// Returns the kind of work, without the fields that only this kind has.
    pub fn work(&self) -> Work {
        match self.detail {
            Detail::Kernel(k) => Work::Kernel(k.name),
            Detail::Copy(c) => Work::Copy(c.kind),
            Detail::Set(_) => Work::Set,
            Detail::Graph => Work::Graph,
        }
    }

    /// Returns the number of bytes that were copied or filled, or 0 for kernels and graphs.
    pub fn bytes(&self) -> u64 {
        match self.detail {
            Detail::Kernel(_) | Detail::Graph => 0,
            Detail::Copy(c) => c.bytes,
            Detail::Set(s) => s.bytes,
        }
    }
}

/// Kind of GPU work, as flame graphs distinguish them: kernels by name, copies by direction, fills, and graphs.
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

/// Context (stack and API call) that created a graph node, or the reason why this context is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Created {
    /// The node was created in this context.
    Context(ContextId),
    /// The node was created before recording began, or is a copy of such a node.
    BeforeRecording,
    /// The context is unknown, because the tracer did not report the creation of the node, or because gpuflame could
    /// not store it.
    Unknown,
}

impl Created {
    /// Returns the frame that flame graphs show if no creating stack is known.
    pub fn label(self) -> Option<&'static str> {
        match self {
            Self::Context(_) => None,
            Self::BeforeRecording => Some("[graph made before recording]"),
            Self::Unknown => Some("[graph node unknown]"),
        }
    }

    /// Returns the word that ledgers and tables show. The word is lower case and has no blanks.
    pub fn word(self) -> &'static str {
        match self {
            Self::Context(_) => "created",
            Self::BeforeRecording => "graph_made_before_recording",
            Self::Unknown => "graph_node_unknown",
        }
    }
}

/// Kind of an activity, with the fields that only this kind has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Detail {
    /// A kernel ran.
    Kernel(KernelDetail),
    /// Memory was copied.
    Copy(CopyDetail),
    /// Memory was filled.
    Set(SetDetail),
    /// A whole graph ran. For a graph that is reported as a whole, there are no activities for the single nodes.
    Graph,
}

/// Launch parameters of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KernelDetail {
    /// Id of the kernel's mangled name.
    pub name: NameId,
    /// Number of blocks in each of the dimensions x, y and z.
    pub grid: [u32; 3],
    /// Number of threads per block in each of the dimensions x, y and z.
    pub block: [u32; 3],
    /// Number of registers per thread.
    pub registers: u16,
    /// Shared memory declared at compile time, in bytes per block.
    pub static_shared: u32,
    /// Shared memory requested at launch, in bytes per block.
    pub dynamic_shared: u32,
}

/// Parameters of a memory copy.
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
    /// Total number of bytes that were copied.
    pub bytes: u64,
    /// Whether the call returned before the copy was done.
    pub is_async: bool,
    /// Number of copies that the activity represents. The driver may combine a batch of copies into one activity; this
    /// number is then greater than 1.
    pub copies: u32,
}

/// Parameters of a memory fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SetDetail {
    /// Kind of memory that was written.
    pub memory: MemoryKind,
    /// Value to which every element was set.
    pub value: u32,
    /// Total number of bytes that were filled.
    pub bytes: u64,
    /// Whether the call returned before the fill was done.
    pub is_async: bool,
}

kinds! {
    /// Direction of a copy, with the values that CUPTI uses. Newer versions of CUPTI may report values that are not
    /// listed here.
    CopyKind(u8) {
        /// Host to device.
        HTOD = 1, "HtoD";
        /// Device to host.
        DTOH = 2, "DtoH";
        /// Copy from the host to an array.
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
    /// Kind of memory, with the values that CUPTI uses. Newer versions of CUPTI may report values that are not listed
    /// here.
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
