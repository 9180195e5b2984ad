//! Reassignment of stack ids: makes all threads forget the ids of their stacks, so that the collector may free its
//! data about these ids.
//!
//! The collector keeps the meaning of each id for as long as a launch may refer to it. When it is short of memory it
//! begins a round: every thread must forget its stacks when it next enters gpuflame, and announces the stacks that it
//! meets after that under new ids. An idle thread need not take part; it is enough that it will when it next enters.
//!
//! ```text
//! collector                      thread
//!   inside: 0 -> WISHED
//!                                inside is not 0: slow path -> forget, forgot = round          (cold)
//!   forgot == round, or
//!   still WISHED a visit later:
//!   no older id is written any more
//! ```
//!
//! The thread checks no additional word: it checks `inside` on every entry anyway, to detect recursion.
//!
//! A launch in flight already has an id. And if a thread is preempted between its check and its own store to `inside`
//! for a whole visit of the collector, the request is overwritten although the collector assumes that it was seen. So
//! ids are forgotten one round after the one in which they should fall out of use. If this happens to a thread in two
//! successive rounds, its launches are added to those of other stacks until the next round.

use super::log::MOST_DRAINS;
use super::stack::next_context;
use super::thread::{all, next_round};
use crate::record::ContextId;

/// A round in which every thread forgets its stacks. Started and polled by the collector.
#[derive(Debug)]
pub struct Forgetting {
    round: u32,
    /// First id that is assigned after the start of the round; all older ids are below.
    before: ContextId,
    /// Number of times that logs have been drained since all threads took notice.
    drained: Option<usize>,
}

impl Forgetting {
    /// Begins a round.
    pub fn begin() -> Self {
        let before = next_context();
        Self { round: next_round(), before, drained: None }
    }

    /// Asks the threads that have not taken notice yet. Call at each visit, after all graphs and host calls were
    /// drained. Once all threads have, returns the lowest id that may still appear, except in launches that were in
    /// flight.
    pub fn visit(&mut self) -> Option<ContextId> {
        match self.drained {
            None => {
                // Asks all threads, including those after one that is unsure.
                let unsure = all().filter(|thread| !thread.ask_to_forget(self.round)).count();
                self.drained = (unsure == 0).then_some(0);
                None
            }
            Some(drained) => (drained >= MOST_DRAINS).then_some(self.before),
        }
    }

    /// Notes that the logs were drained; `any`: whether they contained anything.
    pub fn drained(&mut self, any: bool) {
        if let Some(drained) = &mut self.drained {
            *drained = if any { *drained + 1 } else { MOST_DRAINS };
        }
    }
}
