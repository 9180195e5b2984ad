//! The thread that takes samples of launching threads away from the kernel, and finds out where they were.
//!
//! ```text
//! kernel -ring a thread-> this thread: walks the copied stacks -ready-> pipeline: contexts, rows
//!        collector: a thread has launched -wishes-> opens a ring for it
//! ```
//!
//! The threads themselves notice nothing. Whoever explains takes what is ready and waits for nobody: this thread may be
//! held up by the loader, which knows what code is where.

use std::io;
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::control::{life, window};
use crate::host::perf::Event;
use crate::host::{signals, threads};
use crate::record::{ContextFlags, Frame, Nanos, ThreadId};
use crate::unwind::CopyUnwinder;

use super::messages::tell;
use super::panic::disable_after_panic;

/// Where nobody launches there is nothing to take: then it is looked this often whether all is over.
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
/// Samples that may wait for who explains: ten seconds of a thousand a second.
const MOST_READY: usize = 10_000;
/// Threads that are followed at once, each with half a megabyte of memory.
const MOST_THREADS: usize = 256;
/// Of the thread's stack: it walks others.
const STACK: usize = 512 << 10;
/// How long somebody may be held up who hands over a thread, or takes what is ready.
const LONGEST_HAND: Duration = Duration::from_millis(100);

