//! All that happens on the application's threads.
//!
//! `callback` is the hot path: it keeps the launch that a thread is in (`calls`), takes its `stack` and pushes a
//! record. `host_calls` and `graphs` note other calls. What they write goes through a `log` a `thread`, or through one
//! for all where order matters (`common_log`), to the collector, which calls [`drain()`]. Nothing here knows what
//! becomes of the rows.

#![allow(unsafe_code)]

mod budget;
mod buffers;
mod callback;
mod calls;
mod clock;
mod common_log;
mod cost;
mod counter;
mod counts;
mod drain;
mod forget;
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
mod refused;
mod stack;
mod sums;
mod texts;
mod thread;
mod verifying;

pub use budget::bytes_held;
pub use buffers::{filled, many_filled, next_filled, recycle, rest};
pub use callback::{Capture, has_launched_late, record_stack};
pub use clock::{now, renew_clock};
pub use cost::Cost;
pub use counts::Verified;
pub use drain::{any_under_way, drain, drain_noted, mark_unread, marked_is_read, note_unread, windows_left};
pub use forget::Forgetting;
pub use graphs::drain_graphs;
pub use host_calls::{Kept, drain_host_calls, note_host_calls};
pub use log::refill;
pub use nvtx::NvtxTable;
pub use range_names::{RangeDomain, RangeName, ignore_domains, watch_range};
pub use ranges::{Popped, end_range, pop_range, push_range, start_range};
pub use stack::new_context;
pub use sums::{calls, cost, graph_cost, losses, verified};
pub use verifying::verify_every;

/// Limits what threads, their logs and buffers of activities take, so that everything gpuflame holds stays below `ceiling`
/// bytes: the ids of a thread's stacks to a sixteenth, logs to a quarter, and the backlog as a whole to what everything
/// else leaves (`budget`). Records beyond that are dropped and counted.
pub fn bound_memory(ceiling: usize) {
    intern::bound(ceiling / 16);
    log::bound(ceiling / 4);
    budget::bound(ceiling);
}
