//! A counter that costs what an addition costs: one thread writes it, anybody reads it.

use std::sync::atomic::{AtomicU64, Ordering};

/// Sums over all threads mean something, single values do not: a thread's state is handed from thread to thread.
#[derive(Debug)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// A plain load and store, no locked instruction.
    #[inline]
    pub(super) fn add(&self, amount: u64) {
        self.0.store(self.get().wrapping_add(amount), Ordering::Relaxed);
    }

    /// The same where a signal handler of the thread may add to it between the load and the store.
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
