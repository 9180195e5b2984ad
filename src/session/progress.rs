//! Whether the collector gets on. Whoever waits for it is patient as long as it does, and no longer.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How often somebody who waits looks.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(20);

/// No more counts as waited between two looks.
const LONGEST_LOOK: Duration = Duration::from_millis(100);

static STEPS: AtomicU64 = AtomicU64::new(0);
static IN_OTHERS: AtomicBool = AtomicBool::new(false);

/// Says that a step was made.
pub(super) fn made() {
    STEPS.fetch_add(1, Ordering::Relaxed);
}

/// Runs `ask`, which asks the tracer or the loader for something and may never return.
pub(super) fn in_others<T>(ask: impl FnOnce() -> T) -> T {
    IN_OTHERS.store(true, Ordering::Release);
    let answer = ask();
    made();
    IN_OTHERS.store(false, Ordering::Release);
    answer
}

/// How long no step may be made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limit {
    /// While others are asked, who make none.
    pub(super) others: Duration,
    /// At any other time.
    pub(super) ours: Duration,
}

/// How long somebody has waited who looks now and then. A machine, or a process, that stood still and goes on has held up
/// whoever is waited for as well, so of what lies between two looks little counts.
pub(super) struct Waited {
    looked: Instant,
    sum: Duration,
}

impl Waited {
    pub(super) fn begin() -> Self {
        Self { looked: Instant::now(), sum: Duration::ZERO }
    }

    /// How long it is by now.
    pub(super) fn look(&mut self) -> Duration {
        let now = Instant::now();
        self.sum += now.duration_since(self.looked).min(LONGEST_LOOK);
        self.looked = now;
        self.sum
    }
}

/// Looks whether steps are made.
pub(super) struct Watch {
    limit: Limit,
    steps: u64,
    waited: Waited,
}

impl Watch {
    pub(super) fn new(limit: Limit) -> Self {
        Self { limit, steps: STEPS.load(Ordering::Relaxed), waited: Waited::begin() }
    }

    /// Whether none was made for so long that there is no point in waiting on.
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
    fn of_a_time_in_which_nobody_could_look_little_counts() {
        let mut waited = Waited::begin();
        thread::sleep(3 * LONGEST_LOOK);
        assert_eq!(waited.look(), LONGEST_LOOK);
        thread::sleep(LOOK_EVERY);
        let sum = waited.look();
        assert!((LONGEST_LOOK + LOOK_EVERY..=2 * LONGEST_LOOK).contains(&sum), "{sum:?}");
    }
}
