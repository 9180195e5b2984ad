//! The code that runs on the application's threads, and the logs and buffers through which it passes records to the
//! collector.
//!
//! `callback` is the hot path: it stores which launch a thread is in (`calls`), captures the launch's `stack` and
//! pushes a record. `host_calls` and `graphs` record other calls. Each `thread` writes its records to a `log` of its
//! own. If the order of records across threads matters, all threads write to one log (`common_log`). The collector
//! reads the logs with [`drain()`]. This module does not know how the rows are used.

#![allow(unsafe_code)]

mod buffers;
mod callback;
mod calls;
mod clock;
mod common_log;
mod cost;
mod counter;
mod drain;
mod forget_round;
pub mod forks;
mod graphs;
mod handover;
mod host_calls;
mod intern;
mod log;
mod marker;
pub mod notices;
mod nvtx;
mod open_ranges;
mod outside;
mod python;
mod range_names;
mod ranges;
mod records;
mod refusals;
mod stack;
mod text_table;
mod thread;
mod thread_counters;
mod totals;
mod verifying;

pub use buffers::{are_many_filled, count_filled, next_filled, recycle, release_ready_memory};
pub use callback::{Capture, has_launched_after_shutdown, record_stack};
pub use clock::{now, recalibrate_clock};
pub use cost::CallbackCost;
pub use drain::{
    any_in_flight, drain, drain_noted, mark_unread, marked_is_read, note_unread,
    windows_without_pending_launches,
};
pub use forget_round::ForgetRound;
pub use graphs::drain_graphs;
pub use host_calls::{HostCallDetails, drain_host_calls, select_host_call_details};
pub use log::refill_chunks;
pub use nvtx::NvtxTable;
pub use python::{drain_codes, number_of as number_of_code};
pub use range_names::{RangeDomain, RangeName, ignore_domains, watch_range};
pub use ranges::{PopResult, end_range, pop_range, push_range, start_range};
pub use stack::new_context;
pub use thread_counters::VerifiedStacks;
pub use totals::{calls, cost, graph_cost, losses, verified};
pub use verifying::verify_every;

/// Limits the memory of each thread and its logs to a share of `ceiling` bytes: a sixteenth for the ids of a thread's
/// stacks, and a quarter for rows that are written and not read. Activities that wait for the collector may take four
/// times the ceiling in that time, because sums would be wrong without them. More than 256 MiB changes nothing.
pub fn limit_memory(ceiling: usize) {
    intern::limit_memory(ceiling / 16);
    log::limit_memory(ceiling / 4);
    buffers::limit_memory(ceiling.saturating_mul(4));
}

/// Memory that gpuflame holds, in bytes: mapped, in buffers, and on its heap.
pub fn bytes_held() -> usize {
    gpuflame_unwind::bytes_held() + gpuflame_cupti::tracer::bytes_held() + gpuflame_os::heap::held_bytes()
}
