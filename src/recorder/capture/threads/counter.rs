//! A counter that is as cheap as a plain addition, because only one thread writes it. Any thread may read it.

use std::sync::atomic::{AtomicU64, Ordering};

/// A counter of one thread. Only sums over all threads are meaningful, because a thread's state, with its counters, is
/// reused by later threads.
#[derive(Debug)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(super) const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Adds with a plain load and store, without a locked instruction.
    #[inline]
    pub(crate) fn add(&self, amount: u64) {
        self.0.store(self.get().wrapping_add(amount), Ordering::Relaxed);
    }

    /// Adds atomically. Used for counters to which a signal handler of the thread may add between a load and a store of
    /// the thread.
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
