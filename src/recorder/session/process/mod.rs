//! Parts of a session that deal with the process: the environment, messages, reports to the program that started the
//! process, the collector's progress, and the end of a session.

pub(super) mod environment;
pub(super) mod launcher_report;
pub(super) mod messages;
pub(super) mod out_of_memory;
pub(super) mod panic;
pub(super) mod progress;
pub(super) mod shutdown;
