//! Applies the user's memory limit to the records that the collector has not read yet. Data other than unread records
//! have fixed shares of the memory limit. Unread records may use the part of the memory limit that remains after these
//! shares.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// However, unread records must leave 1/8 of the memory limit free, in addition to [`MARGIN_BYTES`]. This free memory
/// is needed because the collector allocates memory while it reads records, and because several threads may request
/// memory at the same moment.
const MARGIN_DIVISOR: usize = 8;
/// Allowance for memory that gpuflame does not count: the library's own image, the stacks of its threads, and CUPTI's
/// lists.
const MARGIN_BYTES: usize = 3 << 20;

static LIMIT: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Returns the number of bytes of memory that gpuflame holds in its mappings, its buffers and its heap.
pub fn bytes_held() -> usize {
    gpuflame_unwind::bytes_held() + gpuflame_cupti::tracer::bytes_held() + gpuflame_os::heap::held_bytes()
}

/// Sets the memory limit to `bytes`.
pub(crate) fn set(bytes: usize) {
    LIMIT.store(bytes, Ordering::Relaxed);
}

/// The user's memory limit in bytes.
pub(crate) fn bytes() -> usize {
    LIMIT.load(Ordering::Relaxed)
}

/// Whether unread records may use `bytes` more bytes.
pub(crate) fn has_room(bytes: usize) -> bool {
    let limit = self::bytes();
    bytes_held().saturating_add(bytes) <= limit - limit / MARGIN_DIVISOR - MARGIN_BYTES.min(limit / 4)
}

/// Whether the last request for an activity buffer was refused. While this flag is true, the activity records of new
/// launches are lost.
static ARE_ACTIVITIES_LOST: AtomicBool = AtomicBool::new(false);

/// Notes whether a request for an activity buffer was refused.
pub(crate) fn note_activities_lost(are_lost: bool) {
    if ARE_ACTIVITIES_LOST.load(Ordering::Relaxed) != are_lost {
        ARE_ACTIVITIES_LOST.store(are_lost, Ordering::Relaxed);
    }
}

/// Whether the activity records of new launches are lost and there is no room for `bytes` more bytes. If this is true,
/// new launches should not be recorded. Launches without activity records are of little use, and would delay the
/// collector further.
pub(crate) fn are_activities_lost(bytes: usize) -> bool {
    // In addition to this flag, `has_room` is checked. This flag may be out of date, because memory may have become
    // free since the last request for a buffer. For example, while another client owns the activity records, no buffer
    // is requested.
    ARE_ACTIVITIES_LOST.load(Ordering::Relaxed) && !has_room(bytes)
}
