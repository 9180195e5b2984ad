//! Flags by which every thread can learn that memory has run out. Setting and reading these flags takes no lock and
//! allocates nothing.

use std::time::Duration;

use crate::process::futex::EventFlags;

/// Flags: memory has run out, and one of our threads has stopped for lack of memory.
static STATE: EventFlags = EventFlags::new();
const SHORT: u32 = 1;
const THREAD_STOPPED: u32 = 2;
/// Flag: sleeping threads wake, and no thread sleeps again.
const SLEEPS_ENDED: u32 = 4;

/// Records that memory has run out. Further memory comes from the heap's reserve.
pub fn set_short() {
    STATE.set(SHORT);
}

/// Whether memory has run out.
pub fn is_short() -> bool {
    STATE.has(SHORT)
}

/// Sleeps for `pause`, or until memory has run out, or until the process ends.
pub fn sleep_unless_short(pause: Duration) {
    let known = STATE.get();
    if known & (SHORT | SLEEPS_ENDED) == 0 {
        STATE.wait(known, Some(pause));
    }
}

/// Ends all sleeps of [`sleep_unless_short`] permanently, because the process ends.
pub fn end_sleeps() {
    STATE.set(SLEEPS_ENDED);
}

/// Records that one of our threads has stopped for lack of memory. The stopped thread may hold a lock.
pub fn set_thread_stopped() {
    STATE.set(SHORT | THREAD_STOPPED);
}

/// Whether one of our threads has stopped for lack of memory.
pub fn has_stopped_thread() -> bool {
    STATE.has(THREAD_STOPPED)
}
