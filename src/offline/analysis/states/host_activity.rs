//! Collects from rows the states and calls of threads between their launches.

use super::super::findings::HostStates;
use gpuflame_explain::join::Launched;
use gpuflame_explain::timeline::TimedCall;
use gpuflame_model::record::{ContextId, HostCallSpan, Row};

/// States of threads, or calls of threads if the run has no states.
#[derive(Debug, Default)]
pub(super) struct HostActivity {
    pub(super) states: HostStates,
    pub(super) calls: Vec<TimedCall>,
}

impl HostActivity {
    pub(super) fn add_row(&mut self, row: &Row<'_>) {
        match *row {
            Row::HostState(_) => self.states.row(row),
            Row::HostCallSpan(HostCallSpan { ended, duration, context }) => {
                self.add_call(ended.0.saturating_sub(duration.into()), ended.0, context, false);
            }
            _ => {}
        }
    }

    pub(super) fn add_launch(&mut self, launched: Launched) {
        let begun = launched.time.0;
        self.add_call(begun, begun.saturating_add(launched.duration.into()), launched.context, true);
    }

    /// Adds a call, unless there are states. Rows of states come before rows of calls.
    fn add_call(&mut self, begun: u64, ended: u64, context: ContextId, launches: bool) {
        if self.states.is_empty() && context >= ContextId::FIRST {
            self.calls.push(TimedCall { begun, ended, context, launches });
        }
    }
}
