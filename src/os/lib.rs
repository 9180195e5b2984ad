//! Services of the operating system, for the library inside the application's process and for the `gpuflame` command:
//! - functions that are called on exit and in forked children;
//! - threads that receive only the signals for which they wait;
//! - messages on stderr, and files that appear only when they are complete;
//! - memory use and the memory limit;
//! - a check whether the process that writes a file is still running.
//!
//! Other packages use a module's path without the name of its folder: `gpuflame_os::file`.
//!
//! The code in this crate does not process recorded data, and does not run on the hot path of a launch.

#![allow(unsafe_code)]

/// Whether the process has more privileges than the user who started it. If the process has more privileges, the user's
/// settings must be ignored.
pub fn is_privileged() -> bool {
    // SAFETY: the call accepts any number.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Id of the user who owns new files of this process.
pub fn user() -> u32 {
    // SAFETY: the call has no preconditions.
    unsafe { libc::geteuid() }
}

/// Path by which this program was started, available even without `/proc`.
pub fn program_path() -> Option<std::path::PathBuf> {
    use std::os::unix::ffi::OsStrExt as _;
    // SAFETY: the call accepts any number.
    let path = unsafe { libc::getauxval(libc::AT_EXECFN) } as *const std::ffi::c_char;
    if path.is_null() {
        return None;
    }
    // SAFETY: the kernel stores a C string at this address, which lives as long as the process.
    let path = unsafe { std::ffi::CStr::from_ptr(path) };
    Some(std::ffi::OsStr::from_bytes(path.to_bytes()).into())
}

pub mod clocks;
pub mod date;
mod files;
pub mod heap;
pub mod leaks;
pub mod listing;
pub mod memory;
mod process;
mod sampling;
pub mod shortage;
mod signals;
#[cfg(test)]
#[path = "../../tests/support/skip.rs"]
mod skip;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod testing;

pub use files::{file, free_space, growing, stderr, stdout, timed_stderr};
pub use process::{
    cancel, child, descriptor, exit, fork_hooks, futex, host_signals, interpose, library, module, pinning,
    process_liveness, scheduling, stack, syscall_warmup, threads,
};
pub use sampling::{cpu_timer, perf, wake};
pub use signals::{fatal_signals, signal_actions, toggle_signal};
