//! Compares the time of one thread alone with the time of two threads that run at the same time. The two times differ
//! only because of the second thread, because all other conditions are the same.
//!
//! Two threads, each with its own processor and memory, do every job three times: the first thread alone, the second
//! thread alone, and both at the same time. For each thread, its time while the other thread runs is compared with its
//! time alone. All jobs run once per turn, and only then does the next turn start. Therefore a slow phase of the
//! machine cannot cover all turns of one job. The machine has slow phases because it may share its cores with other
//! guests of the same host. A guest of the same host can halve the speed of a core for seconds, even for code that only
//! adds registers.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{fs, hint, process, thread};

use crate::log;
use crate::methods::Clock;

/// Number of turns, in each of which every job is measured. For each job, only the best of its times counts.
const TURNS: usize = 25;

/// Result of a job: for each of the two threads, the smallest of the medians of all turns, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figure {
    alone: [f64; 2],
    beside: [f64; 2],
}

impl Figure {
    /// Returns the time in ns that a thread takes when it runs alone. The time is that of the faster of the two
    /// threads.
    pub(crate) fn alone(&self) -> f64 {
        self.alone[0].min(self.alone[1])
    }

    /// Returns the time in ns that the slower thread takes while both threads run.
    pub(crate) fn at_once(&self) -> f64 {
        self.beside[0].max(self.beside[1])
    }

    /// Returns the ratio between a thread's time while the other thread runs and the thread's time alone. The ratio is
    /// the larger one of the two threads' ratios.
    pub(crate) fn slowdown(&self) -> f64 {
        (self.beside[0] / self.alone[0]).max(self.beside[1] / self.alone[1])
    }
}

/// The part of a turn that one thread measures.
pub(crate) struct Slice<'a> {
    shared: &'a Shared,
    threads: usize,
}

/// State of a slice that the two threads share.
struct Shared {
    gate: Barrier,
    /// Number of threads that have arrived at the start of the slice.
    ready: AtomicUsize,
    /// Number of threads that have finished all their measurements.
    done: AtomicUsize,
    /// Whether all threads ran without being disturbed. False if a thread ran for less than three quarters of its
    /// measurement, because it was preempted.
    undisturbed: AtomicBool,
}

impl Slice<'_> {
    /// Calls `one` `first + wanted` times. The results are times; the function returns the median of the last `wanted`
    /// results. Before the function returns, it calls `one` until the other thread has finished its measurements.
    /// Therefore each thread runs during all measurements of the other thread.
    pub(crate) fn median(&self, first: usize, wanted: usize, mut one: impl FnMut() -> f64) -> f64 {
        // Threads that sleep wake up at different times. Therefore each thread spins here until all threads have
        // arrived.
        self.shared.ready.fetch_add(1, Ordering::AcqRel);
        while self.shared.ready.load(Ordering::Acquire) < self.threads {
            hint::spin_loop();
        }
        let (began, used) = (Instant::now(), time_on_processor());
        // The code has only one call site for `one`, which is used for warm-up, measurement and waiting. From a second
        // call site, the stack would be different and not cached.
        let mut times = Vec::with_capacity(wanted);
        for turn in 0.. {
            if turn == first + wanted {
                self.shared.done.fetch_add(1, Ordering::AcqRel);
            }
            if turn >= first + wanted && self.shared.done.load(Ordering::Acquire) >= self.threads {
                break;
            }
            let time = one();
            if turn >= first && turn < first + wanted {
                times.push(time);
            }
        }
        if time_on_processor() - used < began.elapsed() * 3 / 4 {
            self.shared.undisturbed.store(false, Ordering::Release);
        }
        times.sort_by(f64::total_cmp);
        times[wanted / 2]
    }
}

