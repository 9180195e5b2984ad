//! Makes each system call that a session needs later once during set-up.
//!
//! A program may enter a sandbox after its start, with a seccomp filter that allows only the system calls observed
//! until then. Every kind of system call is therefore made before set-up ends, in a form without effect, so that the
//! observer sees the call. A filter that would kill the process at its end thus kills the process at its start.
//! `docs/inside-the-process.md` lists all system calls; this module makes the calls that no other part of set-up makes.

use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};

use super::threads;

/// Makes each call once. The results of the calls do not matter, and neither does errno, which our entry points
/// preserve.
pub fn make_all_once(takes_samples: bool) {
    make_common_calls();
    if takes_samples {
        make_sampling_calls();
    }
}

fn make_common_calls() {
    let (nothing, nowhere) = (c"".as_ptr(), libc::AT_FDCWD);
    let none = 0 as libc::c_ulong;
    let mut time = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: an empty path names no file, no file has the number -1, zero pieces of memory are copied, signal 0 is not
    // sent, and results are written to live places.
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
        // These two calls replace `renameat2` on file systems that do not support it.
        libc::linkat(nowhere, nothing, nowhere, nothing, 0);
        libc::rename(nothing, nothing);
        libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, time.as_mut_ptr());
        if libc::poll(null_mut(), 0, 0) != 0 {
            // A filter that refuses `poll` may allow `ppoll`.
            libc::ppoll(null_mut(), 0, &libc::timespec { tv_sec: 0, tv_nsec: 0 }, null());
        }
        libc::dup3(-1, -1, 0);
        libc::mremap(null_mut(), 0, 0, 0);
        libc::unlink(nothing);
        // These calls are needed at the first launch, when files and their folders are created.
        libc::mkdir(nothing, 0);
        libc::write(-1, null(), 0);
        // A process that is ended by a signal finally sends this signal to itself.
        libc::syscall(libc::SYS_tgkill, libc::getpid(), threads::current_id(), 0);
        // These calls are needed if the main thread launches late, for signals with an alternate stack, if stderr was
        // replaced, and for maps of generated code.
        libc::getrlimit(libc::RLIMIT_STACK, MaybeUninit::<libc::rlimit>::uninit().as_mut_ptr());
        libc::sigaltstack(null(), null_mut());
        libc::isatty(-1);
        libc::geteuid();
        // This call is needed if the process's scheduling class is not the default.
        libc::syscall(libc::SYS_sched_setscheduler, -1, 0, null::<u8>());
        // This call is sometimes needed when a lock is taken.
        libc::sched_yield();
        // Our threads make these calls when they first run, which is after set-up on a busy machine. No process has the
        // number -1, and 99 is not a kind of priority.
        libc::prctl(-1);
        libc::sched_getaffinity(-1, 0, null_mut());
        libc::sched_setaffinity(-1, 0, null());
        libc::sched_getscheduler(-1);
        libc::getpriority(99, 0);
        libc::setpriority(99, 0, 0);
        // On other architectures `stat` is a form of `fstat`, which set-up calls anyway.
        #[cfg(target_arch = "x86_64")]
        libc::syscall(libc::SYS_stat, nothing, MaybeUninit::<libc::stat>::uninit().as_mut_ptr());
    }
}

/// Makes the calls for sampling a thread, which are otherwise first made at the thread's first launch. They sample by
/// kernel events or, if kernel events are not available, by a timer.
fn make_sampling_calls() {
    let (none, nothing) = (-1 as libc::c_long, null::<u8>());
    // SAFETY: a call without attributes creates no event, and no clock and no timer has the number -1.
    unsafe {
        libc::syscall(libc::SYS_perf_event_open, nothing, none, none, none, none);
        libc::syscall(libc::SYS_timer_create, none, nothing, nothing);
        libc::syscall(libc::SYS_timer_settime, none, none, nothing, nothing);
        libc::syscall(libc::SYS_timer_delete, none);
        libc::syscall(libc::SYS_rt_sigtimedwait, nothing, nothing, nothing, none);
        libc::fcntl(-1, libc::F_GETFL);
    }
}
