//! The buffers that the tracer fills with activity records, and their way round.
//!
//! ```text
//! ready --request--> tracer --completed--> filled --next_filled--> collector --recycle--> ready
//! ```
//!
//! A request comes on an application's thread, inside the tracer's lock: it takes a ready buffer or
//! makes one, and never waits. Beyond a bound it gets none, and what it was for is counted as lost.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::tracer::{Buffer, Filled};

use super::budget::{self, Unread};
use super::handover::{Shelf, Tray};

/// NVIDIA recommends 1 to 10 MB. Since CUPTI 13 there is one for every thread that launches, and any of them may
/// be nearly full; one that holds a kernel that still runs is not handed over at all, with 5,000 others.
const MAX_BUFFER_BYTES: usize = 1 << 20;
/// Size of a buffer when little is left below the ceiling. The C library takes smaller blocks from the heap that the
/// application uses, and may keep them there.
const MIN_BUFFER_BYTES: usize = 128 << 10;
/// Buffers kept ready once they exist: two with all their memory, the others with 64 KiB each.
const KEPT: usize = 8;
/// Further buffers kept ready, without memory: freed they would not go back to the kernel for certain.
const KEPT_EMPTY: usize = 24;
/// Buffers there may be at once. Since CUPTI 13 every thread that launches fills one of its own, of which
/// only written pages take memory; the ceiling limits their sum ([`budget`]).
const MOST: usize = 4096;
/// Records of this many bytes or less are copied out, and their buffer is ready again at once.
const FEW: usize = 4 << 10;

/// Filled buffers that are worth waking the collector for.
const MANY: usize = 8;

struct Ring {
    ready: Shelf<Buffer, KEPT>,
    empty: Shelf<Buffer, KEPT_EMPTY>,
    filled: Tray<Filled>,
    /// What was taken from `filled` and not read yet, the oldest first. The collector's alone.
    taken: Mutex<VecDeque<Filled>>,
    /// How many there are in the two.
    count: AtomicUsize,
    made: AtomicUsize,
    discarded: AtomicU64,
}

static RING: Ring = Ring {
    ready: Shelf::new(),
    empty: Shelf::new(),
    filled: Tray::new(),
    taken: Mutex::new(VecDeque::new()),
    count: AtomicUsize::new(0),
    made: AtomicUsize::new(0),
    discarded: AtomicU64::new(0),
};

/// A buffer to fill; `None` when there are too many.
pub(super) fn request() -> Option<Buffer> {
    let ring = &RING;
    // Memory of ready buffers is counted already.
    if !budget::admits(0) {
        return None;
    }
    if let Some(buffer) = ring.ready.take().or_else(|| ring.empty.take()) {
        return Some(buffer);
    }
    let bytes = budget::buffer_bytes(MIN_BUFFER_BYTES, MAX_BUFFER_BYTES);
    if !budget::admits(bytes) {
        return None;
    }
    let may = ring
        .made
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |made| (made < MOST).then_some(made + 1));
    let buffer = may.is_ok().then(|| Buffer::new(bytes)).flatten();
    if may.is_ok() && buffer.is_none() {
        ring.made.fetch_sub(1, Ordering::Relaxed);
    }
    buffer
}

/// The tracer is done with a buffer. True: several wait by now, and the collector should not sleep on.
pub(super) fn completed(filled: Filled) -> bool {
    let ring = &RING;
    let filled = if filled.valid() <= FEW {
        let (copy, buffer) = filled.copy_out();
        make_ready(buffer);
        copy
    } else {
        filled
    };
    Unread::Buffer.grow(filled.valid());
    ring.count.fetch_add(1, Ordering::Relaxed);
    ring.filled.leave(filled);
    many_filled()
}

/// Whether several filled buffers wait to be read.
pub fn many_filled() -> bool {
    filled() >= MANY
}

/// How many filled buffers wait to be read.
pub fn filled() -> usize {
    RING.count.load(Ordering::Relaxed)
}

/// Records were lost for want of a buffer.
pub(super) fn discard(records: u64) {
    RING.discarded.fetch_add(records, Ordering::Relaxed);
}

/// Records lost for want of a buffer so far.
pub(super) fn discarded() -> u64 {
    RING.discarded.load(Ordering::Relaxed)
}

/// The oldest filled buffer, if any. For the collector.
pub fn next_filled() -> Option<Filled> {
    let mut taken = RING.taken.lock();
    if taken.is_empty() {
        RING.filled.take_all().for_each(|filled| taken.push_front(filled));
    }
    let filled = taken.pop_front()?;
    RING.count.fetch_sub(1, Ordering::Relaxed);
    Unread::Buffer.shrink(filled.valid());
    Some(filled)
}

/// Makes a buffer that was read ready again.
pub fn recycle(filled: Filled) {
    make_ready(filled.recycle());
}

fn make_ready(buffer: Option<Buffer>) {
    if let Some(Err(buffer)) = buffer.map(|buffer| RING.ready.put(buffer)) {
        put_away(buffer);
    }
}

/// Gives the kernel the memory of all that lie ready. For who is at rest: the next records pay for it, with a page fault
/// for each 4 KiB.
pub fn rest() {
    // Others may lay some there meanwhile.
    for buffer in (0..KEPT).map_while(|_| RING.ready.take()) {
        put_away(buffer);
    }
}

/// Keeps a buffer without its memory, or frees it.
fn put_away(mut buffer: Buffer) {
    if !buffer.give_pages_back() || RING.empty.put(buffer).is_err() {
        RING.made.fetch_sub(1, Ordering::Relaxed);
    }
}
