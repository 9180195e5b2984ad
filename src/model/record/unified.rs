//! Defines the rows about unified memory: page faults, and pages that migrate to the CPU or GPU that accesses them. No
//! explicit copy causes this traffic, and the tracer reports no API call for it. So rows about unified memory have no
//! launch and no stack.

use super::ids::{DeviceId, Nanos};
use super::kinds::kinds;

/// A migration or page faults of unified memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unified {
    /// Kind of event.
    pub kind: UnifiedKind,
    /// Number of bytes moved, or number of page faults, depending on `kind`.
    pub value: u64,
    /// Time at which the event began.
    pub start: Nanos,
    /// Time at which the event ended, or 0 for an instantaneous event.
    pub end: Nanos,
    /// First address of the memory that was migrated or accessed.
    pub address: u64,
    /// Processor from which the pages moved. The value of `kind` determines whether this field is the id of a GPU.
    pub source: DeviceId,
    /// Processor to which the pages moved. The value of `kind` determines whether this field is the id of a GPU.
    pub target: DeviceId,
    /// Flags from the tracer, which contain the reason for a migration, or the kind of access that caused a fault.
    pub flags: u32,
}

impl Unified {
    /// Returns the GPU that moved the bytes or caused the faults. Returns `None` for faults of the host, and for kinds
    /// of events that this version does not know.
    pub fn device(&self) -> Option<DeviceId> {
        match self.kind {
            UnifiedKind::HTOD | UnifiedKind::DTOD => Some(self.target),
            UnifiedKind::DTOH | UnifiedKind::GPU_FAULTS => Some(self.source),
            _ => None,
        }
    }

    /// Returns the duration in nanoseconds. Returns `None` if the tracer did not report the duration, or if the end is
    /// before the start.
    pub fn duration(&self) -> Option<u64> {
        if self.end.0 == 0 { None } else { self.end.0.checked_sub(self.start.0) }
    }
}

kinds! {
    /// Kind of unified-memory event. gpuflame defines these values; CUPTI may use other values. Later versions may
    /// write values that are not listed here.
    UnifiedKind(u32) {
        /// A kind of event that is not listed here.
        OTHER = 0, "other";
        /// Bytes migrated to a GPU.
        HTOD = 1, "HtoD";
        /// Bytes migrated to the host.
        DTOH = 2, "DtoH";
        /// The host accessed pages that were not in host memory.
        CPU_FAULTS = 3, "CPU faults";
        /// A GPU accessed pages that were not in its memory.
        GPU_FAULTS = 4, "GPU faults";
        /// Bytes migrated between GPUs.
        DTOD = 5, "DtoD";
    } else "other"
    /// Returns the short name that tables show.
    label
}

impl UnifiedKind {
    /// Whether this kind of event moves bytes.
    pub fn is_move(self) -> bool {
        matches!(self, Self::HTOD | Self::DTOH | Self::DTOD)
    }
}
