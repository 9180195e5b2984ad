//! Finds the code that made launches late. For analyses that read a whole run first, and then look at gaps on single
//! streams. The rules are the same as for the idle time of a GPU (see `call_history`).

use super::call_history::{CallHistory, CulpritThreads};
use gpuflame_model::profile::SampleSite;
use gpuflame_model::record::{ContextId, ThreadId};

/// A completed API call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TimedCall {
    /// Time at which the call began, in ns since 1970.
    pub begun: u64,
    /// Time at which the call ended, in ns since 1970.
    pub ended: u64,
    /// Context of the call: its stack and API function.
    pub context: ContextId,
    /// Whether the call launched GPU work.
    pub launches: bool,
}

/// All API calls of a run. See the module's documentation.
#[derive(Clone, Debug, Default)]
pub struct LateLaunches {
    calls: CallHistory,
    culprits: CulpritThreads,
}

impl LateLaunches {
    /// Stores the calls of all threads. `calls` may be in any order.
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

    /// Divides the time `from..to`, during which a launch by `thread` with this context was late, among the culprits.
    /// Returns the culprits in order of time. `opened` is the time at which the last window before `from` opened.
    /// `threads` are the threads that launch on the same GPU.
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
