//! The budget for the backlog: records that the collector still has to read.
//!
//! Launches wait in logs and activities in buffers. Together they may take the memory that everything else leaves below the
//! ceiling. When it is used up, both are refused until the collector catches up with half of the backlog: a launch whose activity is dropped is
//! as useless as an activity whose launch is, so losing both for the same stretch of time keeps more pairs than losing
//! each at random. The caller counts every refused record.
//!
//! Asked once per chunk of a log and once per buffer, never per launch.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::host::heap;
use crate::tracer;
use crate::unwind;

/// Part of the ceiling kept free for tables that double in size while both copies exist.
const HEADROOM_SHARE: usize = 8;
/// Part of the ceiling that the backlog may always take, or nothing would be recorded once everything else has reached its
/// own share.
const MIN_BACKLOG_SHARE: usize = 4;
/// Part of the ceiling that buffers may keep in memory while they are ready to be filled.
const WARM_SHARE: usize = 16;
/// Part of the ceiling that one buffer takes.
const BUFFER_SHARE: usize = 128;

static CEILING: AtomicUsize = AtomicUsize::new(usize::MAX);
/// Launches and activities are being refused.
static IS_SHEDDING: AtomicBool = AtomicBool::new(false);
/// Unread bytes of logs, and of buffers that CUPTI completed.
static UNREAD_LOGS: AtomicUsize = AtomicUsize::new(0);
static UNREAD_BUFFERS: AtomicUsize = AtomicUsize::new(0);

/// The two kinds of unread memory.
#[derive(Clone, Copy)]
pub(super) enum Unread {
    /// A chunk of a log, beyond the one that every log keeps.
    Chunk,
    /// Records in a buffer.
    Buffer,
}

impl Unread {
    fn bytes(self) -> &'static AtomicUsize {
        match self {
            Self::Chunk => &UNREAD_LOGS,
            Self::Buffer => &UNREAD_BUFFERS,
        }
    }

    /// Adds to the backlog.
    pub(super) fn grow(self, bytes: usize) {
        self.bytes().fetch_add(bytes, Ordering::Relaxed);
    }

    /// The collector has read this much.
    pub(super) fn shrink(self, bytes: usize) {
        self.bytes().fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Limits everything that gpuflame holds to `ceiling` bytes.
pub(super) fn bound(ceiling: usize) {
    CEILING.store(ceiling, Ordering::Relaxed);
    tracer::keep_warm(ceiling / WARM_SHARE);
}

/// Bytes that gpuflame holds: mapped, in buffers, and on its heap.
pub fn bytes_held() -> usize {
    unwind::bytes_held() + tracer::bytes_held() + heap::held()
}

/// Whether `bytes` more fit below the ceiling, for memory that is not part of the backlog.
pub(super) fn has_room(bytes: usize) -> bool {
    let ceiling = CEILING.load(Ordering::Relaxed);
    bytes_held().saturating_add(bytes) <= ceiling
}

/// The backlog at one moment, and its limit.
struct Backlog {
    /// Bytes of chunks and buffers, including buffers that CUPTI still fills.
    held: usize,
    /// Bytes that the collector could read now.
    unread: usize,
    room: usize,
}

impl Backlog {
    fn now(ceiling: usize) -> Self {
        let unread_logs = UNREAD_LOGS.load(Ordering::Relaxed);
        // If spare buffers counted, they would keep out those that replace them.
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
    // Buffers that CUPTI still fills count in full: if they are many, refusing anything else would not help.
    IS_SHEDDING.store(!is_admitted && !backlog.is_half_read(), Ordering::Relaxed);
    is_admitted
}

/// Whether launches and activities are being refused. Ends as soon as the collector has read half of the backlog.
pub(super) fn is_shedding() -> bool {
    IS_SHEDDING.load(Ordering::Relaxed) && !Backlog::now(CEILING.load(Ordering::Relaxed)).is_half_read()
}

/// Refuses launches and activities, if more than half of the backlog is unread.
pub(super) fn shed() {
    let ceiling = CEILING.load(Ordering::Relaxed);
    let may_shed = ceiling != usize::MAX && !Backlog::now(ceiling).is_half_read();
    IS_SHEDDING.store(may_shed, Ordering::Relaxed);
}

/// Size of a buffer, a power of two between `min` and `max`. Every launching thread fills one, so a low ceiling needs small ones.
pub(super) fn buffer_bytes(min: usize, max: usize) -> usize {
    let ceiling = CEILING.load(Ordering::Relaxed);
    if ceiling != usize::MAX {
        let backlog = Backlog::now(ceiling);
        // A buffer counts in full while CUPTI has it: small ones leave room for more threads.
        if backlog.held > backlog.room / 2 {
            return 1 << min.ilog2();
        }
    }
    1 << (ceiling / BUFFER_SHARE).clamp(min, max).ilog2()
}

/// Limit of the backlog in bytes, if everything else takes `others` bytes.
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
