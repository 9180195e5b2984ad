//! The buffers that the tracer fills with activity records, and the cycle of states that a buffer goes through.
//!
//! ```text
//! ready --request--> tracer --completed--> filled --next_filled--> collector --recycle--> ready
//! ```
//!
//! The tracer requests a buffer on an application thread, while it holds its own lock. A request takes a ready buffer
//! or creates one, and never waits. If there are too many buffers, the request gets none, and the records that would
//! have filled it are counted as lost.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

use gpuflame_cupti::tracer::{Buffer, FilledBuffer};

use super::handover::{SlotPool, TakeAllStack};

/// Size of a buffer. NVIDIA recommends 1 to 10 MB. Since CUPTI 13 every launching thread fills a buffer of its
/// own, and each of these may be nearly full. CUPTI does not hand over a buffer that contains the record of a running
/// kernel, which delays up to 5,000 other records in it.
const BUFFER_BYTES: usize = 1 << 20;
/// Number of buffers that are kept ready once they exist: two of them with all their memory resident, the others with
/// 64 KiB each.
const READY_BUFFERS: usize = 8;
/// Number of further buffers that are kept ready without resident memory. They are kept because freeing a buffer does
/// not reliably return its memory to the kernel.
const EMPTY_BUFFERS: usize = 24;
/// Maximum number of buffers that exist at the same time. Since CUPTI 13 every launching thread fills a buffer of its
/// own, of which only the written pages take memory. Records in filled buffers are limited by [`MAX_WAITING_BYTES`].
const MAX_BUFFERS: usize = 4096;
/// Maximum size of the records in a filled buffer that are copied out, so that the buffer is ready again at once.
const MAX_COPIED_BYTES: usize = 4 << 10;
/// Maximum size of the records in filled buffers and copies that are waiting to be read.
const MAX_WAITING_BYTES: usize = 1 << 30;
/// [`MAX_WAITING_BYTES`], or less if the memory limit of the user is small.
static WAITING_BYTES_LIMIT: AtomicUsize = AtomicUsize::new(MAX_WAITING_BYTES);

/// Limits the size of the records that are waiting to be read.
pub(crate) fn limit_memory(bytes: usize) {
    WAITING_BYTES_LIMIT.store(bytes.min(MAX_WAITING_BYTES), Ordering::Relaxed);
}

/// Number of filled buffers at which the collector is woken.
const WAKE_AT_FILLED: usize = 8;

struct BufferCycle {
    ready: SlotPool<Buffer, READY_BUFFERS>,
    empty: SlotPool<Buffer, EMPTY_BUFFERS>,
    filled: TakeAllStack<FilledBuffer>,
    /// Buffers that were taken from `filled` and are not read yet, oldest first. Only the collector accesses this
    /// queue.
    taken: Mutex<VecDeque<FilledBuffer>>,
    /// Number of buffers in `filled` and `taken` together.
    count: AtomicUsize,
    created: AtomicUsize,
    /// Size of the records in `filled` and `taken` together, in bytes.
    waiting: AtomicUsize,
    discarded: AtomicU64,
}

static CYCLE: BufferCycle = BufferCycle {
    ready: SlotPool::new(),
    empty: SlotPool::new(),
    filled: TakeAllStack::new(),
    taken: Mutex::new(VecDeque::new()),
    count: AtomicUsize::new(0),
    created: AtomicUsize::new(0),
    waiting: AtomicUsize::new(0),
    discarded: AtomicU64::new(0),
};

/// Returns a buffer to fill; `None` if there are too many buffers.
pub(crate) fn request() -> Option<Buffer> {
    let cycle = &CYCLE;
    if let Some(buffer) = cycle.ready.take().or_else(|| cycle.empty.take()) {
        return Some(buffer);
    }
    if cycle.waiting.load(Ordering::Relaxed) >= WAITING_BYTES_LIMIT.load(Ordering::Relaxed) {
        return None;
    }
    let may_create = cycle.created.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |created| {
        (created < MAX_BUFFERS).then_some(created + 1)
    });
    let buffer = may_create.is_ok().then(|| Buffer::new(BUFFER_BYTES)).flatten();
    if may_create.is_ok() && buffer.is_none() {
        cycle.created.fetch_sub(1, Ordering::Relaxed);
    }
    buffer
}

/// Takes over a buffer that the tracer has completed. Returns true if so many filled buffers are waiting that the
/// collector should be woken.
pub(crate) fn completed(filled: FilledBuffer) -> bool {
    let cycle = &CYCLE;
    let filled = if filled.valid() <= MAX_COPIED_BYTES {
        let (copy, buffer) = filled.copy_out();
        make_ready(buffer);
        copy
    } else {
        filled
    };
    cycle.waiting.fetch_add(filled.valid(), Ordering::Relaxed);
    cycle.count.fetch_add(1, Ordering::Relaxed);
    cycle.filled.push(filled);
    are_many_filled()
}

/// Whether enough filled buffers are waiting to be read that the collector should be woken.
pub fn are_many_filled() -> bool {
    count_filled() >= WAKE_AT_FILLED
}

/// Returns the number of filled buffers that are waiting to be read.
pub fn count_filled() -> usize {
    CYCLE.count.load(Ordering::Relaxed)
}

/// Counts records that were lost because no buffer was available.
pub(crate) fn discard(records: u64) {
    CYCLE.discarded.fetch_add(records, Ordering::Relaxed);
}

/// Returns the number of records lost so far because no buffer was available.
pub(crate) fn discarded() -> u64 {
    CYCLE.discarded.load(Ordering::Relaxed)
}

/// Returns the oldest filled buffer, if there is one. Called by the collector.
pub fn next_filled() -> Option<FilledBuffer> {
    let mut taken = CYCLE.taken.lock();
    if taken.is_empty() {
        CYCLE.filled.take_all().for_each(|filled| taken.push_front(filled));
    }
    let filled = taken.pop_front()?;
    CYCLE.count.fetch_sub(1, Ordering::Relaxed);
    CYCLE.waiting.fetch_sub(filled.valid(), Ordering::Relaxed);
    Some(filled)
}

/// Makes a buffer ready again after its records were read.
pub fn recycle(filled: FilledBuffer) {
    make_ready(filled.recycle());
}

fn make_ready(buffer: Option<Buffer>) {
    if let Some(Err(buffer)) = buffer.map(|buffer| CYCLE.ready.put(buffer)) {
        store_empty(buffer);
    }
}

/// Returns the memory of all ready buffers to the kernel. Call when the program is idle, because the next records cost
/// a page fault for each 4 KiB.
pub fn release_ready_memory() {
    // The loop is limited to `READY_BUFFERS` buffers because other threads may make further buffers ready in the meantime.
    for buffer in (0..READY_BUFFERS).map_while(|_| CYCLE.ready.take()) {
        store_empty(buffer);
    }
}

/// Keeps a buffer ready without resident memory, or frees the buffer.
fn store_empty(mut buffer: Buffer) {
    if !buffer.release_pages() || CYCLE.empty.put(buffer).is_err() {
        CYCLE.created.fetch_sub(1, Ordering::Relaxed);
    }
}
