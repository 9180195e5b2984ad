//! Tracks whether the collector makes progress. Threads wait for the collector only as long as it makes progress.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Interval between checks by a waiting thread.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Maximum part of the time between two checks that counts as waiting time.
const LONGEST_LOOK: Duration = Duration::from_millis(100);

static STEPS: AtomicU64 = AtomicU64::new(0);
static IN_OTHERS: AtomicBool = AtomicBool::new(false);

/// Notes that the collector has made a step.
pub(super) fn made() {
    STEPS.fetch_add(1, Ordering::Relaxed);
}

/// Calls `ask`, which calls CUPTI or the loader and may never return.
pub(super) fn in_others<T>(ask: impl FnOnce() -> T) -> T {
    IN_OTHERS.store(true, Ordering::Release);
    let answer = ask();
    made();
    IN_OTHERS.store(false, Ordering::Release);
    answer
}

/// Maximum times without a step of the collector.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limit {
    /// Maximum time while CUPTI or the loader is called, when the collector makes no steps.
    pub(super) others: Duration,
    /// Maximum time while neither CUPTI nor the loader is called.
    pub(super) ours: Duration,
}

/// Waiting time of a thread that checks now and then. If the machine or the process was suspended, the
/// awaited thread was suspended as well, so only a short part of the time between two checks counts.
pub(super) struct Waited {
    looked: Instant,
    sum: Duration,
}

impl Waited {
    pub(super) fn begin() -> Self {
        Self { looked: Instant::now(), sum: Duration::ZERO }
    }

    /// Returns the waiting time up to now.
    pub(super) fn look(&mut self) -> Duration {
        let now = Instant::now();
        self.sum += now.duration_since(self.looked).min(LONGEST_LOOK);
        self.looked = now;
        self.sum
    }
}

/// Watches for steps of the collector.
pub(super) struct Watch {
    limit: Limit,
    steps: u64,
    waited: Waited,
}

impl Watch {
    pub(super) fn new(limit: Limit) -> Self {
        Self { limit, steps: STEPS.load(Ordering::Relaxed), waited: Waited::begin() }
    }

    /// Whether the time without a step of the collector has exceeded the limit, so that waiting is pointless.
    pub(super) fn is_over(&mut self) -> bool {
        let steps = STEPS.load(Ordering::Relaxed);
        if steps != self.steps {
            (self.steps, self.waited) = (steps, Waited::begin());
        }
        let limit = if IN_OTHERS.load(Ordering::Acquire) { self.limit.others } else { self.limit.ours };
        self.waited.look() >= limit
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn time_between_checks_counts_up_to_a_limit() {
        let mut waited = Waited::begin();
        thread::sleep(3 * LONGEST_LOOK);
        assert_eq!(waited.look(), LONGEST_LOOK);
        thread::sleep(LOOK_EVERY);
        let sum = waited.look();
        assert!((LONGEST_LOOK + LOOK_EVERY..=2 * LONGEST_LOOK).contains(&sum), "{sum:?}");
    }
}
