//! Functions that the standard library and `libc` call but glibc exports only from 2.33 on; before, a static part
//! linked into each program defined them. `build.rs` lists the other measures for older versions.
//!
//! The linker prefers these to the C library's. They are hidden, so no other library sees them.

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
    "jmp {by_path}",
    "lstat:",
    "lstat64:",
    "jmp {of_link}",
    "fstat:",
    "fstat64:",
    "jmp {by_descriptor}",
    ".popsection",
    by_path = sym by_path,
    of_link = sym of_link,
    by_descriptor = sym by_descriptor,
);

// The kernel's structure is the same as the C library's on this architecture.

unsafe extern "C" fn by_path(path: *const c_char, into: *mut libc::stat64) -> c_int {
    // SAFETY: the caller keeps `stat`'s contract.
    unsafe { libc::syscall(libc::SYS_stat, path, into) as c_int }
}

unsafe extern "C" fn of_link(path: *const c_char, into: *mut libc::stat64) -> c_int {
    // SAFETY: the caller keeps `lstat`'s contract.
    unsafe { libc::syscall(libc::SYS_lstat, path, into) as c_int }
}

unsafe extern "C" fn by_descriptor(descriptor: c_int, into: *mut libc::stat64) -> c_int {
    // SAFETY: the caller keeps `fstat`'s contract.
    unsafe { libc::syscall(libc::SYS_fstat, descriptor, into) as c_int }
}
