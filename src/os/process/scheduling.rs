//! Sets the processors, scheduling class and priority of gpuflame's threads. A thread inherits these settings from the
//! thread that creates it, which is the thread that makes the first CUDA call. The creating thread may be bound to one
//! processor, or be in a real-time scheduling class.

use std::mem::{size_of, zeroed};

use libc::{CPU_SETSIZE, PRIO_PROCESS, cpu_set_t, sched_param};

/// Lets the calling thread run on every processor on which at least one of `threads` may run. All `threads` must belong
/// to this process. Also gives the calling thread the default scheduling class and the process's nice value. Settings
/// that the kernel refuses are left unchanged.
pub fn apply_process_scheduling(threads: &[i32]) {
    // SAFETY: all-zero is a valid `cpu_set_t`, the empty set.
    let mut allowed: cpu_set_t = unsafe { zeroed() };
    for &thread in threads {
        // SAFETY: all-zero is a valid `cpu_set_t`, the empty set.
        let mut one: cpu_set_t = unsafe { zeroed() };
        // SAFETY: the call writes at most as many bytes as `one` has.
        if unsafe { libc::sched_getaffinity(thread, size_of::<cpu_set_t>(), &mut one) } == 0 {
            // SAFETY: the processor numbers are less than the size of the sets.
            let added = (0..CPU_SETSIZE as usize).filter(|at| unsafe { libc::CPU_ISSET(*at, &one) });
            // SAFETY: the processor numbers are less than the size of the sets.
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
    // SAFETY: both calls accept any number; 0 means the calling thread, and the process id means the first thread of
    // the process.
    unsafe { libc::setpriority(PRIO_PROCESS, 0, libc::getpriority(PRIO_PROCESS, std::process::id())) };
}

/// Gives the calling thread a higher priority than the other threads on its processor, if the kernel permits that. Call
/// this function only on gpuflame's own threads that use little CPU time.
pub fn run_first() {
    const NICE: i32 = -10;
    // SAFETY: the call accepts any number; 0 means the calling thread.
    unsafe { libc::setpriority(PRIO_PROCESS, 0, NICE) };
}

/// Runs `body` on the given processor. If the process may not use that processor, runs `body` on any processor. Call
/// this function on one of gpuflame's own threads.
pub fn run_on<T>(processor: u32, body: impl FnOnce() -> T) -> T {
    // SAFETY: all-zero is a valid `cpu_set_t`, the empty set.
    let [mut before, mut one]: [cpu_set_t; 2] = unsafe { zeroed() };
    // SAFETY: the call writes at most as many bytes as `before` has.
    let is_known = unsafe { libc::sched_getaffinity(0, size_of::<cpu_set_t>(), &mut before) } == 0;
    if !is_known || processor >= CPU_SETSIZE as u32 {
        return body();
    }
    // SAFETY: the number is below the size of the set, and the call only reads the set.
    unsafe {
        libc::CPU_SET(processor as usize, &mut one);
        libc::sched_setaffinity(0, size_of::<cpu_set_t>(), &one);
    }
    let result = body();
    // SAFETY: the call only reads the set, which the kernel wrote.
    unsafe { libc::sched_setaffinity(0, size_of::<cpu_set_t>(), &before) };
    result
}

/// Whether at least one thread of this process is in a scheduling class whose threads share a processor (any class
/// except the real-time classes).
pub fn shares_its_processor(thread: i32) -> bool {
    // SAFETY: the call has no preconditions.
    let class = unsafe { libc::sched_getscheduler(thread) };
    matches!(class, libc::SCHED_OTHER | libc::SCHED_BATCH | libc::SCHED_IDLE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn processors() -> Vec<usize> {
        // SAFETY: all-zero is a valid `cpu_set_t`, and the call writes at most as many bytes as the set has.
        let allowed = unsafe {
            let mut allowed: cpu_set_t = zeroed();
            assert_eq!(libc::sched_getaffinity(0, size_of::<cpu_set_t>(), &mut allowed), 0);
            allowed
        };
        // SAFETY: the processor numbers are less than the size of the set.
        (0..CPU_SETSIZE as usize).filter(|at| unsafe { libc::CPU_ISSET(*at, &allowed) }).collect()
    }

    #[test]
    fn a_thread_is_bound_to_a_processor_only_while_it_runs_the_body() {
        let before = processors();
        let last = before[before.len() - 1];
        assert_eq!(run_on(last as u32, processors), [last]);
        assert_eq!(processors(), before);
        for not_usable in [CPU_SETSIZE as u32 - 1, CPU_SETSIZE as u32, u32::MAX] {
            assert_eq!(run_on(not_usable, processors), before, "{not_usable}");
        }
    }
}
