//! How many bytes the shared library holds on the heap. Only its own allocator reports here; in other
//! builds the count stays 0.

use std::sync::atomic::{AtomicUsize, Ordering};

static HELD: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

/// `bytes` were allocated.
pub fn grew(bytes: usize) {
    let held = HELD.fetch_add(bytes, Ordering::Relaxed) + bytes;
    if held > MOST.load(Ordering::Relaxed) {
        MOST.fetch_max(held, Ordering::Relaxed);
    }
}

/// `bytes` were given back.
pub fn shrank(bytes: usize) {
    HELD.fetch_sub(bytes, Ordering::Relaxed);
}

/// Bytes held now.
pub fn held() -> usize {
    HELD.load(Ordering::Relaxed)
}

/// The most that were held at once.
pub fn most() -> usize {
    MOST.load(Ordering::Relaxed)
}
