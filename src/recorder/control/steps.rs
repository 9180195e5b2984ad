//! Counts the steps that the program reports, such as training or decoding steps.

use std::sync::atomic::{AtomicU64, Ordering};

static STEPS: AtomicU64 = AtomicU64::new(0);

/// Begins another step. Returns its number, counted from 1.
pub fn begin() -> u64 {
    STEPS.fetch_add(1, Ordering::Relaxed) + 1
}

/// Number of steps that have begun.
pub fn count() -> u64 {
    STEPS.load(Ordering::Relaxed)
}
