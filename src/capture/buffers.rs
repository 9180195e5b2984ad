//! The buffers that the tracer fills with activity records, and their way round.
//!
//! ```text
//! ready --request--> tracer --completed--> filled --next_filled--> collector --recycle--> ready
//! ```
//!
//! A request comes on an application's thread, inside the tracer's lock: it takes a ready buffer or
//! makes one, and never waits. Beyond a bound it gets none, and what it was for is counted as lost.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crossbeam_channel::{Receiver, Sender};

use crate::cupti::{Buffer, Filled};

/// 2 MiB: NVIDIA recommends 1 to 10.
const BUFFER_BYTES: usize = 2 << 20;
/// Buffers kept ready once they exist: 16 MiB if all were filled once.
const KEPT: usize = 8;
/// Buffers in flight at most. Only written pages take memory, so this is 1 GiB if the collector starves
/// for seconds, and little when the tracer returns buffers with a record or two.
const MOST: usize = 512;

/// Filled buffers that are worth waking the collector for.
const MANY: usize = 8;

struct Ring {
    ready: (Sender<Buffer>, Receiver<Buffer>),
    filled: (Sender<Filled>, Receiver<Filled>),
    made: AtomicUsize,
    discarded: AtomicU64,
}

fn ring() -> &'static Ring {
    static RING: OnceLock<Ring> = OnceLock::new();
    RING.get_or_init(|| Ring {
        ready: crossbeam_channel::bounded(KEPT),
        filled: crossbeam_channel::bounded(MOST),
        made: AtomicUsize::new(0),
        discarded: AtomicU64::new(0),
    })
}

/// A buffer to fill; `None` when there are too many.
pub(super) fn request() -> Option<Buffer> {
    let ring = ring();
    if let Ok(buffer) = ring.ready.1.try_recv() {
        return Some(buffer);
    }
    let may = ring
        .made
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |made| (made < MOST).then_some(made + 1));
    let buffer = may.is_ok().then(|| Buffer::new(BUFFER_BYTES)).flatten();
    if may.is_ok() && buffer.is_none() {
        ring.made.fetch_sub(1, Ordering::Relaxed);
    }
    buffer
}

/// The tracer is done with a buffer. True: several wait by now, and the collector should not sleep on.
pub(super) fn completed(filled: Filled) -> bool {
    let queue = &ring().filled.0;
    // As many places as there are buffers: the queue is never full.
    let _ = queue.try_send(filled);
    queue.len() >= MANY
}

/// Records were lost for want of a buffer.
pub(super) fn discard(records: u64) {
    ring().discarded.fetch_add(records, Ordering::Relaxed);
}

/// Records lost for want of a buffer so far.
pub(super) fn discarded() -> u64 {
    ring().discarded.load(Ordering::Relaxed)
}

/// The oldest filled buffer, if any.
pub fn next_filled() -> Option<Filled> {
    ring().filled.1.try_recv().ok()
}

/// Makes a buffer that was read ready again.
pub fn recycle(filled: Filled) {
    let ring = ring();
    if ring.ready.0.is_full() || ring.ready.0.try_send(filled.recycle()).is_err() {
        ring.made.fetch_sub(1, Ordering::Relaxed);
    }
}
