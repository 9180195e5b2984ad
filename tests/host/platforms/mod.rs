//! Tests unusual languages and systems: stacks that are not the thread's own, code without unwind information, and
//! older C libraries.

mod generated;
mod older_glibc;
mod runtimes;
