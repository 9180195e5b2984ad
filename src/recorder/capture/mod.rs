//! The code that runs on the application's threads, and the logs and buffers that pass the records of this code to the
//! collector.
//!
//! `callback` is the hot path. The hot path notes which launch a thread is making (`calls`), captures the `stack` of
//! the launch, and pushes a record. `other_calls` records API calls that are not launches. Each thread (`threads`)
//! writes records to its own log (`log`). Records whose order across threads matters go to a log that all threads share
//! (`common_log`). The collector reads the logs with [`drain()`].

#![allow(unsafe_code)]

mod callback;
mod clock;
mod forget_round;
mod ids;
mod logs;
mod marker;
pub mod notices;
mod other_calls;
mod ranges;
mod stack;
mod threads;

pub use callback::{Capture, has_launched_after_shutdown, record_stack};
pub use clock::{now, recalibrate_clock};
pub use forget_round::ForgetRound;
pub use ids::range_names::{RangeDomain, RangeName, ignore_domains, watch_range};
pub use logs::buffers::{
    are_many_filled, count_filled, next_filled, oldest_completed, recycle, release_ready_memory,
};
pub use logs::log::refill_chunks;
pub use logs::unread_limit::bytes_held;
pub use other_calls::graphs::drain_graphs;
pub use other_calls::host_calls::{HostCallDetails, drain_host_calls, select_host_call_details};
pub use ranges::nvtx::NvtxTable;
pub use ranges::push_pop::{PopResult, end_range, pop_range, push_range, start_range};
pub use stack::new_context;
pub use threads::cost::CallbackCost;
pub use threads::drain::{
    any_in_flight, drain, drain_before, drain_noted, mark_unread, marked_is_read, note_unread,
    windows_without_pending_launches,
};
pub use threads::forked_child;
pub use threads::python::{drain_codes, number_of as number_of_code};
pub use threads::thread_counters::VerifiedStacks;
pub use threads::totals::{calls, cost, graph_cost, losses, verified};
pub use threads::verifying::verify_every;

/// Limits gpuflame's memory use to `ceiling` bytes. Each thread's table of stack ids may use a sixteenth of the limit.
/// Unread launches may use an eighth of the limit, and unread activities may use the rest. Rows are lost if no room is
/// left for them, and the lost rows are counted.
pub fn limit_memory(ceiling: usize) {
    logs::unread_limit::set(ceiling);
    ids::intern::limit_memory(ceiling / 16);
    logs::log::limit_memory(ceiling / 8);
}
