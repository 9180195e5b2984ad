//! System calls that a session comes to make late, made once while it is set up.
//!
//! A program may shut itself into a sandbox when it has started, by a filter (seccomp) of what it was seen to call until
//! then. So each kind of call is made by the end of set-up, in a form that does nothing, and who watches has seen it: what would be
//! killed at the program's end is killed at its start. `docs/troubleshooting.md` names all; the list below has those that no
//! part of set-up makes by itself.

use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};

/// Makes each of them. Their answers do not matter, and neither does errno, which our entries keep for the host.
pub fn make_once() {
    let (nothing, nowhere) = (c"".as_ptr(), libc::AT_FDCWD);
    let none = 0 as libc::c_ulong;
    let mut time = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: a path of no characters names nothing, no file has the number -1, no piece of memory is to be copied, and
    // what is told is written to places that are there.
    unsafe {
        libc::syscall(
            libc::SYS_process_vm_readv,
            libc::getpid(),
            null::<u8>(),
            none,
            null::<u8>(),
            none,
            none,
        );
        libc::syscall(libc::SYS_renameat2, nowhere, nothing, nowhere, nothing, libc::RENAME_NOREPLACE);
        libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, time.as_mut_ptr());
        libc::poll(null_mut(), 0, 0);
        libc::dup3(-1, -1, 0);
        libc::mremap(null_mut(), 0, 0, 0);
        libc::unlink(nothing);
        // As who finds a lock taken does, now and then.
        libc::sched_yield();
        // On other machines it is a form of `fstat`, which set-up makes.
        #[cfg(target_arch = "x86_64")]
        libc::syscall(libc::SYS_stat, nothing, MaybeUninit::<libc::stat>::uninit().as_mut_ptr());
    }
}
