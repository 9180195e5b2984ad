//! Reassignment of stack ids: all threads forget the ids of their stacks, so that the collector may free its data about
//! these ids.
//!
//! The collector keeps the stack of each id as long as a launch may refer to the id. When the collector is short of
//! memory, it begins a round: every thread must forget its stack ids when it next enters gpuflame, and announces the
//! stacks that it captures after that under new ids. A round does not wait for idle threads, because an idle thread
//! writes no ids, and will forget its old ids as soon as it enters gpuflame again.
//!
//! ```text
//! collector                      thread
//!   inside: 0 -> FORGET_REQUESTED
//!                                inside is not 0: slow path -> forget, forgot_round = round          (cold)
//!   forgot_round == round, or
//!   still FORGET_REQUESTED a visit later:
//!   no older id is written any more
//! ```
//!
//! The request costs a thread no additional check, because the thread checks `inside` on every entry anyway, to detect
//! recursion.
//!
//! Two kinds of launches can still write an old id. A launch in flight already has its id. And if a thread is preempted
//! for a whole visit of the collector between its check of `inside` and its own store to `inside`, the store overwrites
//! the request, although the collector assumes that the thread has seen it. So the collector forgets ids one round
//! later than the round in which threads should stop using them. If a thread misses the request in two successive
//! rounds, its launches are added to those of other stacks until the next round.

use super::clock;
use super::stack::next_context;
use crate::capture::threads::thread::{all, next_forget_round};
use gpuflame_model::record::{ContextId, Nanos};

/// A round in which every thread forgets its stack ids. The collector starts and polls the round.
#[derive(Debug)]
pub struct ForgetRound {
    round: u32,
    /// First id that is assigned after the start of the round; all older ids are lower.
    first_new_id: ContextId,
    /// Time at which all threads had taken notice of the round.
    noticed: Option<Nanos>,
    /// Whether all launches that began before that time were read.
    is_read: bool,
}

impl ForgetRound {
    /// Begins a round.
    pub fn begin() -> Self {
        let first_new_id = next_context();
        Self { round: next_forget_round(), first_new_id, noticed: None, is_read: false }
    }

    /// Asks the threads that have not taken notice of the round yet. The collector calls this at each visit, after it
    /// has drained all graphs and host calls. Once all threads have taken notice, returns the lowest id that may still
    /// appear, except in launches that were in flight.
    pub fn poll(&mut self) -> Option<ContextId> {
        if self.noticed.is_none() {
            // Every thread is asked, even if an earlier thread in the list is not certain to forget yet.
            let unsure = all().filter(|thread| !thread.ask_to_forget(self.round)).count();
            self.noticed = (unsure == 0).then(clock::now);
        }
        self.is_read.then_some(self.first_new_id)
    }

    /// Notes that all launches that began before `time` were read.
    pub fn note_read_before(&mut self, time: Nanos) {
        self.is_read |= self.noticed.is_some_and(|noticed| noticed <= time);
    }
}
