//! Reads the states of host threads, and their calls between launches, from rows.

use super::super::findings::HostStates;
use gpuflame_explain::join::Launched;
use gpuflame_explain::timeline::TimedCall;
use gpuflame_model::record::{ContextId, HostCallSpan, Row};

/// What host threads did: their states, or their calls if the run has no states.
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

    /// Adds a host call, unless the run has thread states. Rows about states come before rows about calls.
    fn add_call(&mut self, begun: u64, ended: u64, context: ContextId, launches: bool) {
        if self.states.is_empty() && context >= ContextId::FIRST {
            self.calls.push(TimedCall { begun, ended, context, launches });
        }
    }
}
