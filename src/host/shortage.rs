//! What is known when there is no more memory to be had, by whom that has to be known: no lock and no memory is taken to
//! say or to ask it.

use std::time::Duration;

use super::futex::Bits;

/// That memory has run out, and that one of our threads has come to its end by that.
static STATE: Bits = Bits::new();
const SHORT: u32 = 1;
const OUT: u32 = 2;
/// Nobody sleeps any more.
const AWAKE: u32 = 4;

/// Says that memory has run out. What there still is comes from a reserve.
pub fn fall_short() {
    STATE.set(SHORT);
}

/// Whether memory has run out.
pub fn is_short() -> bool {
    STATE.has(SHORT)
}

/// Sleeps for so long, or until memory has run out, or the process ends.
pub fn sleep_unless_short(pause: Duration) {
    let known = STATE.get();
    if known & (SHORT | AWAKE) == 0 {
        STATE.wait(known, Some(pause));
    }
}

/// Ends such a sleep, for good: the process ends.
pub fn wake_for_good() {
    STATE.set(AWAKE);
}

/// Says that one of our threads goes no further, for want of memory, and perhaps holds a lock.
pub fn go_out() {
    STATE.set(SHORT | OUT);
}

/// Whether one of our threads goes no further.
pub fn is_out() -> bool {
    STATE.has(OUT)
}
