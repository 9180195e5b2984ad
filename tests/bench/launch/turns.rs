//! One thread alone and two at once, measured so that only the second thread can make the difference.
//!
//! Two threads, each with a processor and memory of its own, do every job three times: the one, the other, both. A
//! thread beside the other is compared with itself alone. A turn goes through all jobs before any comes again: on
//! a machine whose cores other guests use as well, a core is slower by half for seconds at a time, even at adding
//! up registers, and no job may get all its turns then.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{fs, hint, process, thread};

use crate::log;
use crate::methods::Clock;

/// How often everything is measured; the best counts.
const TURNS: usize = 25;

/// What one job took: the least median of all turns, in nanoseconds, by thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figure {
    alone: [f64; 2],
    beside: [f64; 2],
}

impl Figure {
    /// What it takes one thread.
    pub(crate) fn alone(&self) -> f64 {
        self.alone[0].min(self.alone[1])
    }

    /// What it takes the slower of two threads at once.
    pub(crate) fn at_once(&self) -> f64 {
        self.beside[0].max(self.beside[1])
    }

    /// How many times as long a thread takes beside the other as alone; of the one that suffers more.
    pub(crate) fn slowdown(&self) -> f64 {
        (self.beside[0] / self.alone[0]).max(self.beside[1] / self.alone[1])
    }
}

/// One thread's part of a turn.
pub(crate) struct Slice<'a> {
    shared: &'a Shared,
    threads: usize,
}

/// What both threads know of the slice that they are in.
struct Shared {
    gate: Barrier,
    /// Threads that have come.
    ready: AtomicUsize,
    /// Threads that have measured all they want.
    done: AtomicUsize,
    /// No thread had to leave its processor to others.
    undisturbed: AtomicBool,
}

impl Slice<'_> {
    /// The median of `wanted` times that `one` gives, after `first` that do not count. Goes on with `one` until the
    /// other thread has all of its own, so that all that count are taken beside it.
    pub(crate) fn median(&self, first: usize, wanted: usize, mut one: impl FnMut() -> f64) -> f64 {
        // Sleeping threads wake at different moments: the first waits for the last.
        self.shared.ready.fetch_add(1, Ordering::AcqRel);
        while self.shared.ready.load(Ordering::Acquire) < self.threads {
            hint::spin_loop();
        }
        let (began, used) = (Instant::now(), time_on_processor());
        for _ in 0..first {
            one();
        }
        let mut times: Vec<_> = (0..wanted).map(|_| one()).collect();
        self.shared.done.fetch_add(1, Ordering::AcqRel);
        while self.shared.done.load(Ordering::Acquire) < self.threads {
            one();
        }
        if time_on_processor() - used < began.elapsed() * 3 / 4 {
            self.shared.undisturbed.store(false, Ordering::Release);
        }
        times.sort_by(f64::total_cmp);
        times[wanted / 2]
    }
}

/// Does `run` for each job in turns, with what `new` makes for each thread.
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

/// Ends the process when its thread panics, which has said why by then: the other would wait at the gate for ever.
struct EndWithPanic;

impl Drop for EndWithPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            process::exit(101);
        }
    }
}

/// The least that each job took this thread: alone, and beside the other.
fn one_thread(
    at: usize,
    jobs: usize,
    shared: &Shared,
    mut run: impl FnMut(usize, &Slice<'_>) -> f64,
) -> Vec<[f64; 2]> {
    let mut least = vec![[f64::INFINITY; 2]; jobs];
    let mut counted = vec![[0; 2]; jobs];
    // The first turn is there to warm up.
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

/// Two processors that we may use, of different cores if there are such.
fn two_processors() -> [usize; 2] {
    // SAFETY: all-zero is an empty set, which the call fills.
    let allowed = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::sched_getaffinity(0, size_of_val(&set), &mut set);
        set
    };
    let mut processors = (0..libc::CPU_SETSIZE as usize).filter(|processor| {
        // SAFETY: the number is below the set's size.
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

/// Has the calling thread run on one processor only.
fn stay_on(processor: usize) {
    // SAFETY: an empty set gets one number, which is below its size; the call reads it.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(processor, &mut set);
        assert_eq!(libc::sched_setaffinity(0, size_of_val(&set), &set), 0, "cannot stay on {processor}");
    }
}

/// How long the calling thread has been running, not waiting.
fn time_on_processor() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a place to write a timespec to.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
