//! Whether the collector gets on. Whoever waits for it is patient as long as it does, and no longer.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How often somebody who waits looks.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(20);

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

/// Looks whether steps are made.
pub(super) struct Watch {
    limit: Limit,
    steps: u64,
    since: Instant,
}

impl Watch {
    pub(super) fn new(limit: Limit) -> Self {
        Self { limit, steps: STEPS.load(Ordering::Relaxed), since: Instant::now() }
    }

    /// Whether none was made for so long that there is no point in waiting on.
    pub(super) fn is_over(&mut self) -> bool {
        let steps = STEPS.load(Ordering::Relaxed);
        if steps != self.steps {
            (self.steps, self.since) = (steps, Instant::now());
        }
        let limit = if IN_OTHERS.load(Ordering::Acquire) { self.limit.others } else { self.limit.ours };
        self.since.elapsed() >= limit
    }
}
