//! How many steps the program says that it has made: of training, of decoding, whatever it repeats.

use std::sync::atomic::{AtomicU64, Ordering};

static STEPS: AtomicU64 = AtomicU64::new(0);

/// Another step begins. Its number, from 1.
pub fn begin() -> u64 {
    STEPS.fetch_add(1, Ordering::Relaxed) + 1
}

/// How many have begun.
pub fn count() -> u64 {
    STEPS.load(Ordering::Relaxed)
}
