//! System calls that a session comes to make late, made once while it is set up.
//!
//! A program may shut itself into a sandbox when it has started, by a filter (seccomp) of what it was seen to call until
//! then. So each kind of call is made by the end of set-up, in a form that does nothing, and who watches has seen it: what would be
//! killed at the program's end is killed at its start. `docs/inside-the-process.md` names all; the list below has those that no
//! part of set-up makes by itself.

use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};

use super::threads;

/// Makes each of them. Their answers do not matter, and neither does errno, which our entries keep for the host.
pub fn make_once(takes_samples: bool) {
    make_all();
    if takes_samples {
        make_those_of_samples();
    }
}

fn make_all() {
    let (nothing, nowhere) = (c"".as_ptr(), libc::AT_FDCWD);
    let none = 0 as libc::c_ulong;
    let mut time = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: a path of no characters names nothing, no file has the number -1, no piece of memory is to be copied, signal 0
    // is none, and what is told is written to places that are there.
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
        // Where there is none of that, both of these do its work.
        libc::linkat(nowhere, nothing, nowhere, nothing, 0);
        libc::rename(nothing, nothing);
        libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, time.as_mut_ptr());
        if libc::poll(null_mut(), 0, 0) != 0 {
            // A filter that refuses the one may allow the other.
            libc::ppoll(null_mut(), 0, &libc::timespec { tv_sec: 0, tv_nsec: 0 }, null());
        }
        libc::dup3(-1, -1, 0);
        libc::mremap(null_mut(), 0, 0, 0);
        libc::unlink(nothing);
        // Files and their folders are created with the first launch.
        libc::mkdir(nothing, 0);
        libc::write(-1, null(), 0);
        // Who ends by a signal sends it to itself in the end.
        libc::syscall(libc::SYS_tgkill, libc::getpid(), threads::number(), 0);
        // Of a main thread that launches late, of signals that have a stack, of a stderr that came to be another, and of maps of
        // generated code.
        libc::getrlimit(libc::RLIMIT_STACK, MaybeUninit::<libc::rlimit>::uninit().as_mut_ptr());
        libc::sigaltstack(null(), null_mut());
        libc::isatty(-1);
        libc::geteuid();
        // Where the process's own way of scheduling is none for us.
        libc::syscall(libc::SYS_sched_setscheduler, -1, 0, null::<u8>());
        // As who finds a lock taken does, now and then.
        libc::sched_yield();
        // Our threads make these when they first run, on a busy machine after set-up: no process
        // has the number -1, and no kind of thing a priority is of the number 99.
        libc::prctl(-1);
        libc::sched_getaffinity(-1, 0, null_mut());
        libc::sched_setaffinity(-1, 0, null());
        libc::sched_getscheduler(-1);
        libc::getpriority(99, 0);
        libc::setpriority(99, 0, 0);
        libc::mkdir(nothing, 0);
        libc::write(-1, null(), 0);
        // On other machines it is a form of `fstat`, which set-up makes.
        #[cfg(target_arch = "x86_64")]
        libc::syscall(libc::SYS_stat, nothing, MaybeUninit::<libc::stat>::uninit().as_mut_ptr());
    }
}

/// A thread is sampled once it launches, by the kernel's events or, where it has none for us, by a timer.
fn make_those_of_samples() {
    let (none, nothing) = (-1 as libc::c_long, null::<u8>());
    // SAFETY: without attributes there is no event, and no clock and no timer has the number -1.
    unsafe {
        libc::syscall(libc::SYS_perf_event_open, nothing, none, none, none, none);
        libc::syscall(libc::SYS_timer_create, none, nothing, nothing);
        libc::syscall(libc::SYS_timer_settime, none, none, nothing, nothing);
        libc::syscall(libc::SYS_timer_delete, none);
    }
}
