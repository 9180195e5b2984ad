//! Flags that notify all threads that memory has run out. Setting and reading these flags takes no lock and allocates
//! nothing.

use std::time::Duration;

use crate::process::futex::EventFlags;

/// The flags. `SHORT`: memory has run out. `THREAD_STOPPED`: one of gpuflame's threads has stopped for lack of memory.
static STATE: EventFlags = EventFlags::new();
const SHORT: u32 = 1;
const THREAD_STOPPED: u32 = 2;
/// Flag in `STATE` that wakes the threads in [`sleep_unless_short`], and makes later calls return immediately.
const SLEEPS_ENDED: u32 = 4;

/// Notes that memory has run out. All further allocations come from the heap's reserve.
pub fn set_short() {
    STATE.set(SHORT);
}

/// Whether memory has run out.
pub fn is_short() -> bool {
    STATE.has(SHORT)
}

/// Sleeps for `pause`. The sleep ends early if memory runs out, or if [`end_sleeps`] is called.
pub fn sleep_unless_short(pause: Duration) {
    let known = STATE.get();
    if known & (SHORT | SLEEPS_ENDED) == 0 {
        STATE.wait(known, Some(pause));
    }
}

/// Wakes all threads that sleep in [`sleep_unless_short`], and makes later calls of [`sleep_unless_short`] return
/// immediately. Call this function when the process ends.
pub fn end_sleeps() {
    STATE.set(SLEEPS_ENDED);
}

/// Notes that one of gpuflame's threads has stopped for lack of memory. Any lock that the stopped thread holds stays
/// locked.
pub fn set_thread_stopped() {
    STATE.set(SHORT | THREAD_STOPPED);
}

/// Whether one of gpuflame's threads has stopped for lack of memory.
pub fn has_stopped_thread() -> bool {
    STATE.has(THREAD_STOPPED)
}
