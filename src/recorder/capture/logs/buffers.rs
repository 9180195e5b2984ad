//! The buffers that the tracer fills with activity records, and the cycle of states that a buffer goes through.
//!
//! ```text
//! ready --request--> tracer --completed--> filled --next_filled--> collector --recycle--> ready
//! ```
//!
//! The tracer requests a buffer on an application thread, while it holds its own lock. A request takes a ready buffer
//! or creates one, and never waits. If the memory limit leaves no room, the request gets a small buffer or none, and the
//! records that would have filled it are counted as lost.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

use gpuflame_cupti::tracer::{self, Buffer, FilledBuffer};
use gpuflame_model::record::Nanos;

use super::handover::{SlotPool, TakeAllStack};
use super::{log, memory_limit};
use crate::capture::clock;

/// Maximum size of a buffer. NVIDIA recommends 1 to 10 MB. Since CUPTI 13 every launching thread fills a buffer of its
/// own, and each of these may be nearly full. CUPTI does not hand over a buffer that contains the record of a running
/// kernel, which delays up to 5,000 other records in it.
const MAX_BUFFER_BYTES: usize = 1 << 20;
/// Size of the buffers that are lent when there is no room for a whole one, or when many threads fill one each: about 300
/// records.
const SMALL_BUFFER_BYTES: usize = 64 << 10;
/// Part of the memory limit that a buffer may take: all of [`MAX_BUFFER_BYTES`] from a limit of 64 MiB on.
const BUFFER_DIVISOR: usize = 64;
/// Part of the memory limit that whole buffers may take whatever else uses memory: under the usual limit those of 32
/// threads. Further threads get small ones.
const RESERVED_DIVISOR: usize = 8;
/// Number of unused buffers that are kept for the next requests. Two of these keep all their memory, the other six 64 KiB
/// each.
const READY_BUFFERS: usize = 8;
/// Number of further unused buffers, which keep no memory. They are kept because freeing a buffer does
/// not reliably return its memory to the kernel.
const EMPTY_BUFFERS: usize = 24;
/// Maximum number of buffers that exist at the same time.
const MAX_BUFFERS: usize = 4096;
/// Maximum size of the records in a filled buffer that are copied out, so that the buffer is ready again at once.
const MAX_COPIED_BYTES: usize = 4 << 10;
/// Maximum number of filled buffers at which the collector is woken. Under a small memory limit it is woken earlier,
/// because other threads may delay it by 20 ms, in which two processors fill 10 MiB.
const MAX_FILLED_BEFORE_WAKE: usize = 8;

struct BufferCycle {
    ready: SlotPool<Buffer, READY_BUFFERS>,
    empty: SlotPool<Buffer, EMPTY_BUFFERS>,
    filled: TakeAllStack<WaitingBuffer>,
    /// Buffers that were taken from `filled` and are not read yet, oldest first. Only the collector accesses this
    /// queue.
    taken: Mutex<VecDeque<WaitingBuffer>>,
    /// Number of buffers in `filled` and `taken` together.
    count: AtomicUsize,
    created: AtomicUsize,
    discarded: AtomicU64,
}

/// A filled buffer that waits to be read.
struct WaitingBuffer {
    filled: FilledBuffer,
    /// Time at which the tracer completed the buffer.
    completed: Nanos,
}

static CYCLE: BufferCycle = BufferCycle {
    ready: SlotPool::new(),
    empty: SlotPool::new(),
    filled: TakeAllStack::new(),
    taken: Mutex::new(VecDeque::new()),
    count: AtomicUsize::new(0),
    created: AtomicUsize::new(0),
    discarded: AtomicU64::new(0),
};

/// Returns a buffer to fill; `None` if there is no room for even a small one.
pub(crate) fn request() -> Option<Buffer> {
    let buffer = find_or_create();
    memory_limit::note_activities_lost(buffer.is_none());
    buffer
}

