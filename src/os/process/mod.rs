//! The process that gpuflame is a guest in: its threads, stacks, descriptors, libraries, forks and exits, and the processes
//! that the command starts.

pub mod cancel;
pub mod child;
pub mod descriptor;
pub mod exit;
pub mod fork;
pub mod futex;
pub mod host_signals;
pub mod interpose;
pub mod library;
pub mod module;
pub mod pinning;
pub mod process_liveness;
pub mod scheduling;
pub mod stack;
pub mod syscall_warmup;
pub mod threads;
