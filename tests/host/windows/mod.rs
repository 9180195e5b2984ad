//! Tests recording windows: when they open and close, and the output files of each window.

mod per_window_outputs;
pub(super) mod scheduled_windows;
