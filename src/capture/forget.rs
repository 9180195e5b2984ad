//! Stacks get new ids: how all threads forget which ids their stacks had, so that the collector may forget it too.
//!
//! The collector keeps what each id means for as long as a launch may come with it. When it is short of memory it
//! begins a round: every thread is to forget its stacks when it next comes in, and announces those that it meets
//! from then on anew. A thread that does nothing need not hear of it; it is enough that it will.
//!
//! ```text
//! collector                      thread
//!   inside: 0 -> WISHED
//!                                inside is not 0: look again -> forget, forgot = round       (cold)
//!   forgot == round, or
//!   still WISHED a visit later:
//!   no older id is written any more
//! ```
//!
//! The thread looks at nothing that it did not look at before: `inside`, which says whether it is inside already.
//!
//! A launch that was under way has an id already, and where a thread loses its processor between that look and its own
//! store to `inside` for a whole visit of the collector, the wish is overwritten and the collector believes in it. So
//! ids are forgotten a round later than that in which nobody was to use them any more; a thread to which it happens in
//! two rounds on end has its launches added up with those of other stacks until the next.

use super::log::MOST_DRAINS;
use super::stack::next_context;
use super::thread::{all, next_round};
use crate::record::ContextId;

/// A round in which every thread forgets its stacks. Made and asked by the collector.
#[derive(Debug)]
pub struct Forgetting {
    round: u32,
    /// The ids that were handed out before lie below.
    before: ContextId,
    /// How often logs have been drained since all threads know.
    drained: Option<usize>,
}

impl Forgetting {
    /// Begins a round.
    pub fn begin() -> Self {
        let before = next_context();
        Self { round: next_round(), before, drained: None }
    }

    /// Tells the threads that do not know yet. To be called at each visit, after all graphs and calls beside launches
    /// were drained. Returns the lowest id that may still come, but for launches that were under way, when all know.
    pub fn visit(&mut self) -> Option<ContextId> {
        match self.drained {
            None => {
                // All are told, also after one that is not sure.
                let unsure = all().filter(|thread| !thread.ask_to_forget(self.round)).count();
                self.drained = (unsure == 0).then_some(0);
                None
            }
            Some(drained) => (drained >= MOST_DRAINS).then_some(self.before),
        }
    }

    /// The logs were drained; `any`: there was something.
    pub fn drained(&mut self, any: bool) {
        if let Some(drained) = &mut self.drained {
            *drained = if any { *drained + 1 } else { MOST_DRAINS };
        }
    }
}
