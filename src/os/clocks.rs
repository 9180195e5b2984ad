//! Reads the wall clock, which may be set at any time, together with the monotonic clock, which cannot be set.

/// Maximum time in ns for reading both clocks. If the two clocks are read more than this time apart, the readings do
/// not belong together.
const MAX_READ_NS: u64 = 1_000_000;

/// Readings of the wall clock and the monotonic clock at the same moment.
#[derive(Clone, Copy, Debug)]
pub struct ClockPair {
    /// Reading of the wall clock, in ns since 1970.
    pub time: u64,
    /// Reading of the monotonic clock, in ns.
    pub steady: u64,
}

impl ClockPair {
    /// Reads both clocks. Returns `None` if reading both clocks took longer than `MAX_READ_NS`, for example because the
    /// thread was preempted.
    pub fn now() -> Option<Self> {
        let before = read(libc::CLOCK_MONOTONIC);
        let time = read(libc::CLOCK_REALTIME);
        let steady = read(libc::CLOCK_MONOTONIC);
        (steady.saturating_sub(before) <= MAX_READ_NS).then_some(Self { time, steady })
    }
}

fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes a timespec to `time`.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
