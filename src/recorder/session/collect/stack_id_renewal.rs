//! Gives stacks new ids when memory runs short, so that the data about the old ids can be freed.

use crate::capture::ForgetRound;
use gpuflame_explain::Explain;
use gpuflame_model::record::{ContextId, Nanos};

/// The rounds in which threads assign new ids to their stacks.
pub(super) struct StackIdRenewal {
    /// Number of dropped stacks when threads were last asked for new stack ids. `forgetting` is the round in progress.
    dropped_stacks: u64,
    /// Lowest stack id that threads could still use after the previous round.
    lowest_id: ContextId,
    forgetting: Option<ForgetRound>,
}

impl Default for StackIdRenewal {
    fn default() -> Self {
        Self { dropped_stacks: 0, lowest_id: ContextId::FIRST, forgetting: None }
    }
}

impl StackIdRenewal {
    /// Notes that all launches that began before `time` were read.
    pub(super) fn note_read_before(&mut self, time: Nanos) {
        if let Some(forgetting) = &mut self.forgetting {
            forgetting.note_read_before(time);
        }
    }

    /// Makes threads assign new ids to their stacks if stacks were dropped or had too many ids. Forgets the old ids.
    /// Returns whether a round begins.
    pub(super) fn renew(&mut self, explain: &mut Explain) -> bool {
        let dropped = explain.dropped_stacks();
        match &mut self.forgetting {
            Some(forgetting) => {
                if let Some(lowest) = forgetting.poll() {
                    // Ids are forgotten one round later; `forget_round` gives the reason.
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
