//! Defines the `stat` functions, which the standard library and the `libc` crate call. glibc exports these functions
//! only since version 2.33. In versions before 2.33, the `stat` functions were in a static part of glibc that was
//! linked into each program. `build.rs` lists the other measures for older versions of glibc.
//!
//! The linker prefers the functions of this file to the functions of the C library. The `stat` functions of this file
//! are hidden symbols, so that no other library uses them.

use std::arch::global_asm;
use std::ffi::{c_char, c_int};

global_asm!(
    ".pushsection .text.gpuflame_stat,\"ax\",@progbits",
    ".irp name, stat, stat64, lstat, lstat64, fstat, fstat64",
    ".globl \\name",
    ".hidden \\name",
    ".type \\name, @function",
    ".endr",
    "stat:",
    "stat64:",
    "jmp {stat_path}",
    "lstat:",
    "lstat64:",
    "jmp {stat_link}",
    "fstat:",
    "fstat64:",
    "jmp {stat_descriptor}",
    ".popsection",
    stat_path = sym stat_path,
    stat_link = sym stat_link,
    stat_descriptor = sym stat_descriptor,
);

// On this architecture, the kernel's `stat` structure has the same layout as the C library's structure.

unsafe extern "C" fn stat_path(path: *const c_char, into: *mut libc::stat64) -> c_int {
    // SAFETY: the caller fulfils the contract of `stat`.
    unsafe { libc::syscall(libc::SYS_stat, path, into) as c_int }
}

unsafe extern "C" fn stat_link(path: *const c_char, into: *mut libc::stat64) -> c_int {
    // SAFETY: the caller fulfils the contract of `lstat`.
    unsafe { libc::syscall(libc::SYS_lstat, path, into) as c_int }
}

unsafe extern "C" fn stat_descriptor(descriptor: c_int, into: *mut libc::stat64) -> c_int {
    // SAFETY: the caller fulfils the contract of `fstat`.
    unsafe { libc::syscall(libc::SYS_fstat, descriptor, into) as c_int }
}
