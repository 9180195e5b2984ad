//! Gives stacks new ids when memory is short, so that the data about the old ids can be freed. The module
//! `capture::forget_round` describes the method.

use crate::capture::ForgetRound;
use gpuflame_explain::Explain;
use gpuflame_model::record::{ContextId, Nanos};

/// State of the rounds in which stacks get new ids. (`capture::forget_round` explains what a round is.)
pub(super) struct StackIdRenewal {
    /// Number of stacks that had been dropped when the last round began.
    dropped_stacks: u64,
    /// Lowest stack id that threads could still use at the end of the last round. `forgetting` is the round that is in
    /// progress, if there is one.
    lowest_id: ContextId,
    forgetting: Option<ForgetRound>,
}

impl Default for StackIdRenewal {
    fn default() -> Self {
        Self { dropped_stacks: 0, lowest_id: ContextId::FIRST, forgetting: None }
    }
}

impl StackIdRenewal {
    /// Notes that all launches that began before `time` have been read.
    pub(super) fn note_read_before(&mut self, time: Nanos) {
        if let Some(forgetting) = &mut self.forgetting {
            forgetting.note_read_before(time);
        }
    }

    /// Begins a round if stacks were dropped or there are too many ids. If a round is already in progress, checks
    /// whether the round has finished. If it has finished, forgets old ids. Returns true if a new round begins.
    pub(super) fn renew(&mut self, explain: &mut Explain) -> bool {
        let dropped = explain.dropped_stacks();
        match &mut self.forgetting {
            Some(forgetting) => {
                if let Some(lowest) = forgetting.poll() {
                    // Old ids are forgotten one round later than the round in which threads stop using these ids.
                    // The module `capture::forget_round` explains why.
                    explain.forget_below(std::mem::replace(&mut self.lowest_id, lowest));
                    self.forgetting = None;
                }
                false
            }
            None if dropped > self.dropped_stacks || explain.has_many_ids() => {
                self.dropped_stacks = dropped;
                self.forgetting = Some(ForgetRound::begin());
                true
            }
            None => false,
        }
    }
}
