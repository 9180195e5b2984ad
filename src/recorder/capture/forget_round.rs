//! Renewal of stack ids, which lets the collector free memory. A round is a period in which all threads forget the ids
//! of their stacks, so that the collector can free its data about the old ids.
//!
//! The collector must keep the stack of an id while a launch may still refer to the id. When the collector is short of
//! memory, it begins a round. After a round begins, every thread must forget its stack ids the next time that it enters
//! gpuflame. After forgetting its ids, a thread records every stack that it captures under a new id. A round does not
//! wait for idle threads. An idle thread writes no ids, and it forgets its old ids as soon as it enters gpuflame again.
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
//! The request to forget adds no check to a launch, because a thread checks `inside` on every entry anyway, to detect
//! recursion.
//!
//! After the collector's request, two kinds of launches can still write an old stack id. The first kind is a launch
//! that was already in flight when the collector made the request, and that already had its stack id. The second kind
//! is a launch whose thread is preempted between its check of `inside` and its own store to `inside`. While this thread
//! is preempted, a whole visit of the collector passes. When this thread continues, its store overwrites the request,
//! and the collector wrongly concludes that the thread has noticed the request. Therefore the collector frees the data
//! of an id one round later than the round in which the threads were asked to forget the id. If a thread misses the
//! requests of two successive rounds, its launches are attributed to other stacks until the next round.

use super::clock;
use super::stack::next_context;
use crate::capture::threads::thread::{all, next_forget_round};
use gpuflame_model::record::{ContextId, Nanos};

/// A round in which every thread forgets its stack ids. The collector begins the round, and polls the round until all
/// threads have noticed it.
#[derive(Debug)]
pub struct ForgetRound {
    round: u32,
    /// First stack id that is assigned after the round began. Ids that were assigned before the round are lower.
    first_new_id: ContextId,
    /// Time at which all threads had noticed the round; `None` if some threads have not noticed it yet.
    noticed: Option<Nanos>,
    /// Whether the collector has read all launches that began before `noticed`.
    is_read: bool,
}

impl ForgetRound {
    /// Begins a round, in which all threads forget their stack ids.
    pub fn begin() -> Self {
        let first_new_id = next_context();
        Self { round: next_forget_round(), first_new_id, noticed: None, is_read: false }
    }

    /// Asks each thread that has not noticed the round yet to forget its stack ids. On each visit, the collector calls
    /// this function after it has drained the logs of graphs and host calls. Returns `None` until all threads have
    /// noticed the round and all earlier launches are read. When all earlier launches are read, returns the lowest
    /// stack id that may still appear. Launches that were in flight may have lower ids.
    pub fn poll(&mut self) -> Option<ContextId> {
        if self.noticed.is_none() {
            // `count` makes the request to every thread, even if an earlier thread in the list has not noticed the
            // round yet.
            let unsure = all().filter(|thread| !thread.ask_to_forget(self.round)).count();
            self.noticed = (unsure == 0).then(clock::now);
        }
        self.is_read.then_some(self.first_new_id)
    }

    /// Notes that the collector has read all launches that began before `time`.
    pub fn note_read_before(&mut self, time: Nanos) {
        self.is_read |= self.noticed.is_some_and(|noticed| noticed <= time);
    }
}
