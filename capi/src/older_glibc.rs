//! What the standard library and `libc` call and glibc has no function for before 2.33: there programs brought their own
//! from a part that is linked into each. `build.rs` says what else is done for older ones.
//!
//! The linker takes these before the C library's. Nobody else sees them.

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

// What the kernel writes is what the C library's structure is here.

unsafe extern "C" fn by_path(path: *const c_char, into: *mut libc::stat64) -> c_int {
    // SAFETY: as `stat`'s caller has it.
    unsafe { libc::syscall(libc::SYS_stat, path, into) as c_int }
}

unsafe extern "C" fn of_link(path: *const c_char, into: *mut libc::stat64) -> c_int {
    // SAFETY: as `lstat`'s caller has it.
    unsafe { libc::syscall(libc::SYS_lstat, path, into) as c_int }
}

unsafe extern "C" fn by_descriptor(descriptor: c_int, into: *mut libc::stat64) -> c_int {
    // SAFETY: as `fstat`'s caller has it.
    unsafe { libc::syscall(libc::SYS_fstat, descriptor, into) as c_int }
}
