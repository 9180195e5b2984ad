//! The ties between a session and its process: environment, messages, the program that started it, progress, and the ways
//! in which a session ends.

pub(super) mod environment;
pub(super) mod launcher_report;
pub(super) mod messages;
pub(super) mod out_of_memory;
pub(super) mod panic;
pub(super) mod progress;
pub(super) mod shutdown;
