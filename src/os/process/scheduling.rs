//! Sets where and when our threads run. A thread inherits the scheduling of its creator, and the thread that makes the
//! first CUDA call may be bound to one processor, or be in a real-time scheduling class.

use std::mem::{size_of, zeroed};

use libc::{CPU_SETSIZE, PRIO_PROCESS, cpu_set_t, sched_param};

/// Sets the calling thread's affinity to the union over `threads`, which are threads of this process, its scheduling
/// class to the default, and its nice value to the process's. Settings that the kernel refuses are left unchanged.
pub fn apply_process_scheduling(threads: &[i32]) {
    // SAFETY: all-zero is a valid `cpu_set_t`, the empty set.
    let mut allowed: cpu_set_t = unsafe { zeroed() };
    for &thread in threads {
        // SAFETY: all-zero is a valid `cpu_set_t`, the empty set.
        let mut one: cpu_set_t = unsafe { zeroed() };
        // SAFETY: the call writes at most the size of `one`.
        if unsafe { libc::sched_getaffinity(thread, size_of::<cpu_set_t>(), &mut one) } == 0 {
            // SAFETY: the numbers are below the size of the sets.
            let added = (0..CPU_SETSIZE as usize).filter(|at| unsafe { libc::CPU_ISSET(*at, &one) });
            // SAFETY: the numbers are below the size of the sets.
            added.for_each(|at| unsafe { libc::CPU_SET(at, &mut allowed) });
        }
    }
    // SAFETY: the calls only read both structures, and the kernel refuses an empty set.
    unsafe {
        libc::sched_setaffinity(0, size_of::<cpu_set_t>(), &allowed);
        if libc::sched_getscheduler(0) != libc::SCHED_OTHER {
            libc::sched_setscheduler(0, libc::SCHED_OTHER, &zeroed::<sched_param>());
        }
    }
    // SAFETY: both calls take any number; 0 means the calling thread, and the process id means the first thread of the
    // process.
    unsafe { libc::setpriority(PRIO_PROCESS, 0, libc::getpriority(PRIO_PROCESS, std::process::id())) };
}

/// Lets the calling thread, which must be ours and use little CPU time, run before the other threads on its processor, if
/// the kernel permits that.
pub fn run_first() {
    const NICE: i32 = -10;
    // SAFETY: the call takes any number; 0 means the calling thread.
    unsafe { libc::setpriority(PRIO_PROCESS, 0, NICE) };
}

/// Restricts the calling thread, which must be ours, to one processor. Refused for a processor that the process may not
/// use, which leaves the affinity unchanged.
pub fn stay_on(processor: u32) {
    if processor < CPU_SETSIZE as u32 {
        // SAFETY: all-zero is a valid `cpu_set_t`, the number is below the size of the set, and the call only reads it.
        unsafe {
            let mut allowed: cpu_set_t = zeroed();
            libc::CPU_SET(processor as usize, &mut allowed);
            libc::sched_setaffinity(0, size_of::<cpu_set_t>(), &allowed);
        }
    }
}

/// Whether a thread of this process is in a scheduling class that shares its processor with other threads.
pub fn shares_its_processor(thread: i32) -> bool {
    // SAFETY: the call has no preconditions.
    let class = unsafe { libc::sched_getscheduler(thread) };
    matches!(class, libc::SCHED_OTHER | libc::SCHED_BATCH | libc::SCHED_IDLE)
}
