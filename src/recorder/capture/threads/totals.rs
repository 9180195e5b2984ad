//! Sums of the counters over all threads.

use gpuflame_model::record::Loss;

use super::cost::{self, CallbackCost};
use super::thread::{self, all};
use super::thread_counters::VerifiedStacks;
use crate::capture::logs::buffers;

/// Returns each kind of loss on the application's threads, and the number of these losses so far.
pub fn losses() -> impl Iterator<Item = (Loss, u64)> {
    Loss::ALL.into_iter().map(|loss| {
        let counted = all().map(|thread| thread.counters.lost(loss)).sum::<u64>();
        let without_state = thread::lost_without_state(loss);
        let discarded = if loss == Loss::ActivitiesDropped { buffers::discarded() } else { 0 };
        (loss, counted + without_state + discarded)
    })
}

/// Returns the number of launches so far, counting launches outside windows too.
pub fn calls() -> u64 {
    all().map(|thread| thread.counters.calls.get()).sum()
}

/// Returns the time that the callbacks have cost the application so far.
pub fn cost() -> CallbackCost {
    cost::sum_histograms(
        calls(),
        all().flat_map(|thread| [&thread.counters.times, &thread.counters.graph_times]),
    )
}

/// Returns the time that the callbacks for graph launches have cost the application so far. `launches` is the number of
/// graph launches.
pub fn graph_cost(launches: u64) -> CallbackCost {
    cost::sum_histograms(launches, all().map(|thread| &thread.counters.graph_times))
}

/// Returns the results of verifying stacks so far.
pub fn verified() -> VerifiedStacks {
    all().fold(VerifiedStacks::default(), |sum, thread| sum.and(&thread.counters.verified))
}
