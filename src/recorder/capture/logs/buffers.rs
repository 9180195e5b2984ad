//! Buffers that the tracer (CUPTI) fills with activity records. Each buffer passes repeatedly through the following
//! states. A "ready" buffer is empty and can be lent to the tracer.
//!
//! ```text
//! ready --request--> tracer --completed--> filled --next_filled--> collector --recycle--> ready
//! ```
//!
//! The tracer requests a buffer on an application thread, while the tracer holds its own lock. A request takes a ready
//! buffer or creates a buffer, but never waits. If the memory limit leaves no room for a full-size buffer, the request
//! gets a small buffer or none. If a request gets no buffer, the activity records that would have filled the buffer are
//! counted as lost.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

use gpuflame_cupti::tracer::{self, Buffer, FilledBuffer};
use gpuflame_model::record::Nanos;

use super::handover::{SlotPool, TakeAllStack};
use super::{log, unread_limit};
use crate::capture::clock;

/// Maximum size of a buffer in bytes. NVIDIA recommends 1 to 10 MB. Since CUPTI 13, every launching thread fills a
/// buffer of its own, so many buffers may be nearly full at the same time. A large buffer also delays the delivery of
/// records. While a kernel runs, CUPTI keeps the buffer that will contain the kernel's record, even if that buffer
/// already contains 5,000 other records.
const MAX_BUFFER_BYTES: usize = 1 << 20;
/// Size in bytes of a small buffer, which holds about 300 records. A request gets a small buffer if the memory limit
/// leaves no room for a full-size buffer, or if many threads fill a buffer each.
const SMALL_BUFFER_BYTES: usize = 64 << 10;
/// Divisor for the size of a buffer: the size is the memory limit divided by this number, but at most
/// [`MAX_BUFFER_BYTES`]. A memory limit of 64 MiB or more results in this maximum size.
const BUFFER_DIVISOR: usize = 64;
/// Divisor for the memory that is reserved for full-size buffers. The size of the reserved memory is the memory limit
/// divided by this number, no matter how much memory other data use. With the default memory limit, this reserved
/// memory is enough for full-size buffers for 32 threads. If there are more than 32 threads, some of them get small
/// buffers.
const RESERVED_DIVISOR: usize = 8;
/// Maximum number of unused buffers that are kept ready for the next requests. Two of these buffers keep all of their
/// memory, and each of the other six buffers keeps 64 KiB.
const READY_BUFFERS: usize = 8;
/// Maximum number of unused buffers that are kept in addition to the ready buffers. The kernel gets back the memory of
/// these buffers. The buffers are not freed, because freeing them does not reliably return their memory to the kernel.
const EMPTY_BUFFERS: usize = 24;
/// Maximum number of buffers that exist at the same time.
const MAX_BUFFERS: usize = 4096;
/// If the records in a filled buffer take at most this number of bytes, they are copied, and the buffer is ready again
/// immediately.
const MAX_COPIED_BYTES: usize = 4 << 10;
/// Number of filled buffers at which the collector is woken up. If the memory limit is small, the collector is woken up
/// at a smaller number of filled buffers. This number is small because other threads may delay the collector by 20 ms.
/// In these 20 ms, the threads on two processors can fill 10 MiB.
const MAX_FILLED_BEFORE_WAKE: usize = 8;

struct BufferCycle {
    ready: SlotPool<Buffer, READY_BUFFERS>,
    empty: SlotPool<Buffer, EMPTY_BUFFERS>,
    filled: TakeAllStack<WaitingBuffer>,
    /// Filled buffers that were moved from `filled` to this queue but are still unread, oldest first. Only the
    /// collector accesses this queue.
    taken: Mutex<VecDeque<WaitingBuffer>>,
    /// Number of buffers in `filled` and `taken` together.
    count: AtomicUsize,
    created: AtomicUsize,
    discarded: AtomicU64,
}

/// A filled buffer that the collector has not read yet.
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

/// Returns a buffer for the tracer to fill. Returns `None` if there is no room for even a small buffer.
pub(crate) fn request() -> Option<Buffer> {
    let buffer = find_or_create();
    unread_limit::note_activities_lost(buffer.is_none());
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

/// Whether a buffer of `bytes` bytes may be lent without exceeding the share of the memory limit for lent buffers. Lent
/// buffers have a limited share because most of a lent buffer's memory may never be used.
fn may_lend(bytes: usize) -> bool {
    tracer::bytes_lent() + bytes <= unread_limit::bytes() / RESERVED_DIVISOR
}

/// Whether the memory of all buffers may grow by `bytes` bytes.
fn has_room(bytes: usize) -> bool {
    bytes == 0 || unread_limit::has_room(bytes) || tracer::bytes_held() + bytes <= reserved_bytes()
}

/// Memory in bytes that buffers may use even if other data have used up the memory limit. This memory consists of the
/// memory that is reserved for full-size buffers, and of two small buffers per log. Each thread has one or two logs.
fn reserved_bytes() -> usize {
    unread_limit::bytes() / RESERVED_DIVISOR + 2 * SMALL_BUFFER_BYTES * log::count_logs()
}

/// Size in bytes of a full-size buffer, which depends on the user's memory limit.
fn buffer_bytes() -> usize {
    let share = unread_limit::bytes() / BUFFER_DIVISOR;
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

/// Takes over a buffer that the tracer has filled. Returns true if so many filled buffers are waiting that the
/// collector should be woken up.
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

/// Whether so many filled buffers are waiting to be read that the collector should be woken up.
pub fn are_many_filled() -> bool {
    let share = unread_limit::bytes() / BUFFER_DIVISOR / buffer_bytes();
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

/// Time at which the tracer completed the oldest filled buffer; `None` if no filled buffers are waiting. Only the
/// collector calls this function.
pub fn oldest_completed() -> Option<Nanos> {
    with_taken(|taken| taken.front().map(|oldest| oldest.completed))
}

/// Removes and returns the oldest filled buffer; `None` if no filled buffers are waiting. Only the collector calls this
/// function.
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

/// Makes a buffer ready for reuse after its records were read.
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

/// Returns the memory of all ready buffers to the kernel. Call this function only when the program is idle, because
/// after the call, each 4 KiB of new records cost a page fault.
pub fn release_ready_memory() {
    // This loop handles at most `READY_BUFFERS` buffers, because other threads may make buffers ready while it runs.
    for buffer in (0..READY_BUFFERS).map_while(|_| CYCLE.ready.take()) {
        store_empty(buffer);
    }
}

/// Returns a buffer's memory to the kernel, and stores the buffer for later requests. If the memory cannot be returned,
/// or if there is no place to store the buffer, frees the buffer.
fn store_empty(mut buffer: Buffer) {
    if !buffer.release_pages() || CYCLE.empty.put(buffer).is_err() {
        CYCLE.created.fetch_sub(1, Ordering::Relaxed);
    }
}
