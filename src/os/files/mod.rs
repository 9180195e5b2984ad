//! Files that are complete or absent, files that grow while the application runs, and messages on stderr and stdout.

pub mod file;
pub mod growing;
pub mod stderr;
pub mod stdout;
pub mod timed_stderr;
