//! Logs and buffers that pass records from the application's threads to the collector. In the modules `buffers`,
//! `handover` and `log`, a thread never waits for another thread to finish a step.

pub(super) mod buffers;
pub(super) mod common_log;
pub(super) mod handover;
pub(super) mod log;
pub(super) mod unread_limit;
