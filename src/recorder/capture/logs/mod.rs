//! Logs and buffers, through which records pass from the application's threads to the collector. No step of one thread
//! waits for a step of another.

pub(super) mod buffers;
pub(super) mod common_log;
pub(super) mod handover;
pub(super) mod log;
pub(super) mod unread_limit;
