//! Sums of the counters of all threads.

use gpuflame_model::record::Loss;

use super::buffers;
use super::cost::{self, Cost};
use super::counts::Verified;
use super::thread::{self, all};

/// Returns the losses on application threads so far.
pub fn losses() -> impl Iterator<Item = (Loss, u64)> {
    Loss::ALL.into_iter().map(|loss| {
        let counted = all().map(|thread| thread.tally.lost(loss)).sum::<u64>();
        let without_state = thread::lost_without_state(loss);
        let discarded = if loss == Loss::ActivitiesDropped { buffers::discarded() } else { 0 };
        (loss, counted + without_state + discarded)
    })
}

/// Returns the number of launches so far, inside and outside windows.
pub fn calls() -> u64 {
    all().map(|thread| thread.tally.calls.get()).sum()
}

/// Returns the cost of the callbacks to the application so far.
pub fn cost() -> Cost {
    cost::of_all(calls(), all().flat_map(|thread| [&thread.tally.times, &thread.tally.graph_times]))
}

/// Returns the cost of `launches` graph launches.
pub fn graph_cost(launches: u64) -> Cost {
    cost::of_all(launches, all().map(|thread| &thread.tally.graph_times))
}

/// Returns the results of verified stacks so far.
pub fn verified() -> Verified {
    all().fold(Verified::default(), |sum, thread| sum.and(&thread.tally.verified))
}
