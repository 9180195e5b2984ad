//! Counters of a thread for launches, losses, the time spent in gpuflame's callbacks, and verified stacks.

use gpuflame_model::record::Loss;

use super::cost::DurationHistogram;
use super::counter::Counter;

/// Counters of a thread, which the collector reads.
pub(crate) struct ThreadCounters {
    losses: [Counter; Loss::ALL.len()],
    pub(crate) calls: Counter,
    /// Histogram of the times in ns that graph launches spent in gpuflame's callbacks.
    pub(crate) graph_times: DurationHistogram,
    /// Histogram of the times in ns that all other launches spent in gpuflame's callbacks.
    pub(crate) times: DurationHistogram,
    pub(crate) verified: VerificationCounters,
}

/// Number of stacks that were captured again with other methods. Each of the other methods has its own count of the
/// stacks for which its result was different.
pub(crate) struct VerificationCounters {
    pub(super) stacks: Counter,
    pub(crate) unlike_plain: Counter,
    pub(super) unlike_libgcc: Counter,
}

impl ThreadCounters {
    pub(super) const fn new() -> Self {
        let verified = VerificationCounters {
            stacks: Counter::new(),
            unlike_plain: Counter::new(),
            unlike_libgcc: Counter::new(),
        };
        Self {
            losses: [const { Counter::new() }; Loss::ALL.len()],
            calls: Counter::new(),
            graph_times: DurationHistogram::new(),
            times: DurationHistogram::new(),
            verified,
        }
    }

    /// Counts a loss on this thread. A signal handler on this thread may count a loss at the same time.
    #[cold]
    pub(crate) fn lose(&self, loss: Loss) {
        self.lose_many(loss, 1);
    }

    pub(crate) fn lose_many(&self, loss: Loss, count: u64) {
        self.losses[loss as usize - 1].add_atomically(count);
    }

    /// Resets the counters of all losses.
    pub(super) fn forget(&self) {
        self.losses.iter().for_each(Counter::clear);
    }

    /// Returns the number of losses of this kind on the thread.
    pub(super) fn lost(&self, loss: Loss) -> u64 {
        self.losses[loss as usize - 1].get()
    }
}

/// Results of verification, in which a sample of stacks is captured a second time with other methods (see
/// [`verify_every`](crate::capture::verify_every)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerifiedStacks {
    /// Number of stacks that were captured again.
    pub stacks: u64,
    /// Number of stacks for which a second walk gave a different result. This walk uses no caches and goes through
    /// every frame.
    pub unlike_plain: u64,
    /// Number of stacks for which libgcc's unwinder gave a different result.
    pub unlike_libgcc: u64,
}

impl VerifiedStacks {
    /// Adds the results of another thread.
    pub(super) fn and(self, counters: &VerificationCounters) -> Self {
        Self {
            stacks: self.stacks + counters.stacks.get(),
            unlike_plain: self.unlike_plain + counters.unlike_plain.get(),
            unlike_libgcc: self.unlike_libgcc + counters.unlike_libgcc.get(),
        }
    }
}
