//! A counter that costs as much as an addition: one thread writes it, any thread may read it.

use std::sync::atomic::{AtomicU64, Ordering};

/// Only sums over all threads are meaningful: a thread's state, with its counters, is passed on from thread to
/// thread.
#[derive(Debug)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Adds with a plain load and store, without a locked instruction.
    #[inline]
    pub(super) fn add(&self, amount: u64) {
        self.0.store(self.get().wrapping_add(amount), Ordering::Relaxed);
    }

    /// Adds atomically, if a signal handler of the thread may add to it between the load and the store.
    pub(super) fn add_beside_handlers(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    pub(super) fn clear(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
