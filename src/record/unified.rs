//! What memory that the host and GPUs share costs beside copies that somebody asked for: pages that move to where they
//! are touched, and faults. No call is named by the tracer: these rows have no launch and no stack.

use super::ids::{DeviceId, Nanos};

/// Something happened to unified memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unified {
    /// The kind of traffic.
    pub kind: UnifiedKind,
    /// Bytes that moved, or how many faults.
    pub value: u64,
    /// When it began.
    pub start: Nanos,
    /// When it was over; 0 for what has no length.
    pub end: Nanos,
    /// The first address.
    pub address: u64,
    /// The processor it came from; a GPU only where `kind` says so.
    pub source: DeviceId,
    /// The processor it went to; a GPU only where `kind` says so.
    pub target: DeviceId,
    /// The tracer's flags: why it moved, or what access faulted.
    pub flags: u32,
}

impl Unified {
    /// The GPU that took part; `None` for faults of the host and kinds of a later tracer.
    pub fn device(&self) -> Option<DeviceId> {
        match self.kind {
            UnifiedKind::HTOD | UnifiedKind::DTOD => Some(self.target),
            UnifiedKind::DTOH | UnifiedKind::GPU_FAULTS => Some(self.source),
            _ => None,
        }
    }

    /// How long it took, in nanoseconds; `None` where that is not told or makes no sense.
    pub fn duration(&self) -> Option<u64> {
        if self.end.0 == 0 { None } else { self.end.0.checked_sub(self.start.0) }
    }
}

/// What happened, in numbers of ours (a later version may write others).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UnifiedKind(pub u32);

impl UnifiedKind {
    /// What has no number yet.
    pub const OTHER: Self = Self(0);
    /// Bytes moved to a GPU.
    pub const HTOD: Self = Self(1);
    /// Bytes moved to the host.
    pub const DTOH: Self = Self(2);
    /// The host touched pages that were elsewhere.
    pub const CPU_FAULTS: Self = Self(3);
    /// A GPU did.
    pub const GPU_FAULTS: Self = Self(4);
    /// Bytes moved between GPUs.
    pub const DTOD: Self = Self(5);

    /// Whether bytes moved.
    pub fn is_move(self) -> bool {
        matches!(self, Self::HTOD | Self::DTOH | Self::DTOD)
    }

    /// The short name that tables show.
    pub fn label(self) -> &'static str {
        match self {
            Self::HTOD => "HtoD",
            Self::DTOH => "DtoH",
            Self::DTOD => "DtoD",
            Self::CPU_FAULTS => "CPU faults",
            Self::GPU_FAULTS => "GPU faults",
            _ => "other",
        }
    }
}
