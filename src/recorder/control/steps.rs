//! Counts the steps that the program begins, such as training or decoding steps.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use gpuflame_model::record::{Nanos, ThreadId};

static STEPS: AtomicU64 = AtomicU64::new(0);

/// Time, sequence number and thread of the latest step that began before a session existed. A time of 0 means that no
/// step began before a session existed.
static EARLY_TIME: AtomicU64 = AtomicU64::new(0);
static EARLY_NUMBER: AtomicU64 = AtomicU64::new(0);
static EARLY_THREAD: AtomicU32 = AtomicU32::new(0);

/// Begins the next step. Returns the sequence number of the step, counted from 1.
pub fn begin() -> u64 {
    STEPS.fetch_add(1, Ordering::Relaxed) + 1
}

/// Number of steps that the program has begun.
pub fn count() -> u64 {
    STEPS.load(Ordering::Relaxed)
}

/// Notes a step that begins while no session exists. Steps without a session are common, because programs often make
/// their first CUDA call in the first step.
pub fn note_early(number: u64, time: Nanos, thread: ThreadId) {
    EARLY_NUMBER.store(number, Ordering::Relaxed);
    EARLY_THREAD.store(thread.0, Ordering::Relaxed);
    EARLY_TIME.store(time.0, Ordering::Release);
}

/// Removes and returns the latest step that began before the session existed. Returns `None` if the program has begun
/// another step since then.
pub fn take_early() -> Option<(u64, Nanos, ThreadId)> {
    let time = EARLY_TIME.swap(0, Ordering::AcqRel);
    let number = EARLY_NUMBER.load(Ordering::Relaxed);
    let thread = ThreadId(EARLY_THREAD.load(Ordering::Relaxed));
    (time != 0 && number == count()).then_some((number, Nanos(time), thread))
}