/// Measures all jobs, one turn after the other. Each thread gets its own state from `new`.
pub(crate) fn measure<S>(
    jobs: usize,
    new: impl Fn() -> S + Sync,
    run: impl Fn(&mut S, usize, &Slice<'_>) -> f64 + Sync,
) -> Vec<Figure> {
    let shared = Shared {
        gate: Barrier::new(2),
        ready: AtomicUsize::new(0),
        done: AtomicUsize::new(0),
        undisturbed: AtomicBool::new(true),
    };
    let processors = two_processors();
    let [first, second] = thread::scope(|scope| {
        let (shared, new, run) = (&shared, &new, &run);
        let threads = [0, 1].map(|at| {
            scope.spawn(move || {
                let _end = EndWithPanic;
                stay_on(processors[at]);
                let mut state = new();
                one_thread(at, jobs, shared, |job, slice| run(&mut state, job, slice))
            })
        });
        threads.map(|thread| thread.join().expect("a panic ends the process"))
    });
    let figure = |(first, second): ([f64; 2], [f64; 2])| Figure {
        alone: [first[0], second[0]],
        beside: [first[1], second[1]],
    };
    first.into_iter().zip(second).map(figure).collect()
}

/// Ends the process if a measuring thread panics. Before the process ends, the panic message is printed. If the process
/// did not end, the remaining thread would wait at the gate forever.
struct EndWithPanic;

impl Drop for EndWithPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            process::exit(101);
        }
    }
}

/// Returns two minimum times for each job on this thread: alone, and while the other thread runs.
fn one_thread(
    at: usize,
    jobs: usize,
    shared: &Shared,
    mut run: impl FnMut(usize, &Slice<'_>) -> f64,
) -> Vec<[f64; 2]> {
    let mut least = vec![[f64::INFINITY; 2]; jobs];
    let mut counted = vec![[0; 2]; jobs];
    // The first turn only warms up caches; its times do not count.
    for turn in 0..=TURNS {
        for job in 0..jobs {
            for who in [&[0][..], &[1], &[0, 1]] {
                shared.gate.wait();
                let slice = Slice { shared, threads: who.len() };
                let time = who.contains(&at).then(|| {
                    Clock::calibrate_again();
                    run(job, &slice)
                });
                shared.gate.wait();
                let counts = turn > 0 && shared.undisturbed.load(Ordering::Acquire);
                if let Some(time) = time.filter(|_| counts) {
                    let beside = who.len() - 1;
                    least[job][beside] = least[job][beside].min(time);
                    counted[job][beside] += 1;
                }
                if shared.gate.wait().is_leader() {
                    log::drain();
                    shared.ready.store(0, Ordering::Release);
                    shared.done.store(0, Ordering::Release);
                    shared.undisturbed.store(true, Ordering::Release);
                }
            }
        }
    }
    let fewest = counted.iter().flatten().min();
    assert!(
        fewest > Some(&(TURNS / 4)),
        "other programs use the processors: {fewest:?} of {TURNS} turns count"
    );
    least
}

/// Returns two processors that this process may use, on different cores if possible.
fn two_processors() -> [usize; 2] {
    // SAFETY: the all-zero value is an empty set, which the call fills.
    let allowed = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::sched_getaffinity(0, size_of_val(&set), &mut set);
        set
    };
    let mut processors = (0..libc::CPU_SETSIZE as usize).filter(|processor| {
        // SAFETY: the processor's number is below the size of the set.
        unsafe { libc::CPU_ISSET(*processor, &allowed) }
    });
    let first = processors.next().expect("this runs on some processor");
    let rest: Vec<_> = processors.collect();
    let core = |processor: usize| {
        let file = format!("/sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list");
        fs::read_to_string(file).unwrap_or_default()
    };
    let on_another_core = rest.iter().find(|processor| core(**processor) != core(first));
    let second = on_another_core.or(rest.first()).expect("two threads at once need two processors");
    [first, *second]
}

/// Pins the calling thread to one processor.
fn stay_on(processor: usize) {
    // SAFETY: the processor's number is below the size of the set, and the call only reads the set.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(processor, &mut set);
        assert_eq!(libc::sched_setaffinity(0, size_of_val(&set), &set), 0, "cannot stay on {processor}");
    }
}

/// Returns the CPU time of the calling thread, which excludes waiting.
fn time_on_processor() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: clock_gettime may write to `time`.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
