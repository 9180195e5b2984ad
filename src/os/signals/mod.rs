//! Signals that gpuflame handles if the application has left them at their default action.

pub mod fatal_signals;
pub mod signal_actions;
pub mod toggle_signal;
