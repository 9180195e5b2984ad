//! The clock that others may set, beside one that nobody sets.

/// Moments whose clocks were read further apart say nothing, in ns.
const MOST_APART: u64 = 1_000_000;

/// Both clocks at once, in ns.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// Since 1970, as far as the system knows.
    pub time: u64,
    /// Of the clock that nobody sets.
    pub steady: u64,
}

impl Moment {
    /// This moment. `None`: the thread lost its processor in the middle.
    pub fn now() -> Option<Self> {
        let before = read(libc::CLOCK_MONOTONIC);
        let time = read(libc::CLOCK_REALTIME);
        let steady = read(libc::CLOCK_MONOTONIC);
        (steady.saturating_sub(before) <= MOST_APART).then_some(Self { time, steady })
    }
}

fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a place to write a timespec to.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
