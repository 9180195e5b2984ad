//! All that happens on the application's threads.
//!
//! `callback` is the hot path, and one file. What it writes goes through a `log` a thread to the
//! collector, which calls [`drain`]. Nothing here knows what becomes of the rows.

#![allow(unsafe_code)]

mod beside;
mod buffers;
mod callback;
mod calls;
mod clock;
mod common_log;
mod cost;
mod counter;
pub mod events;
mod graphs;
mod intern;
mod log;
mod nvtx;
pub mod process;
mod ranges;
mod records;
mod stack;
mod tally;
mod thread;
mod verifying;

pub use beside::{drain_beside, note_waits};
pub use buffers::{filled, many_filled, next_filled, recycle};
pub use callback::{Capture, record_stack};
pub use clock::{now, renew_clock};
pub use cost::Cost;
pub use graphs::drain_graphs;
pub use log::refill;
pub use nvtx::NvtxTable;
pub use ranges::{RangeDomain, RangeName, end_range, ignore_domains, pop_range, push_range, start_range};
pub use tally::Verified;
pub use thread::{cost, drain, graph_cost, losses, verified};
pub use verifying::verify_every;
