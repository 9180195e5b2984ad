//! Tracks whether the collector makes progress. Threads wait for the collector only as long as it makes progress.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Interval between checks by a waiting thread.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Maximum part of the time between two checks that counts as waiting time.
const MAX_COUNTED_INTERVAL: Duration = Duration::from_millis(100);

static STEPS: AtomicU64 = AtomicU64::new(0);
static IS_IN_FOREIGN_CALL: AtomicBool = AtomicBool::new(false);

/// Notes that the collector has made a step.
pub(crate) fn note_step() {
    STEPS.fetch_add(1, Ordering::Relaxed);
}

/// Calls `ask`, which calls CUPTI or the loader and may never return.
pub(crate) fn call_foreign<T>(ask: impl FnOnce() -> T) -> T {
    IS_IN_FOREIGN_CALL.store(true, Ordering::Release);
    let answer = ask();
    note_step();
    IS_IN_FOREIGN_CALL.store(false, Ordering::Release);
    answer
}

/// Maximum times without a step of the collector.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StallLimit {
    /// Maximum time while CUPTI or the loader is called, when the collector makes no steps.
    pub(crate) foreign: Duration,
    /// Maximum time while neither CUPTI nor the loader is called.
    pub(crate) own: Duration,
}

/// Waiting time of a thread that checks now and then. If the machine or the process was suspended, the
/// awaited thread was suspended as well, so only a short part of the time between two checks counts.
pub(super) struct WaitingTime {
    last_check: Instant,
    sum: Duration,
}

impl WaitingTime {
    pub(super) fn start() -> Self {
        Self { last_check: Instant::now(), sum: Duration::ZERO }
    }

    /// Returns the waiting time up to now.
    pub(super) fn update(&mut self) -> Duration {
        let now = Instant::now();
        self.sum += now.duration_since(self.last_check).min(MAX_COUNTED_INTERVAL);
        self.last_check = now;
        self.sum
    }
}

/// Watches for steps of the collector.
pub(crate) struct ProgressWatch {
    limit: StallLimit,
    steps: u64,
    waited: WaitingTime,
}

impl ProgressWatch {
    pub(crate) fn new(limit: StallLimit) -> Self {
        Self { limit, steps: STEPS.load(Ordering::Relaxed), waited: WaitingTime::start() }
    }

    /// Whether the time without a step of the collector has exceeded the limit, so that waiting is pointless.
    pub(crate) fn is_exceeded(&mut self) -> bool {
        let steps = STEPS.load(Ordering::Relaxed);
        if steps != self.steps {
            (self.steps, self.waited) = (steps, WaitingTime::start());
        }
        let limit =
            if IS_IN_FOREIGN_CALL.load(Ordering::Acquire) { self.limit.foreign } else { self.limit.own };
        self.waited.update() >= limit
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn time_between_checks_counts_up_to_a_limit() {
        let mut waited = WaitingTime::start();
        thread::sleep(3 * MAX_COUNTED_INTERVAL);
        assert_eq!(waited.update(), MAX_COUNTED_INTERVAL);
        thread::sleep(POLL_INTERVAL);
        let sum = waited.update();
        assert!((MAX_COUNTED_INTERVAL + POLL_INTERVAL..=2 * MAX_COUNTED_INTERVAL).contains(&sum), "{sum:?}");
    }
}
