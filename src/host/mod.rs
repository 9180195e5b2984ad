//! What is asked of the operating system, for the process that gpuflame is a guest in and for the command: a call
//! at exit, silence in forked children, no signals on our own thread but those that it waits for, a line to stderr, files that are whole or
//! not there, how many bytes we hold, and how many we may, and whether who wrote a file still lives.
//!
//! Nothing here knows what is recorded. The hot path does not come here.

#![allow(unsafe_code)]

/// Whether the process has rights that whoever started it has not: nothing that they say counts then.
pub fn is_privileged() -> bool {
    // SAFETY: takes any number.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Whose files the process makes.
pub fn user() -> u32 {
    // SAFETY: has no preconditions.
    unsafe { libc::geteuid() }
}

/// The path that this program was started by, where there is no `/proc` to ask for it.
#[cfg(feature = "child")]
pub fn program_path() -> Option<std::path::PathBuf> {
    use std::os::unix::ffi::OsStrExt as _;
    // SAFETY: takes any number.
    let path = unsafe { libc::getauxval(libc::AT_EXECFN) } as *const std::ffi::c_char;
    if path.is_null() {
        return None;
    }
    // SAFETY: the kernel puts a C string there, which lives as long as the process.
    let path = unsafe { std::ffi::CStr::from_ptr(path) };
    Some(std::ffi::OsStr::from_bytes(path.to_bytes()).into())
}

pub mod actions;
pub mod alive;
pub mod calls;
pub mod cancel;
#[cfg(feature = "child")]
pub mod child;
pub mod clocks;
pub mod cpu_timer;
pub mod date;
pub mod descriptor;
pub mod ending;
pub mod exit;
pub mod file;
pub mod fork;
pub mod futex;
pub mod growing;
pub mod heap;
pub mod interpose;
pub mod leaks;
#[cfg(feature = "cli")]
pub mod library;
pub mod listing;
pub mod loaded;
pub mod memory;
pub mod module;
#[cfg(feature = "child")]
pub mod patient;
pub mod perf;
pub mod scheduling;
pub mod shortage;
pub mod signals;
pub mod stack;
pub mod stderr;
pub mod stdout;
#[cfg(test)]
pub(crate) mod testing;
pub mod threads;
pub mod toggle;
