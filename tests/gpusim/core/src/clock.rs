//! The clock of the simulation, in ns since the epoch. This clock is CLOCK_REALTIME, which is also CUPTI's default
//! clock. With GPUSIM_CLOCK=stepped, it is the calling thread's own clock (see [`crate::turn`]).

use crate::settings;
use crate::thread;
use crate::turn;
use std::sync::OnceLock;
use std::time::Duration;

/// Returns the time on CLOCK_REALTIME, in ns since the epoch.
pub fn realtime() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: SAFETY: `t` is a timespec that exists during the whole call.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Returns the simulation's current time, in ns since the epoch.
pub fn now() -> u64 {
    if settings::get().stepped { base() + turn::host_time(thread::current()) } else { realtime() }
}

/// Real time at which the stepped clock was 0. The stepped clock counts from 0, so that two runs give the same log.
/// `base` is added to the times in activity records, so that clients see plausible times.
pub fn base() -> u64 {
    static BASE: OnceLock<u64> = OnceLock::new();
    *BASE.get_or_init(realtime)
}

/// Sleeps until the time on CLOCK_REALTIME is `time` or later.
pub fn sleep_until(time: u64) {
    while let Some(left @ 1..) = time.checked_sub(realtime()) {
        std::thread::sleep(Duration::from_nanos(left));
    }
}

/// Waits until the GPU work that ends at `time` is complete. With the virtual clock, GPU work is complete immediately.
pub fn wait_until(time: u64) {
    let settings = settings::get();
    if settings.stepped {
        let thread = thread::current();
        match settings.leave_out.iter().any(|word| word == "waits") {
            true => thread.is_left_out.set(true),
            false => turn::reach(thread, time.saturating_sub(base())),
        }
    } else if settings.real_clock {
        sleep_until(time);
    }
}

/// Whether GPU work that ends at `time` may still be running at the time of the call.
pub fn is_ahead(time: u64) -> bool {
    let settings = settings::get();
    (settings.real_clock || settings.stepped) && time > now()
}

/// Keeps the calling thread's processor busy until `time`.
pub fn spin_until(time: u64) {
    if settings::get().stepped {
        return turn::reach(thread::current(), time.saturating_sub(base()));
    }
    while realtime() < time {
        std::hint::spin_loop();
    }
}

/// Returns the duration of a copy of `bytes` in ns: 2 us, plus the transfer time at 25 GB/s.
pub fn memcpy_duration(bytes: u64) -> u64 {
    2_000 + bytes / 25
}

/// Returns the duration of a fill of `bytes` in ns: 1 us, plus the writing time at 1 TB/s.
pub fn memset_duration(bytes: u64) -> u64 {
    1_000 + bytes / 1_000
}

/// Minimum time in ns from an API call's ENTER callback to the start of the GPU work that the call submits.
pub const LAUNCH_LATENCY: u64 = 5_000;
