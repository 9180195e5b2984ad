//! What memory that the host and GPUs share costs beside copies that somebody asked for: pages that move to where they
//! are touched, and faults. No call is named by the tracer: these rows have no launch and no stack.

use super::ids::{DeviceId, Nanos};
use super::kinds::kinds;

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

kinds! {
    /// What happened, in numbers of ours (a later version may write others).
    UnifiedKind(u32) {
        /// What has no number yet.
        OTHER = 0, "other";
        /// Bytes moved to a GPU.
        HTOD = 1, "HtoD";
        /// Bytes moved to the host.
        DTOH = 2, "DtoH";
        /// The host touched pages that were elsewhere.
        CPU_FAULTS = 3, "CPU faults";
        /// A GPU touched pages that were elsewhere.
        GPU_FAULTS = 4, "GPU faults";
        /// Bytes moved between GPUs.
        DTOD = 5, "DtoD";
    } else "other"
    /// The short name that tables show.
    label
}

impl UnifiedKind {
    /// Whether bytes moved.
    pub fn is_move(self) -> bool {
        matches!(self, Self::HTOD | Self::DTOH | Self::DTOD)
    }
}
