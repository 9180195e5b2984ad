//! Services for the application's process, in which gpuflame is a guest: threads, stacks, descriptors, libraries, forks
//! and exits. The folder also contains the code with which the `gpuflame` command starts processes.

pub mod cancel;
pub mod child;
pub mod descriptor;
pub mod exit;
pub mod fork_hooks;
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
