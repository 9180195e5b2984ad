//! Files that get their name only when they are complete, files that grow while the application runs, and messages on
//! stderr and stdout.

pub mod file;
pub mod free_space;
pub mod growing;
pub mod stderr;
pub mod stdout;
pub mod timed_stderr;
