//! The user's memory limit, for records that wait for the collector. All other data have fixed shares of the limit;
//! unread records may take the rest.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Part of the limit that unread records leave free, in addition to [`MARGIN_BYTES`]. The collector allocates memory while
/// it reads records, and several threads may ask for memory at the same moment.
const MARGIN_DIVISOR: usize = 8;
/// Memory that is not counted: the library's own image, the stacks of its threads, and CUPTI's lists.
const MARGIN_BYTES: usize = 3 << 20;

static LIMIT: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Memory that gpuflame holds, in bytes: mapped, in buffers, and on its heap.
pub fn bytes_held() -> usize {
    gpuflame_unwind::bytes_held() + gpuflame_cupti::tracer::bytes_held() + gpuflame_os::heap::held_bytes()
}

/// Sets the limit to `bytes`.
pub(crate) fn set(bytes: usize) {
    LIMIT.store(bytes, Ordering::Relaxed);
}

/// The limit in bytes.
pub(crate) fn bytes() -> usize {
    LIMIT.load(Ordering::Relaxed)
}

/// Whether unread records may use `bytes` more.
pub(crate) fn has_room(bytes: usize) -> bool {
    let limit = self::bytes();
    bytes_held().saturating_add(bytes) <= limit - limit / MARGIN_DIVISOR - MARGIN_BYTES.min(limit / 4)
}

/// Whether the last request for a buffer got none, so that the activities of the launches made now are lost.
static ARE_ACTIVITIES_LOST: AtomicBool = AtomicBool::new(false);

/// Notes whether a request for a buffer got none.
pub(crate) fn note_activities_lost(are_lost: bool) {
    if ARE_ACTIVITIES_LOST.load(Ordering::Relaxed) != are_lost {
        ARE_ACTIVITIES_LOST.store(are_lost, Ordering::Relaxed);
    }
}

/// Whether the activities of current launches are lost, and there is no room for `bytes` more. Launches without activities are of little use, and the collector,
/// which is late already, would spend time on them.
pub(crate) fn are_activities_lost(bytes: usize) -> bool {
    // If there is room again, the next request gets a buffer. There may be no next request for a while: another client may
    // have the records.
    ARE_ACTIVITIES_LOST.load(Ordering::Relaxed) && !has_room(bytes)
}
