//! State of each application thread, and the functions with which the collector reads this state.

pub(super) mod calls;
pub(super) mod cost;
pub(super) mod counter;
pub(super) mod drain;
pub mod forked_child;
pub(super) mod open_ranges;
pub(super) mod outside;
pub(super) mod python;
pub(super) mod records;
pub(super) mod refusals;
pub(super) mod thread;
pub(super) mod thread_counters;
pub(super) mod totals;
pub(super) mod verifying;
