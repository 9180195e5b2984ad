//! A counter to which only one thread may write. Because only one thread writes the counter, an increment costs only as
//! much as a plain addition. Any thread may read the counter.

use std::sync::atomic::{AtomicU64, Ordering};

/// A counter to which only one thread may write. Only the sum over all threads is meaningful, because when a thread has
/// ended, a new thread reuses its state and continues its counters.
#[derive(Debug)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(super) const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Adds `amount` with a plain load and store instead of a locked instruction.
    #[inline]
    pub(crate) fn add(&self, amount: u64) {
        self.0.store(self.get().wrapping_add(amount), Ordering::Relaxed);
    }

    /// Adds `amount` with a locked instruction. This function is used if a signal handler may add to the counter
    /// between the load and the store of the interrupted thread.
    pub(super) fn add_atomically(&self, amount: u64) {
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
