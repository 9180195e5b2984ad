//! What a thread counts: launches and what was lost, what its callbacks took, and stacks that were taken again.

use crate::record::Loss;

use super::cost::Times;
use super::counter::Counter;

/// One thread's counters, which the collector reads.
pub(super) struct Counts {
    losses: [Counter; Loss::ALL.len()],
    pub(super) calls: Counter,
    /// Of launches of graphs.
    pub(super) graph_times: Times,
    /// Of all other calls.
    pub(super) times: Times,
    pub(super) verified: VerifiedTally,
}

/// Stacks that were taken again, and how many of them differed.
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

    /// Counts a loss. A signal handler may do so in the middle of it.
    #[cold]
    pub(super) fn lose(&self, loss: Loss) {
        self.lose_many(loss, 1);
    }

    pub(super) fn lose_many(&self, loss: Loss, count: u64) {
        self.losses[loss as usize - 1].add_beside_handlers(count);
    }

    /// Forgets what was lost.
    pub(super) fn forget(&self) {
        self.losses.iter().for_each(Counter::clear);
    }

    /// How often that was lost.
    pub(super) fn lost(&self, loss: Loss) -> u64 {
        self.losses[loss as usize - 1].get()
    }
}

/// What became of stacks that were taken again (see [`verify_every`](super::verify_every)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Stacks that were taken again.
    pub stacks: u64,
    /// Those that a walk of every frame found different.
    pub unlike_plain: u64,
    /// Those that libgcc found different.
    pub unlike_libgcc: u64,
}

impl Verified {
    /// With another thread's.
    pub(super) fn and(self, tally: &VerifiedTally) -> Self {
        Self {
            stacks: self.stacks + tally.stacks.get(),
            unlike_plain: self.unlike_plain + tally.unlike_plain.get(),
            unlike_libgcc: self.unlike_libgcc + tally.unlike_libgcc.get(),
        }
    }
}
