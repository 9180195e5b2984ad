//! The struct with which the three libraries describe a kernel, a copy, a memset or a graph launch.

use crate::faults::Fault;
use crate::kernel::Kernel;
use crate::site::Site;
use std::ffi::{CStr, c_char};

/// Kind of GPU work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum WorkKind {
    /// A kernel.
    Kernel,
    /// A copy within a device or to and from the host.
    Memcpy,
    /// A memset.
    Memset,
    /// A copy between two devices.
    MemcpyP2p,
    /// A launch of a whole graph whose nodes have no activity records.
    Graph,
}

impl WorkKind {
    /// Name of the kind in the truth file.
    pub fn name(self) -> &'static str {
        match self {
            WorkKind::Kernel => "kernel",
            WorkKind::Memcpy => "memcpy",
            WorkKind::Memset => "memset",
            WorkKind::MemcpyP2p => "memcpy_p2p",
            WorkKind::Graph => "graph",
        }
    }

    /// CUgraphNodeType
    pub fn node_type(self) -> u32 {
        match self {
            WorkKind::Kernel => 0,
            WorkKind::Memcpy | WorkKind::MemcpyP2p => 1,
            WorkKind::Memset => 2,
            WorkKind::Graph => 4,
        }
    }
}

/// Kind of memory, with CUPTI's value for the kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Memory {
    /// Plain host memory.
    Pageable = 1,
    /// Page-locked (pinned) host memory.
    Pinned = 2,
    /// Memory on a device.
    Device = 3,
    /// Device memory in a texture's layout.
    Array = 4,
    /// Memory from cuMemAllocManaged.
    Managed = 5,
}

/// Direction of a copy, with CUPTI's value for the copy kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Copy {
    /// The work is not a copy.
    None = 0,
    /// Host to device.
    HtoD = 1,
    /// Device to host.
    DtoH = 2,
    /// Host to array.
    HtoA = 3,
    /// Array to host.
    AtoH = 4,
    /// Array to array.
    AtoA = 5,
    /// Array to device.
    AtoD = 6,
    /// Device to array.
    DtoA = 7,
    /// Within a device.
    DtoD = 8,
    /// Within the host.
    HtoH = 9,
    /// Between devices.
    PtoP = 10,
}

impl Copy {
    /// Name of the direction in the truth file.
    pub fn name(self) -> Option<&'static str> {
        match self {
            Copy::None => None,
            Copy::HtoD => Some("HtoD"),
            Copy::DtoH => Some("DtoH"),
            Copy::HtoA => Some("HtoA"),
            Copy::AtoH => Some("AtoH"),
            Copy::AtoA => Some("AtoA"),
            Copy::AtoD => Some("AtoD"),
            Copy::DtoA => Some("DtoA"),
            Copy::DtoD => Some("DtoD"),
            Copy::HtoH => Some("HtoH"),
            Copy::PtoP => Some("PtoP"),
        }
    }
}

/// A device and a CUDA context on this device.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Place {
    /// Ordinal of the device.
    pub device: u32,
    /// Id of the CUDA context. Ids are small integers that count from 1.
    pub context: u32,
}

/// Graph and graph node to which GPU work belongs; all fields are zero if the work does not belong to a graph.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct NodeRun {
    /// Id of the executable graph.
    pub graph: u32,
    /// Id of the node in the executable graph.
    pub node: u64,
    /// Id of the graph from which the node was instantiated or last updated.
    pub source_graph: u32,
    /// Id of the node in the source graph from which the work's node was created.
    pub source_node: u64,
    /// Call site at which the source node was created.
    pub created: Option<&'static Site>,
}

/// A kernel, copy, memset or graph launch. The times are already known when the work is submitted, because the
/// simulation computes them from durations.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(missing_docs)] // the fields have the names of the record's fields
pub struct Work {
    pub kind: WorkKind,
    pub copy: Copy,
    pub source: Memory,
    pub target: Memory,
    pub asynchronous: bool,
    pub fault: Option<Fault>,
    pub correlation: u32,
    /// Correlation id of the nested driver call, with GPUSIM_CORR=distinct; otherwise 0.
    pub nested_correlation: u32,
    pub tid: u32,
    pub place: Place,
    pub stream: u32,
    pub bytes: u64,
    pub copies: u64,
    pub start: u64,
    pub end: u64,
    /// CLOCK_REALTIME time of the outermost API call's ENTER callback.
    pub enter: u64,
    pub site: Option<&'static Site>,
    /// Name of the outermost API call, a static string.
    pub api: *const c_char,
    pub kernel: Option<&'static Kernel>,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared_bytes: u32,
    /// Value that a memset writes.
    pub value: u32,
    pub peer_source: Place,
    pub peer_target: Place,
    pub graph: NodeRun,
    /// Index of the work's key (site, kind, name, device) in the truth file; 0 without a truth file.
    pub tally: u32,
}

impl Work {
    /// Returns the correlation id in the activity record.
    pub fn record_correlation(&self) -> u32 {
        if self.nested_correlation != 0 { self.nested_correlation } else { self.correlation }
    }

    /// Returns the kernel's mangled name.
    pub fn name(&self) -> Option<&'static CStr> {
        self.kernel.map(|k| k.name)
    }
}

/// What happened to the activity record of GPU work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Fate {
    /// No client has enabled an activity kind for this work.
    Untraced,
    /// No buffer was available.
    Dropped,
    /// The record is in a buffer that was not delivered, or was delivered incomplete.
    Pending,
    /// The record was delivered to the client, complete.
    Delivered,
}

impl Fate {
    /// Returns the name of this value in the truth file.
    pub fn name(self) -> &'static str {
        match self {
            Fate::Untraced => "untraced",
            Fate::Dropped => "dropped",
            Fate::Pending => "pending",
            Fate::Delivered => "delivered",
        }
    }
}
