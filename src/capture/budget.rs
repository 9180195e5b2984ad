//! The budget for the backlog: records that the collector still has to read.
//!
//! Unread launches are stored in logs, and unread activities in buffers. Together they may take the memory that
//! everything else leaves below the ceiling. When that memory is used up, launches and activities are both refused
//! until the collector has read half of the backlog. A launch is useless if its activity is dropped, and so is an
//! activity if its launch is dropped. So refusing both for the same period keeps more complete pairs than dropping
//! launches and activities independently. The caller counts every refused record.
//!
//! The budget is checked once per chunk of a log and once per buffer, never once per launch.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::host::heap;
use crate::tracer;
use crate::unwind;

/// Divisor of the ceiling: this share is kept free for tables that double in size, because the old and the new table
/// exist at the same time.
const HEADROOM_SHARE: usize = 8;
/// Divisor of the ceiling: the backlog may always take this share. Otherwise nothing would be recorded once everything
/// else has reached its own share.
const MIN_BACKLOG_SHARE: usize = 4;
/// Divisor of the ceiling: buffers that are ready to be filled may keep this share resident.
const WARM_SHARE: usize = 16;
/// Divisor of the ceiling: size of one buffer.
const BUFFER_SHARE: usize = 128;

static CEILING: AtomicUsize = AtomicUsize::new(usize::MAX);
/// Whether launches and activities are being refused.
static IS_SHEDDING: AtomicBool = AtomicBool::new(false);
/// Unread bytes in logs, and unread bytes in buffers that CUPTI has completed.
static UNREAD_LOGS: AtomicUsize = AtomicUsize::new(0);
static UNREAD_BUFFERS: AtomicUsize = AtomicUsize::new(0);

/// The two kinds of unread memory.
#[derive(Clone, Copy)]
pub(super) enum Unread {
    /// A chunk of a log, in addition to the chunk that every log keeps.
    Chunk,
    /// Records in a buffer that CUPTI has completed.
    Buffer,
}

impl Unread {
    fn bytes(self) -> &'static AtomicUsize {
        match self {
            Self::Chunk => &UNREAD_LOGS,
            Self::Buffer => &UNREAD_BUFFERS,
        }
    }

    /// Adds `bytes` to the backlog.
    pub(super) fn grow(self, bytes: usize) {
        self.bytes().fetch_add(bytes, Ordering::Relaxed);
    }

    /// Subtracts `bytes`, which the collector has read, from the backlog.
    pub(super) fn shrink(self, bytes: usize) {
        self.bytes().fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Limits everything that gpuflame holds to `ceiling` bytes.
pub(super) fn bound(ceiling: usize) {
    CEILING.store(ceiling, Ordering::Relaxed);
    tracer::keep_warm(ceiling / WARM_SHARE);
}

/// Returns the number of bytes that gpuflame holds in mappings, in buffers and on its heap.
pub fn bytes_held() -> usize {
    unwind::bytes_held() + tracer::bytes_held() + heap::held()
}

/// Whether another `bytes` bytes, for memory that is not part of the backlog, fit below the ceiling.
pub(super) fn has_room(bytes: usize) -> bool {
    let ceiling = CEILING.load(Ordering::Relaxed);
    bytes_held().saturating_add(bytes) <= ceiling
}

/// The backlog at one moment, and its limit.
struct Backlog {
    /// Bytes of chunks and buffers, including buffers that CUPTI still fills.
    held: usize,
    /// Bytes that the collector could read at that moment.
    unread: usize,
    room: usize,
}

impl Backlog {
    fn now(ceiling: usize) -> Self {
        let unread_logs = UNREAD_LOGS.load(Ordering::Relaxed);
        // Spare buffers are not counted. Otherwise they would prevent the tracer from getting the buffers that replace
        // them.
        let spare = tracer::spare_bytes();
        let held = tracer::bytes_held().saturating_sub(spare) + unread_logs;
        let unread = UNREAD_BUFFERS.load(Ordering::Relaxed) + unread_logs;
        Self { held, unread, room: room(ceiling, bytes_held().saturating_sub(held + spare)) }
    }

    fn is_half_read(&self) -> bool {
        self.unread <= self.room / 2
    }
}

/// Whether the backlog may grow by `bytes`.
pub(super) fn admits(bytes: usize) -> bool {
    let ceiling = CEILING.load(Ordering::Relaxed);
    if ceiling == usize::MAX {
        return true;
    }
    let backlog = Backlog::now(ceiling);
    if IS_SHEDDING.load(Ordering::Relaxed) && !backlog.is_half_read() {
        return false;
    }
    let is_admitted = backlog.held + bytes <= backlog.room;
    // Buffers that CUPTI is still filling count in full. If most of the backlog consists of such buffers, refusing
    // launches would not free any memory, so shedding does not begin.
    IS_SHEDDING.store(!is_admitted && !backlog.is_half_read(), Ordering::Relaxed);
    is_admitted
}

/// Whether launches and activities are being refused. They are accepted again as soon as the collector has read half of
/// the backlog.
pub(super) fn is_shedding() -> bool {
    IS_SHEDDING.load(Ordering::Relaxed) && !Backlog::now(CEILING.load(Ordering::Relaxed)).is_half_read()
}

/// Starts to refuse launches and activities, if unread records take more than half of the backlog's room.
pub(super) fn shed() {
    let ceiling = CEILING.load(Ordering::Relaxed);
    let may_shed = ceiling != usize::MAX && !Backlog::now(ceiling).is_half_read();
    IS_SHEDDING.store(may_shed, Ordering::Relaxed);
}

/// Returns the size of a new buffer, a power of two between `min` and `max`. Every launching thread fills a buffer of
/// its own, so a low ceiling requires small buffers.
pub(super) fn buffer_bytes(min: usize, max: usize) -> usize {
    let ceiling = CEILING.load(Ordering::Relaxed);
    if ceiling != usize::MAX {
        let backlog = Backlog::now(ceiling);
        // A buffer counts in full while CUPTI holds it, so small buffers leave room for more threads.
        if backlog.held > backlog.room / 2 {
            return 1 << min.ilog2();
        }
    }
    1 << (ceiling / BUFFER_SHARE).clamp(min, max).ilog2()
}

/// Returns the limit of the backlog in bytes, if everything else takes `others` bytes.
fn room(ceiling: usize, others: usize) -> usize {
    let taken = others + ceiling / HEADROOM_SHARE;
    ceiling.saturating_sub(taken).max(ceiling / MIN_BACKLOG_SHARE)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn the_backlog_gets_the_remaining_memory_but_at_least_a_quarter() {
        assert_eq!(room(248 * MIB, 20 * MIB), (248 - 31 - 20) * MIB);
        assert_eq!(room(16 * MIB, 5 * MIB), (16 - 2 - 5) * MIB);
        for others in [12, 24, 1000] {
            assert_eq!(room(16 * MIB, others * MIB), 4 * MIB);
        }
    }
}
