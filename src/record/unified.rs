//! Unified-memory traffic in addition to explicit copies: pages that migrate to the processor that touches them, and
//! faults. The tracer reports no call for them, so these rows have no launch and no stack.

use super::ids::{DeviceId, Nanos};
use super::kinds::kinds;

/// A migration or fault of unified memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unified {
    /// Kind of traffic.
    pub kind: UnifiedKind,
    /// Number of bytes moved, or of faults.
    pub value: u64,
    /// Start time.
    pub start: Nanos,
    /// End time; 0 for instantaneous events.
    pub end: Nanos,
    /// First address.
    pub address: u64,
    /// Source processor; a GPU only for some kinds (see `kind`).
    pub source: DeviceId,
    /// Destination processor; a GPU only for some kinds (see `kind`).
    pub target: DeviceId,
    /// Flags of the tracer: the reason for a migration, or the faulting access.
    pub flags: u32,
}

impl Unified {
    /// Returns the GPU involved; `None` for host faults and for kinds of a later tracer.
    pub fn device(&self) -> Option<DeviceId> {
        match self.kind {
            UnifiedKind::HTOD | UnifiedKind::DTOD => Some(self.target),
            UnifiedKind::DTOH | UnifiedKind::GPU_FAULTS => Some(self.source),
            _ => None,
        }
    }

    /// Returns the duration in nanoseconds; `None` if it was not reported or is invalid.
    pub fn duration(&self) -> Option<u64> {
        if self.end.0 == 0 { None } else { self.end.0.checked_sub(self.start.0) }
    }
}

kinds! {
    /// Kind of unified-memory event, in our own numbers (a later version may write others).
    UnifiedKind(u32) {
        /// Kind without a number.
        OTHER = 0, "other";
        /// Bytes migrated to a GPU.
        HTOD = 1, "HtoD";
        /// Bytes migrated to the host.
        DTOH = 2, "DtoH";
        /// The host touched pages that were elsewhere.
        CPU_FAULTS = 3, "CPU faults";
        /// A GPU touched pages that were elsewhere.
        GPU_FAULTS = 4, "GPU faults";
        /// Bytes migrated between GPUs.
        DTOD = 5, "DtoD";
    } else "other"
    /// Returns the short name that tables show.
    label
}

impl UnifiedKind {
    /// Whether bytes moved.
    pub fn is_move(self) -> bool {
        matches!(self, Self::HTOD | Self::DTOH | Self::DTOD)
    }
}
