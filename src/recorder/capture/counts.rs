//! Counters of a thread: launches, losses, the time of its callbacks, and verified stacks.

use gpuflame_model::record::Loss;

use super::cost::Times;
use super::counter::Counter;

/// Counters of a thread, which the collector reads.
pub(super) struct Counts {
    losses: [Counter; Loss::ALL.len()],
    pub(super) calls: Counter,
    /// Times of graph launches.
    pub(super) graph_times: Times,
    /// Times of all other calls.
    pub(super) times: Times,
    pub(super) verified: VerifiedTally,
}

/// Number of stacks that were captured again by other methods, and numbers of stacks whose results differed.
pub(super) struct VerifiedTally {
    pub(super) stacks: Counter,
    pub(super) unlike_plain: Counter,
    pub(super) unlike_libgcc: Counter,
}

impl Counts {
    pub(super) const fn new() -> Self {
        let verified = VerifiedTally {
            stacks: Counter::new(),
            unlike_plain: Counter::new(),
            unlike_libgcc: Counter::new(),
        };
        Self {
            losses: [const { Counter::new() }; Loss::ALL.len()],
            calls: Counter::new(),
            graph_times: Times::new(),
            times: Times::new(),
            verified,
        }
    }

    /// Counts a loss. A signal handler of the thread may count a loss at the same time.
    #[cold]
    pub(super) fn lose(&self, loss: Loss) {
        self.lose_many(loss, 1);
    }

    pub(super) fn lose_many(&self, loss: Loss, count: u64) {
        self.losses[loss as usize - 1].add_beside_handlers(count);
    }

    /// Resets all losses.
    pub(super) fn forget(&self) {
        self.losses.iter().for_each(Counter::clear);
    }

    /// Returns how often this loss occurred.
    pub(super) fn lost(&self, loss: Loss) -> u64 {
        self.losses[loss as usize - 1].get()
    }
}

/// Results of stacks that were captured again (see [`verify_every`](super::verify_every)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Number of stacks that were captured again.
    pub stacks: u64,
    /// Number of stacks for which a walk of every frame gave a different result.
    pub unlike_plain: u64,
    /// Number of stacks for which libgcc gave a different result.
    pub unlike_libgcc: u64,
}

impl Verified {
    /// Adds another thread's results.
    pub(super) fn and(self, tally: &VerifiedTally) -> Self {
        Self {
            stacks: self.stacks + tally.stacks.get(),
            unlike_plain: self.unlike_plain + tally.unlike_plain.get(),
            unlike_libgcc: self.unlike_libgcc + tally.unlike_libgcc.get(),
        }
    }
}
