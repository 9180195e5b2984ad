//! What all threads have counted, added up.

use crate::record::Loss;

use super::buffers;
use super::cost::{self, Cost};
use super::counts::Verified;
use super::thread::{self, all};

/// What was lost on application threads so far.
pub fn losses() -> impl Iterator<Item = (Loss, u64)> {
    Loss::ALL.into_iter().map(|loss| {
        let counted = all().map(|thread| thread.tally.lost(loss)).sum::<u64>();
        let without_state = thread::lost_without_state(loss);
        let discarded = if loss == Loss::ActivitiesDropped { buffers::discarded() } else { 0 };
        (loss, counted + without_state + discarded)
    })
}

/// How many launches there were so far, inside of windows and outside.
pub fn calls() -> u64 {
    all().map(|thread| thread.tally.calls.get()).sum()
}

/// What the callbacks cost the application so far.
pub fn cost() -> Cost {
    cost::of_all(calls(), all().flat_map(|thread| [&thread.tally.times, &thread.tally.graph_times]))
}

/// The same for `launches` of graphs.
pub fn graph_cost(launches: u64) -> Cost {
    cost::of_all(launches, all().map(|thread| &thread.tally.graph_times))
}

/// What was found by taking stacks again, so far.
pub fn verified() -> Verified {
    all().fold(Verified::default(), |sum, thread| sum.and(&thread.tally.verified))
}
