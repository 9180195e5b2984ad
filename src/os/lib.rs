//! The operating system's services, for the process in which gpuflame is a guest and for the command. The services are
//! calls at exit and in forked children, threads that receive no signals except the signals that they wait for,
//! messages on stderr, files that are complete or absent, memory use and the memory limit, and whether the process that
//! writes a file is still running.
//!
//! This module does not know what is recorded, and is not used on the hot path.

#![allow(unsafe_code)]

/// Whether the process has privileges that the user who started it lacks. If so, that user's settings must be ignored.
pub fn is_privileged() -> bool {
    // SAFETY: the call takes any number.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// User id that owns new files of this process.
pub fn user() -> u32 {
    // SAFETY: the call has no preconditions.
    unsafe { libc::geteuid() }
}

/// Path by which this program was started, for systems without `/proc`.
pub fn program_path() -> Option<std::path::PathBuf> {
    use std::os::unix::ffi::OsStrExt as _;
    // SAFETY: the call takes any number.
    let path = unsafe { libc::getauxval(libc::AT_EXECFN) } as *const std::ffi::c_char;
    if path.is_null() {
        return None;
    }
    // SAFETY: the kernel stores a C string at this address, which lives as long as the process.
    let path = unsafe { std::ffi::CStr::from_ptr(path) };
    Some(std::ffi::OsStr::from_bytes(path.to_bytes()).into())
}

pub mod cancel;
pub mod child;
pub mod clocks;
pub mod cpu_timer;
pub mod date;
pub mod descriptor;
pub mod exit;
pub mod fatal_signals;
pub mod file;
pub mod fork;
pub mod futex;
pub mod growing;
pub mod heap;
pub mod interpose;
pub mod leaks;
pub mod library;
pub mod listing;
pub mod memory;
pub mod module;
pub mod perf;
pub mod pinning;
pub mod process_liveness;
pub mod scheduling;
pub mod shortage;
pub mod signal_actions;
pub mod signals;
pub mod stack;
pub mod stderr;
pub mod stdout;
pub mod syscall_warmup;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod testing;
pub mod threads;
pub mod timed_stderr;
pub mod toggle_signal;
pub mod wake;