/// Where a thread was found.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) time: Nanos,
    pub(super) thread: ThreadId,
    pub(super) flags: ContextFlags,
    pub(super) frames: Box<[Frame]>,
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Sampler {
    /// How often a second of processor time, and how long that is.
    hertz: u32,
    period: Duration,
    wishes: Mutex<Vec<ThreadId>>,
    asked: Condvar,
    followed: Mutex<Followed>,
    ready: Mutex<Vec<Found>>,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Counts {
    samples: AtomicU64,
    /// There was no room for, in the kernel's memory or in ours.
    dropped: AtomicU64,
    /// Their stacks have no root.
    cut: AtomicU64,
    threads: AtomicU64,
    /// Threads that the kernel did not let us sample.
    refused: AtomicU64,
    /// Processor time, in nanoseconds, of threads as long as they were followed.
    taken: AtomicU64,
    is_of_user: AtomicBool,
}

/// What only one may use at a time.
#[derive(Debug)]
struct Followed {
    unwinder: CopyUnwinder,
    threads: Vec<Following>,
    /// A window was open when rings were drained before.
    was_open: bool,
    /// Somebody was told why a thread could not be sampled.
    is_told: bool,
}

#[derive(Debug)]
struct Following {
    thread: ThreadId,
    event: Event,
    /// What time the thread had taken when it was looked last.
    taken: Duration,
}

impl Sampler {
    /// Has a thread sample so often from now on; `None`: it cannot, and somebody was told.
    pub(super) fn begin(hertz: u32) -> Option<&'static Self> {
        let Some(unwinder) = CopyUnwinder::new() else {
            tell("GPUFLAME_CPU_SAMPLES: copied stacks are walked on x86-64 alone; going on without samples");
            return None;
        };
        let sampler: &'static Self = Box::leak(Box::new(Self::new(hertz, unwinder)));
        let spawned = sampler.spawn();
        if let Err(error) = &spawned {
            tell(&format!("no samples: cannot start a thread ({error}); raise the limit on threads"));
        }
        spawned.is_ok().then_some(sampler)
    }

    fn new(hertz: u32, unwinder: CopyUnwinder) -> Self {
        Self {
            hertz,
            period: Duration::from_nanos(1_000_000_000 / u64::from(hertz)),
            wishes: Mutex::default(),
            asked: Condvar::default(),
            followed: Mutex::new(Followed { unwinder, threads: Vec::new(), was_open: false, is_told: false }),
            ready: Mutex::default(),
            counts: Counts::default(),
        }
    }

    fn spawn(&'static self) -> io::Result<()> {
        let thread = std::thread::Builder::new().name("gpuflame-cpu".to_owned()).stack_size(STACK);
        let spawned = signals::without(|| {
            thread.spawn(move || {
                let run = std::panic::AssertUnwindSafe(|| self.run());
                if std::panic::catch_unwind(run).is_err() {
                    disable_after_panic();
                }
            })
        });
        spawned.map(drop)
    }

    /// Has a thread be sampled, which has launched for the first time.
    pub(super) fn follow(&self, thread: ThreadId) {
        if let Some(mut wishes) = self.wishes.try_lock_for(LONGEST_HAND) {
            wishes.push(thread);
            self.asked.notify_one();
        }
    }

    /// What was found since before, of each thread in the order of time.
    pub(super) fn take_ready(&self) -> Vec<Found> {
        let ready = self.ready.try_lock_for(LONGEST_HAND);
        ready.map(|mut ready| mem::take(&mut *ready)).unwrap_or_default()
    }

    /// For how long each sample stands, in nanoseconds.
    pub(super) fn period(&self) -> u32 {
        self.period.as_nanos() as u32
    }

    /// How many there was no room for so far.
    pub(super) fn dropped(&self) -> u64 {
        self.counts.dropped.load(Ordering::Relaxed)
    }

    /// Takes what the kernel still has, unless whoever has the rings does not give them back within `limit`.
    pub(super) fn take_the_rest(&self, limit: Duration) {
        if let Some(mut followed) = self.followed.try_lock_for(limit) {
            self.round(&mut followed);
        }
    }

    /// What came of it, as a line for the ledger.
    pub(super) fn line(&self) -> String {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (samples, dropped, cut) = (count(&self.counts.samples), self.dropped(), count(&self.counts.cut));
        let taken = count(&self.counts.taken) as f64 / 1e9;
        let got = if taken > 0.0 { (samples + dropped) as f64 / taken } else { 0.0 };
        let time = if self.counts.is_of_user.load(Ordering::Relaxed) { "user time" } else { "CPU time" };
        let refused = match count(&self.counts.refused) {
            0 => String::new(),
            refused => format!(", {refused} threads were refused"),
        };
        format!(
            "cpu samples {samples} of {time}, dropped {dropped}, cut {cut}: asked {} Hz, got {got:.1} Hz in {taken:.3} s \
             on {} threads{refused}",
            self.hertz,
            count(&self.counts.threads),
        )
    }

    fn run(&self) {
        threads::note_ours();
        let mut pause = LONGEST_PAUSE;
        while !life::is_over() {
            let new = self.wait(pause);
            let mut followed = self.followed.lock();
            if life::is_over() {
                return;
            }
            self.round(&mut followed);
            for thread in new {
                self.open(&mut followed, thread);
            }
            pause = self.pause(&followed);
        }
    }

    /// Waits until somebody asks, or for `pause`.
    fn wait(&self, pause: Duration) -> Vec<ThreadId> {
        let mut wishes = self.wishes.lock();
        if wishes.is_empty() {
            self.asked.wait_for(&mut wishes, pause);
        }
        mem::take(&mut *wishes)
    }

    /// Half of the time after which a ring may be full.
    fn pause(&self, followed: &Followed) -> Duration {
        let fewest = followed.threads.iter().map(|one| one.event.room()).min();
        fewest.map_or(LONGEST_PAUSE, |room| {
            (self.period * (room / 2).max(1) as u32).clamp(SHORTEST_PAUSE, LONGEST_PAUSE)
        })
    }

    /// Follows a thread from now on. One of the same number that was followed before has ended.
    fn open(&self, followed: &mut Followed, thread: ThreadId) {
        followed.threads.retain(|one| one.thread != thread);
        let opened = match followed.threads.len() < MOST_THREADS {
            true => Event::open(thread.0 as i32, self.period),
            false => Err(io::Error::other("there are too many threads")),
        };
        match opened {
            Ok(event) => {
                self.counts.threads.fetch_add(1, Ordering::Relaxed);
                self.counts.is_of_user.fetch_or(event.is_of_user(), Ordering::Relaxed);
                let taken = event.taken().unwrap_or_default();
                followed.threads.push(Following { thread, event, taken });
            }
            // It has ended.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
            Err(error) => {
                self.counts.refused.fetch_add(1, Ordering::Relaxed);
                if !mem::replace(&mut followed.is_told, true) {
                    tell(&refusal(&error));
                }
            }
        }
    }

    /// Takes what all rings have, and lets threads go that have ended.
    fn round(&self, followed: &mut Followed) {
        let is_open = window::state().is_open();
        let is_wanted = mem::replace(&mut followed.was_open, is_open) || is_open;
        let Followed { unwinder, threads, .. } = followed;
        if !threads.is_empty() {
            unwinder.look();
        }
        let mut found = Vec::new();
        threads.retain_mut(|one| {
            let (taken, before) = (one.event.taken(), found.len());
            self.take(one, unwinder, is_wanted, &mut found);
            // Of a thread that is gone nobody knows what it took last, but by its samples.
            let now = taken.unwrap_or_else(|| one.taken + self.period * (found.len() - before) as u32);
            if is_wanted {
                let more = now.saturating_sub(one.taken);
                self.counts.taken.fetch_add(more.as_nanos() as u64, Ordering::Relaxed);
            }
            one.taken = now;
            taken.is_some()
        });
        self.hand_over(found);
    }

    fn take(
        &self,
        one: &mut Following,
        unwinder: &mut CopyUnwinder,
        is_wanted: bool,
        found: &mut Vec<Found>,
    ) {
        let thread = one.thread;
        let lost = one.event.drain(|sample| {
            if is_wanted {
                let captured = unwinder.walk(&sample.registers, sample.stack);
                let (flags, frames) = (captured.flags, captured.frames.into());
                self.counts.cut.fetch_add(u64::from(captured.is_partial()), Ordering::Relaxed);
                found.push(Found { time: Nanos(sample.time), thread, flags, frames });
            }
        });
        if is_wanted {
            self.counts.dropped.fetch_add(lost, Ordering::Relaxed);
        }
    }

    fn hand_over(&self, found: Vec<Found>) {
        let mut ready = self.ready.lock();
        let room = MOST_READY.saturating_sub(ready.len()).min(found.len());
        self.counts.samples.fetch_add(room as u64, Ordering::Relaxed);
        self.counts.dropped.fetch_add((found.len() - room) as u64, Ordering::Relaxed);
        ready.extend(found.into_iter().take(room));
    }
}

/// Why there are no samples, and what to do.
fn refusal(error: &io::Error) -> String {
    let errno = error.raw_os_error().map(|errno| format!(", errno {errno}")).unwrap_or_default();
    let remedy = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            "; allow it by sysctl kernel.perf_event_paranoid=2, in a container by a seccomp profile or CAP_PERFMON"
        }
        Some(libc::ENOMEM) => "; raise ulimit -l or sysctl kernel.perf_event_mlock_kb",
        _ => "",
    };
    let why = error.to_string();
    let why = why.split(" (os error").next().unwrap_or_default();
    format!("GPUFLAME_CPU_SAMPLES: perf_event_open: {why}{errno}{remedy}; going on without samples")
}
