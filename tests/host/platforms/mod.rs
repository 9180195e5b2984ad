//! Languages and systems: stacks other than the threads' own stacks, code without unwind information, older C libraries.

mod generated;
mod older_glibc;
mod runtimes;
