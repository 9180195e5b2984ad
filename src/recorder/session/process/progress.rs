//! Tracks whether the collector makes progress. Other threads wait for the collector only as long as it makes progress.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Interval at which a waiting thread checks the collector's progress.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Maximum time between two checks that counts as waiting time. If more time than this has passed between two checks,
/// only this maximum is counted.
const MAX_COUNTED_INTERVAL: Duration = Duration::from_millis(100);

static STEPS: AtomicU64 = AtomicU64::new(0);
static IS_IN_FOREIGN_CALL: AtomicBool = AtomicBool::new(false);

/// Notes that the collector has completed a step. A thread that waits for the collector counts each step as progress.
pub(crate) fn note_step() {
    STEPS.fetch_add(1, Ordering::Relaxed);
}

/// Calls `ask`, which in turn calls CUPTI or the loader. A call of `ask` may never return. Therefore the limit
/// [`StallLimit::foreign`] applies until `ask` returns.
pub(crate) fn call_foreign<T>(ask: impl FnOnce() -> T) -> T {
    IS_IN_FOREIGN_CALL.store(true, Ordering::Release);
    let answer = ask();
    note_step();
    IS_IN_FOREIGN_CALL.store(false, Ordering::Release);
    answer
}

/// Maximum time for which the collector may make no progress while another thread waits for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StallLimit {
    /// Limit that applies while the collector calls CUPTI or the loader.
    pub(crate) foreign: Duration,
    /// Limit that applies while the collector runs gpuflame's own code.
    pub(crate) own: Duration,
}

/// Total time for which a thread has waited for another thread. The waiting thread checks regularly whether the other
/// thread makes progress. While the machine or the process is suspended, neither of these threads runs. Therefore the
/// time between two checks counts only up to the maximum [`MAX_COUNTED_INTERVAL`].
pub(super) struct WaitingTime {
    last_check: Instant,
    sum: Duration,
}

impl WaitingTime {
    pub(super) fn start() -> Self {
        Self { last_check: Instant::now(), sum: Duration::ZERO }
    }

    /// Adds the time since the last check to the waiting time, and returns the total waiting time.
    pub(super) fn update(&mut self) -> Duration {
        let now = Instant::now();
        self.sum += now.duration_since(self.last_check).min(MAX_COUNTED_INTERVAL);
        self.last_check = now;
        self.sum
    }
}

/// Watches whether the collector still makes progress.
pub(crate) struct ProgressWatch {
    limit: StallLimit,
    steps: u64,
    waited: WaitingTime,
}

impl ProgressWatch {
    pub(crate) fn new(limit: StallLimit) -> Self {
        Self { limit, steps: STEPS.load(Ordering::Relaxed), waited: WaitingTime::start() }
    }

    /// Whether the collector has made no progress for longer than the limit, so that a thread should stop waiting for
    /// it.
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
