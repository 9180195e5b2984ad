//! Renewal of stack ids: all threads forget the ids of their stacks, so that the collector can free its data about
//! these ids.
//!
//! The collector keeps the stack of an id as long as a launch may refer to the id. When the collector is short of
//! memory, it begins a round, in which every thread must forget its stack ids the next time it enters gpuflame. After
//! that, the thread announces each stack that it captures again, under a new id. A round does not wait for idle
//! threads: an idle thread writes no ids, and forgets its old ids as soon as it enters gpuflame again.
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
//! The request costs a thread no additional check, because a thread already checks `inside` on every entry to detect
//! recursion.
//!
//! Two kinds of launches can still write an old id after the request. The first is a launch in flight, which has its id
//! already. The second is a launch whose thread is preempted between its check of `inside` and its own store to
//! `inside`, and does not run during a whole visit of the collector. The thread's store then overwrites the request,
//! and the collector wrongly assumes that the thread has seen the request. So the collector forgets an id one round
//! later than the round in which threads should stop using the id. If a thread misses the request in two successive
//! rounds, its launches are added to those of other stacks until the next round.

use super::clock;
use super::stack::next_context;
use crate::capture::threads::thread::{all, next_forget_round};
use gpuflame_model::record::{ContextId, Nanos};

/// A round in which every thread forgets its stack ids. The collector begins the round and polls it.
#[derive(Debug)]
pub struct ForgetRound {
    round: u32,
    /// First id that is assigned after the start of the round. Ids from before the round are lower.
    first_new_id: ContextId,
    /// Time at which the last thread took notice of the round; `None` until all threads have.
    noticed: Option<Nanos>,
    /// Whether the collector has read all launches that began before `noticed`.
    is_read: bool,
}

impl ForgetRound {
    /// Begins a round.
    pub fn begin() -> Self {
        let first_new_id = next_context();
        Self { round: next_forget_round(), first_new_id, noticed: None, is_read: false }
    }

    /// Asks each thread that has not taken notice of the round yet to forget its ids. The collector calls this at each
    /// visit, after it has drained all graphs and host calls. Returns `None` until all threads have taken notice and
    /// the launches from before that moment are read. Then returns the lowest id that may still appear, apart from
    /// launches that were in flight.
    pub fn poll(&mut self) -> Option<ContextId> {
        if self.noticed.is_none() {
            // All threads are asked, even if an earlier thread has not taken notice yet.
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
