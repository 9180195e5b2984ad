//! The only clock of the simulation: CLOCK_REALTIME in nanoseconds, which is also CUPTI's default.

use std::time::Duration;

/// Now, in ns since the epoch.
pub fn now() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is a timespec that lives across the call.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Sleeps until [`now`] has reached `time`.
pub fn wait_until(time: u64) {
    while let Some(left @ 1..) = time.checked_sub(now()) {
        std::thread::sleep(Duration::from_nanos(left));
    }
}

/// Keeps the processor busy until [`now`] has reached `time`.
pub fn spin_until(time: u64) {
    while now() < time {
        std::hint::spin_loop();
    }
}

/// Duration in ns of a copy of `bytes`: 2 us, plus the bytes at 25 GB/s.
pub fn memcpy_duration(bytes: u64) -> u64 {
    2_000 + bytes / 25
}

/// Duration in ns of a fill of `bytes`: 1 us, plus the bytes at 1 TB/s.
pub fn memset_duration(bytes: u64) -> u64 {
    1_000 + bytes / 1_000
}

/// Minimum time in ns from an API call's ENTER to the start of its work.
pub const LAUNCH_LATENCY: u64 = 5_000;
