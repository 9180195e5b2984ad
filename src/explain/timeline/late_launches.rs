//! Finds the code that made launches late, for analyses that read a whole run first and then look at gaps of single
//! streams. The rules are those of the idle time of a GPU, see `call_history`.

use super::call_history::{CallHistory, CulpritThreads};
use gpuflame_model::profile::SampleSite;
use gpuflame_model::record::{ContextId, ThreadId};

/// A completed call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TimedCall {
    /// Start, in ns since 1970.
    pub begun: u64,
    /// End, in ns since 1970.
    pub ended: u64,
    /// Stack of the call.
    pub context: ContextId,
    /// Whether the call launched work.
    pub launches: bool,
}

/// All calls of a run's threads. See the module's documentation.
#[derive(Clone, Debug, Default)]
pub struct LateLaunches {
    calls: CallHistory,
    culprits: CulpritThreads,
}

impl LateLaunches {
    /// Reads all calls, in any order.
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

    /// Divides the time `from..to`, in which a launch of `thread` with this context was late, among the code to blame, in
    /// order of time. The last window before that time opened at `opened`. `threads` are those that launch on the same GPU.
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
