//! Where and when our threads run: a thread inherits what binds its maker, and whoever makes the first CUDA call may be bound
//! to one processor, or in a class of threads that goes before all others.

use std::mem::{size_of, zeroed};

use libc::{CPU_SETSIZE, PRIO_PROCESS, cpu_set_t, sched_param};

/// Has the calling thread run on all processors that any of `threads`, those of this process, may run on, in the default
/// class, and as nice as the process is. What is refused stays as it is.
pub fn as_the_process(threads: &[i32]) {
    // SAFETY: all-zero is the empty set.
    let mut allowed: cpu_set_t = unsafe { zeroed() };
    for &thread in threads {
        // SAFETY: as above.
        let mut one: cpu_set_t = unsafe { zeroed() };
        // SAFETY: so many bytes may be written to it.
        if unsafe { libc::sched_getaffinity(thread, size_of::<cpu_set_t>(), &mut one) } == 0 {
            // SAFETY: numbers below the size of the sets.
            let added = (0..CPU_SETSIZE as usize).filter(|at| unsafe { libc::CPU_ISSET(*at, &one) });
            // SAFETY: as above.
            added.for_each(|at| unsafe { libc::CPU_SET(at, &mut allowed) });
        }
    }
    // SAFETY: it reads the two; an empty set is refused.
    unsafe {
        libc::sched_setaffinity(0, size_of::<cpu_set_t>(), &allowed);
        if libc::sched_getscheduler(0) != libc::SCHED_OTHER {
            libc::sched_setscheduler(0, libc::SCHED_OTHER, &zeroed::<sched_param>());
        }
    }
    // SAFETY: both take any number; 0 is the calling thread, the process's number its first one.
    unsafe { libc::setpriority(PRIO_PROCESS, 0, libc::getpriority(PRIO_PROCESS, std::process::id())) };
}
