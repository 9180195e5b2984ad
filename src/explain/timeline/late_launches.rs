//! Finds the code that delayed launches. This module is for analyses that first read a whole run, and then examine gaps
//! on single streams. The code is found by the rules that also apply to the idle time of a GPU (see `call_history`).

use super::call_history::{CallHistory, CulpritThreads};
use gpuflame_model::profile::SampleSite;
use gpuflame_model::record::{ContextId, ThreadId};

/// An API call that has returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TimedCall {
    /// Time at which the call began, in ns since 1970.
    pub begun: u64,
    /// Time at which the call ended, in ns since 1970.
    pub ended: u64,
    /// Launch context of the call: its stack and API function.
    pub context: ContextId,
    /// Whether the call launched GPU work.
    pub launches: bool,
}

/// All API calls of a run, used to find the code that delayed launches. See the module's documentation.
#[derive(Clone, Debug, Default)]
pub struct LateLaunches {
    calls: CallHistory,
    culprits: CulpritThreads,
}

impl LateLaunches {
    /// Stores the API calls of all threads. `calls` may be sorted in any order.
    pub fn new(mut calls: Vec<(ThreadId, TimedCall)>) -> Self {
        calls.sort_unstable();
        let mut history = CallHistory::default();
        for (thread, TimedCall { begun, ended, context, launches }) in calls {
            match launches {
                true => history.add_launch(thread, begun, ended, context),
                false => history.add(thread, begun, ended, context),
            }
        }
        Self { calls: history, culprits: CulpritThreads::default() }
    }

    /// Divides the time `from..to`, during which a launch by `thread` with this context was late, among the culprits
    /// (the code that delayed the launch). Returns the culprits in order of time. `opened` is the latest time before
    /// `from` at which a window opened. `threads` contains the threads that launch on the same GPU.
    pub fn culprits(
        &mut self,
        (thread, context): (ThreadId, ContextId),
        (opened, from, to): (u64, u64, u64),
        threads: &[ThreadId],
    ) -> impl Iterator<Item = (SampleSite, u64)> + use<> {
        let times = (opened, from, to);
        let parts =
            self.calls.blame_thread((thread, context.into()), times, Some(threads), &mut self.culprits);
        parts.into_iter().map(|(culprit, nanos)| (culprit.site(), nanos))
    }
}
