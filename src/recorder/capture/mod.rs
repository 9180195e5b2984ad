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

/// Limits the memory of each thread and its logs to a share of `ceiling` bytes: a sixteenth for the ids of a thread's
/// stacks, and a quarter for rows that are written and not read. Activities that wait for the collector may take four
/// times the ceiling in that time, because sums would be wrong without them. More than 256 MiB changes nothing.
pub fn bound_memory(ceiling: usize) {
    intern::bound(ceiling / 16);
    log::bound(ceiling / 4);
    buffers::bound(ceiling.saturating_mul(4));
}

/// Memory that gpuflame holds, in bytes: mapped, in buffers, and on its heap.
pub fn bytes_held() -> usize {
    gpuflame_unwind::bytes_held() + gpuflame_cupti::tracer::bytes_held() + gpuflame_os::heap::held_bytes()
}
