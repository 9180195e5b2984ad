//! Windows: when they open and close, and output files for each.

mod per_window_outputs;
pub(super) mod scheduled_windows;
