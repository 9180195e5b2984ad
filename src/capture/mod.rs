//! The code that runs on the application's threads, and the logs and buffers through which it passes records to the
//! collector.
//!
//! `callback` is the hot path: it stores which launch a thread is in (`calls`), captures the launch's `stack` and
//! pushes a record. `host_calls` and `graphs` record other calls. Each `thread` writes its records to a `log` of its
//! own. If the order of records across threads matters, all threads write to one log (`common_log`). The collector
//! reads the logs with [`drain()`]. This module does not know how the rows are used.

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

/// Limits the memory of threads, logs and activity buffers, so that everything that gpuflame holds stays below
/// `ceiling` bytes. The table of a thread's stack ids may take a sixteenth of the ceiling, all logs a quarter, and the
/// backlog as a whole the memory that everything else leaves (`budget`). Records beyond these limits are dropped and
/// counted.
pub fn bound_memory(ceiling: usize) {
    intern::bound(ceiling / 16);
    log::bound(ceiling / 4);
    budget::bound(ceiling);
}
