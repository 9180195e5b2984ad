//! Converts CUPTI's numbers for kinds to gpuflame's own numbers, which recordings contain. Recordings do not contain
//! CUPTI's numbers, because a later CUPTI may change its numbers, and other vendors use other numbers. A number of
//! CUPTI that is not listed here becomes "other" or "unknown".

use gpuflame_model::record::{MemoryKind, SyncKind, UnifiedKind};

/// Returns the kind of wait that a value of `CUpti_ActivitySynchronizationType` means.
pub(super) fn sync_kind(number: u32) -> SyncKind {
    match number {
        1 => SyncKind::EVENT,
        2 => SyncKind::STREAM_WAIT,
        3 => SyncKind::STREAM,
        4 => SyncKind::CONTEXT,
        _ => SyncKind::OTHER,
    }
}

/// Returns the kind of unified-memory event that a value of `CUpti_ActivityUnifiedMemoryCounterKind` means.
pub(super) fn unified_kind(number: u32) -> UnifiedKind {
    match number {
        1 => UnifiedKind::HTOD,
        2 => UnifiedKind::DTOH,
        3 => UnifiedKind::CPU_FAULTS,
        4 => UnifiedKind::GPU_FAULTS,
        8 => UnifiedKind::DTOD,
        _ => UnifiedKind::OTHER,
    }
}

/// Returns the kind of memory that a value of `CUpti_ActivityMemoryKind` means.
pub(super) fn memory_kind(number: u16) -> MemoryKind {
    match number {
        1 => MemoryKind::PAGEABLE,
        2 => MemoryKind::PINNED,
        3 => MemoryKind::DEVICE,
        4 => MemoryKind::ARRAY,
        5 => MemoryKind::MANAGED,
        6 => MemoryKind::DEVICE_STATIC,
        7 => MemoryKind::MANAGED_STATIC,
        _ => MemoryKind::UNKNOWN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cupti_enum_labels_are_stable_and_new_values_have_a_generic_label() {
        let words = |of: &dyn Fn(u16) -> &'static str, numbers: std::ops::Range<u16>| -> Vec<_> {
            numbers.map(of).collect()
        };
        assert_eq!(
            words(&|n| sync_kind(n.into()).word(), 0..6),
            ["other", "event", "stream_wait", "stream", "context", "other"]
        );
        assert_eq!(
            words(&|n| unified_kind(n.into()).label(), 0..10),
            ["other", "HtoD", "DtoH", "CPU faults", "GPU faults", "other", "other", "other", "DtoD", "other"]
        );
        assert_eq!(
            words(&|n| memory_kind(n).label(), 0..9),
            [
                "unknown",
                "pageable",
                "pinned",
                "device",
                "array",
                "managed",
                "device_static",
                "managed_static",
                "unknown"
            ]
        );
    }
}