fn find_or_create() -> Option<Buffer> {
    let cycle = &CYCLE;
    if let Some(buffer) = cycle.ready.take().or_else(|| cycle.empty.take()) {
        if may_lend(buffer.bytes()) && has_room(buffer.bytes() - buffer.resident_bytes()) {
            return Some(buffer);
        }
        make_ready(Some(buffer));
    }
    let whole = Some(buffer_bytes()).filter(|bytes| may_lend(*bytes) && has_room(*bytes));
    create(whole.or_else(|| has_room(SMALL_BUFFER_BYTES).then_some(SMALL_BUFFER_BYTES))?)
}

/// Whether a buffer of `bytes` may be lent while other threads have buffers. Most of a lent buffer may be unused.
fn may_lend(bytes: usize) -> bool {
    tracer::bytes_lent() + bytes <= memory_limit::bytes() / RESERVED_DIVISOR
}

/// Whether buffers may use `bytes` more.
fn has_room(bytes: usize) -> bool {
    bytes == 0 || memory_limit::has_room(bytes) || tracer::bytes_held() + bytes <= reserved_bytes()
}

/// Memory that buffers may take whatever else uses memory: the whole ones, and at least two small ones for each thread,
/// which has one or two logs.
fn reserved_bytes() -> usize {
    memory_limit::bytes() / RESERVED_DIVISOR + 2 * SMALL_BUFFER_BYTES * log::count_logs()
}

/// Size of a buffer under the memory limit of the user.
fn buffer_bytes() -> usize {
    let share = memory_limit::bytes() / BUFFER_DIVISOR;
    share.clamp(SMALL_BUFFER_BYTES, MAX_BUFFER_BYTES) / SMALL_BUFFER_BYTES * SMALL_BUFFER_BYTES
}

fn create(bytes: usize) -> Option<Buffer> {
    let may_create = |created| (created < MAX_BUFFERS).then_some(created + 1);
    let order = Ordering::Relaxed;
    CYCLE.created.fetch_update(order, order, may_create).ok()?;
    let buffer = Buffer::new(bytes);
    if buffer.is_none() {
        CYCLE.created.fetch_sub(1, order);
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
    cycle.count.fetch_add(1, Ordering::Relaxed);
    cycle.filled.push(WaitingBuffer { filled, completed: clock::now() });
    are_many_filled()
}

/// Whether enough filled buffers are waiting to be read that the collector should be woken.
pub fn are_many_filled() -> bool {
    let share = memory_limit::bytes() / BUFFER_DIVISOR / buffer_bytes();
    count_filled() >= (2 * share).clamp(2, MAX_FILLED_BEFORE_WAKE)
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

/// Time at which the oldest filled buffer was completed, if there is one. Called by the collector.
pub fn oldest_completed() -> Option<Nanos> {
    with_taken(|taken| taken.front().map(|oldest| oldest.completed))
}

/// Returns the oldest filled buffer, if there is one. Called by the collector.
pub fn next_filled() -> Option<FilledBuffer> {
    let oldest = with_taken(VecDeque::pop_front)?;
    CYCLE.count.fetch_sub(1, Ordering::Relaxed);
    Some(oldest.filled)
}

fn with_taken<T>(use_queue: impl FnOnce(&mut VecDeque<WaitingBuffer>) -> T) -> T {
    let mut taken = CYCLE.taken.lock();
    if taken.is_empty() {
        CYCLE.filled.take_all().for_each(|filled| taken.push_front(filled));
    }
    use_queue(&mut taken)
}

/// Makes a buffer ready again after its records were read.
pub fn recycle(filled: FilledBuffer) {
    make_ready(filled.recycle());
}

fn make_ready(buffer: Option<Buffer>) {
    let Some(buffer) = buffer else { return };
    if buffer.bytes() < buffer_bytes() {
        CYCLE.created.fetch_sub(1, Ordering::Relaxed);
    } else if let Err(buffer) = CYCLE.ready.put(buffer) {
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
