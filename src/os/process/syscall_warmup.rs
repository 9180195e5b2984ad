//! Makes all system calls that a recording session needs later: during set-up, each kind of call is made once.
//!
//! Some sandboxes observe which system calls a program makes when it starts, and later allow only these calls with a
//! seccomp filter. Therefore every kind of system call is made before set-up ends, in a form that has no effect. The
//! sandbox then also allows these calls after set-up. If an active filter kills the process for one of these calls, the
//! process dies at the start of the run and not at its end. `docs/inside-the-process.md` lists all system calls that
//! gpuflame makes. This module makes the system calls that the session needs but that no other set-up code makes.

use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};

use super::threads;

/// Makes each system call once, and ignores the results. The calls may change errno, but gpuflame's entry points
/// restore errno.
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
    // SAFETY: the calls have no effect: an empty path names no file, no file has the number -1, zero pieces of memory
    // are copied, and signal 0 is not sent. The calls write their results to variables that still exist.
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
        // `linkat` and `rename` replace `renameat2` on file systems that do not support it.
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
        // `mkdir` and `write` are needed on the first launch, when files and their folders are created.
        libc::mkdir(nothing, 0);
        libc::write(-1, null(), 0);
        // When a signal ends the process, the last step of gpuflame's handler is to send the signal to its own thread
        // again.
        libc::syscall(libc::SYS_tgkill, libc::getpid(), threads::current_id(), 0);
        // The next four calls are needed in the following cases, in this order: the main thread launches after set-up;
        // a signal handler uses an alternate stack; stderr was replaced; maps of generated code are read.
        libc::getrlimit(libc::RLIMIT_STACK, MaybeUninit::<libc::rlimit>::uninit().as_mut_ptr());
        libc::sigaltstack(null(), null_mut());
        libc::isatty(-1);
        libc::geteuid();
        // `sched_setscheduler` is needed if the process's scheduling class is not the default.
        libc::syscall(libc::SYS_sched_setscheduler, -1, 0, null::<u8>());
        // `sched_yield` is sometimes needed when a lock is taken.
        libc::sched_yield();
        // gpuflame's threads make the following calls when they start to run. On a busy machine, these threads may
        // start only after set-up. These calls have no effect, because no process has the id -1, and 99 is not a valid
        // kind of priority.
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

/// Makes the system calls that sampling needs. If this function were not called, the first such calls would be made
/// when a thread makes its first launch. A thread is sampled with perf events (`perf_event_open`) or, if they are not
/// available, with a timer.
fn make_sampling_calls() {
    let (none, nothing) = (-1 as libc::c_long, null::<u8>());
    // SAFETY: without attributes no perf event is created, and no clock and no timer has the id -1.
    unsafe {
        libc::syscall(libc::SYS_perf_event_open, nothing, none, none, none, none);
        libc::syscall(libc::SYS_timer_create, none, nothing, nothing);
        libc::syscall(libc::SYS_timer_settime, none, none, nothing, nothing);
        libc::syscall(libc::SYS_timer_delete, none);
        libc::syscall(libc::SYS_rt_sigtimedwait, nothing, nothing, nothing, none);
        libc::fcntl(-1, libc::F_GETFL);
    }
}
