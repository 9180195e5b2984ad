//! The sampler is a thread that reads stack samples of launching threads from the kernel and unwinds them.
//!
//! ```text
//! kernel -ring per thread-> this thread: walks the copied stacks -ready-> pipeline: contexts, rows
//!        collector: a thread has launched -wishes-> opens a ring for it
//! ```
//!
//! A thread is observed in two ways, each on request: on-CPU by periodic samples, and off-CPU from the moment at which
//! the thread leaves its processor voluntarily until the thread runs again.
//!
//! Samples from the kernel do not interrupt the observed threads; the fallback, timers, interrupts them by signals. The
//! pipeline takes ready samples without waiting for the sampler's thread: that thread asks the loader for the mapped
//! modules, and the loader may block it.

use std::io;
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::capture;
use crate::control::{life, window};
use gpuflame_model::record::{ContextFlags, Frame, Nanos, ThreadId};
use gpuflame_os::cpu_timer::{self, CpuTimer};
use gpuflame_os::perf::{self, Event, Sample, Told};
use gpuflame_os::threads;
use gpuflame_unwind::CopyUnwinder;

use super::ending;
use super::messages::tell;
use super::panic::disable_after_panic;

/// Maximum pause between rounds, used if no thread is sampled, when the sampler's thread only watches for the end of
/// the session.
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
/// Pause between rounds if waits are recorded. The pause is short, because a ring holds 63 waits, and a thread may wait
/// thousands of times per second.
const PAUSE_OF_WAITS: Duration = Duration::from_millis(10);
/// Maximum number of samples that wait for the pipeline. At 1,000 samples per second this is ten seconds.
const MOST_READY: usize = 10_000;
/// Maximum number of threads observed at once. Each thread takes 0.5 MiB of memory for its samples, and 1 MiB for its
/// waits.
const MOST_THREADS: usize = 256;
/// Stack size of the thread, which unwinds the stacks of other threads.
const STACK: usize = 512 << 10;
/// Maximum time for which this module may block a thread that hands over a new thread or takes ready samples.
const LONGEST_HAND: Duration = Duration::from_millis(100);

/// Stack of a thread at some time.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) time: Nanos,
    pub(super) thread: ThreadId,
    pub(super) stands: Stands,
    pub(super) flags: ContextFlags,
    pub(super) frames: Box<[Frame]>,
}

/// Kind of a sample, and the time that it represents in ns.
#[derive(Clone, Copy, Debug)]
pub(super) enum Stands {
    /// The thread was on a processor.
    OnCpu(u32),
    /// The thread waited, starting at the time of the sample.
    Waited(u64),
}

/// Observations requested for threads that launch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    /// Samples per second of CPU time; `None` for no samples.
    pub(super) hertz: Option<u32>,
    /// Whether to sample by timer signals if the kernel refuses samples.
    pub(super) by_timer: bool,
    /// Whether to record where threads wait, and for how long.
    pub(super) waits: bool,
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Sampler {
    wanted: Wanted,
    /// CPU time that a sample represents.
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
    /// Number of samples dropped for lack of room in the kernel's ring or in `ready`.
    dropped: AtomicU64,
    /// Number of samples whose stack has no root.
    cut: AtomicU64,
    threads: AtomicU64,
    /// Number of threads that the kernel did not let us sample.
    refused: AtomicU64,
    /// CPU time of observed threads while a window was open, in ns.
    taken: AtomicU64,
    is_of_user: AtomicBool,
    /// Number of threads that a timer samples by signals.
    by_timer: AtomicU64,
    waits: Waits,
}

/// Counters for waits.
#[derive(Debug, Default)]
struct Waits {
    seen: AtomicU64,
    nanos: AtomicU64,
    dropped: AtomicU64,
    cut: AtomicU64,
    threads: AtomicU64,
    refused: AtomicU64,
}

/// State that only one thread may use at a time.
#[derive(Debug)]
struct Followed {
    unwinder: CopyUnwinder,
    threads: Vec<Following>,
    /// Whether a window was open in the previous round.
    was_open: bool,
    /// Whether a message was printed about a refused sampler, and about refused waits.
    is_told: [bool; 2],
}

#[derive(Debug)]
struct Following {
    thread: ThreadId,
    /// Source of on-CPU samples.
    samples: Option<Source>,
    /// Event that reports when the thread leaves a processor and when the thread returns to a processor. `left` is the
    /// wait that is still in progress.
    leaves: Option<Event>,
    left: Option<Left>,
    /// CPU time of the thread in the previous round.
    taken: Duration,
}

/// Mechanism that samples a thread.
#[derive(Debug)]
enum Source {
    Kernel(Event),
    Timer(CpuTimer),
}

#[derive(Debug)]
struct Left {
    time: u64,
    flags: ContextFlags,
    frames: Box<[Frame]>,
}

impl Sampler {
    /// Starts the sampler. `None` if no observation is wanted, or if the sampler cannot be started, which is printed.
    pub(super) fn begin(wanted: Wanted) -> Option<&'static Self> {
        if wanted.hertz.is_none() && !wanted.waits {
            return None;
        }
        let Some(unwinder) = CopyUnwinder::new() else {
            let setting = if wanted.hertz.is_some() { CPU_SAMPLES } else { OFF_CPU };
            tell(&format!("{setting}: samples need x86-64; continuing without samples"));
            return None;
        };
        let sampler: &'static Self = Box::leak(Box::new(Self::new(wanted, unwinder)));
        let spawned = sampler.spawn();
        if let Err(error) = &spawned {
            tell(&format!("no samples: cannot start a thread ({error}); raise the limit on threads"));
        }
        spawned.is_ok().then_some(sampler)
    }

    fn new(wanted: Wanted, unwinder: CopyUnwinder) -> Self {
        Self {
            wanted,
            period: wanted.hertz.map_or(Duration::ZERO, |hertz| Duration::from_secs(1) / hertz),
            wishes: Mutex::default(),
            asked: Condvar::default(),
            followed: Mutex::new(Followed {
                unwinder,
                threads: Vec::new(),
                was_open: false,
                is_told: [false; 2],
            }),
            ready: Mutex::default(),
            counts: Counts::default(),
        }
    }

    /// CPU time of `periods` sampling periods, in ns.
    fn nanos(&self, periods: u64) -> u32 {
        (self.period.as_nanos() as u64).saturating_mul(periods).try_into().unwrap_or(u32::MAX)
    }

    fn spawn(&'static self) -> io::Result<()> {
        threads::spawn(c"gpuflame-cpu", STACK, move || {
            let run = std::panic::AssertUnwindSafe(|| self.run());
            if std::panic::catch_unwind(run).is_err() {
                disable_after_panic();
            }
        })
    }

    /// Requests that a thread be sampled. Called after its first launch.
    pub(super) fn follow(&self, thread: ThreadId) {
        if let Some(mut wishes) = self.wishes.try_lock_for(LONGEST_HAND) {
            wishes.push(thread);
            self.asked.notify_one();
        }
    }

    /// Returns the samples found since the last call, in order of time for each thread.
    pub(super) fn take_ready(&self) -> Vec<Found> {
        let ready = self.ready.try_lock_for(LONGEST_HAND);
        ready.map(|mut ready| mem::take(&mut *ready)).unwrap_or_default()
    }

    /// Number of dropped samples and number of dropped waits so far.
    pub(super) fn dropped(&self) -> [u64; 2] {
        [&self.counts.dropped, &self.counts.waits.dropped].map(|count| count.load(Ordering::Relaxed))
    }

    /// Reads the rest of the kernel's rings, unless the thread that uses the rings does not release them within
    /// `limit`. A wait that is still in progress ends now.
    pub(super) fn take_the_rest(&self, limit: Duration) {
        if let Some(mut followed) = self.followed.try_lock_for(limit) {
            self.round(&mut followed);
            let now = capture::now();
            let threads = followed.threads.iter_mut();
            let found = threads.filter_map(|one| one.left.take()?.until(now.0, one.thread)).collect();
            self.hand_over(found);
            // No thread reads the timers' samples any more, and the timers would continue to send signals.
            followed.threads.clear();
        }
    }

    /// Returns the ledger lines about samples and waits.
    pub(super) fn lines(&self) -> Vec<String> {
        let samples = self.wanted.hertz.map(|hertz| self.line(hertz));
        samples.into_iter().chain(self.wanted.waits.then(|| self.line_of_waits())).collect()
    }

    fn line_of_waits(&self) -> String {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let waits = &self.counts.waits;
        let refused = match count(&waits.refused) {
            0 => String::new(),
            refused => format!(", {refused} threads were refused"),
        };
        format!(
            "off cpu {} waits of {:.3} s, dropped {}, cut {}, on {} threads{refused}",
            count(&waits.seen),
            count(&waits.nanos) as f64 / 1e9,
            count(&waits.dropped),
            count(&waits.cut),
            count(&waits.threads),
        )
    }

    fn line(&self, hertz: u32) -> String {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (samples, [dropped, _], cut) =
            (count(&self.counts.samples), self.dropped(), count(&self.counts.cut));
        let taken = count(&self.counts.taken) as f64 / 1e9;
        let got = if taken > 0.0 { (samples + dropped) as f64 / taken } else { 0.0 };
        let time = if self.counts.is_of_user.load(Ordering::Relaxed) { "user time" } else { "CPU time" };
        let mut refused = match count(&self.counts.refused) {
            0 => String::new(),
            refused => format!(", {refused} threads were refused"),
        };
        if count(&self.counts.by_timer) > 0 {
            let interrupted = cpu_timer::interrupted();
            refused += &format!(", taken by timer signals, which interrupted {interrupted} calls");
        }
        format!(
            "cpu samples {samples} of {time}, dropped {dropped}, cut {cut}: asked {hertz} Hz, got {got:.1} Hz in \
             {taken:.3} s on {} threads{refused}",
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
                break;
            }
            self.round(&mut followed);
            for thread in new {
                self.open(&mut followed, thread);
            }
            pause = self.pause(&followed);
        }
        // Our timers must stop when the loop ends, for whatever reason it ended.
        self.followed.lock().threads.clear();
    }

    /// Waits for a request or for `pause`. Returns the threads to observe.
    fn wait(&self, pause: Duration) -> Vec<ThreadId> {
        let mut wishes = self.wishes.lock();
        if wishes.is_empty() {
            self.asked.wait_for(&mut wishes, pause);
        }
        mem::take(&mut *wishes)
    }

    /// Half of the minimum time in which a ring or a slot may fill up.
    fn pause(&self, followed: &Followed) -> Duration {
        if followed.threads.iter().any(|one| one.leaves.is_some()) {
            return PAUSE_OF_WAITS;
        }
        let fewest = followed.threads.iter().filter_map(|one| Some(one.samples.as_ref()?.room())).min();
        fewest.map_or(LONGEST_PAUSE, |room| {
            (self.period * (room / 2).max(1) as u32).clamp(SHORTEST_PAUSE, LONGEST_PAUSE)
        })
    }

    /// Starts to observe a thread. If a thread with the same id was observed before, that thread has ended.
    fn open(&self, followed: &mut Followed, thread: ThreadId) {
        followed.threads.retain(|one| one.thread != thread);
        let is_full = followed.threads.len() >= MOST_THREADS;
        let opened = |open: &dyn Fn() -> io::Result<Event>| match is_full {
            false => open(),
            true => Err(io::Error::other("too many threads are sampled")),
        };
        let (mut samples, mut leaves) = (None, None);
        if self.wanted.hertz.is_some() {
            let counts = [&self.counts.threads, &self.counts.refused];
            let opened = opened(&|| Event::open(thread.0 as i32, self.period));
            let opened = self.or_by_timer(opened.map(Source::Kernel), thread, &mut followed.is_told[0]);
            samples = note(opened, counts, CPU_SAMPLES, &mut followed.is_told[0]);
        }
        if self.wanted.waits {
            let counts = [&self.counts.waits.threads, &self.counts.waits.refused];
            let opened = opened(&|| Event::open_leaves(thread.0 as i32));
            leaves = note(opened, counts, OFF_CPU, &mut followed.is_told[1]);
        }
        if let Some(Source::Kernel(event)) = &samples {
            self.counts.is_of_user.fetch_or(event.is_of_user(), Ordering::Relaxed);
        }
        if samples.is_some() || leaves.is_some() {
            let taken = perf::taken(thread.0 as i32).unwrap_or_default();
            followed.threads.push(Following { thread, samples, leaves, left: None, taken });
        }
    }

    /// Falls back to a timer if the settings permit a timer and the kernel denies access.
    fn or_by_timer(
        &self,
        opened: io::Result<Source>,
        thread: ThreadId,
        is_told: &mut bool,
    ) -> io::Result<Source> {
        let Err(error) = &opened else { return opened };
        let may_not = matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES | libc::ENOSYS));
        if !may_not || !self.wanted.by_timer || cpu_timer::is_taken_away() {
            return opened;
        }
        let timer = CpuTimer::open(thread.0 as i32, self.period);
        if let Err(error) = &timer
            && error.raw_os_error() != Some(libc::ESRCH)
            && !mem::replace(is_told, true)
        {
            tell(&format!(
                "{CPU_SAMPLES}: cannot sample with a timer either: {error}; continuing without samples"
            ));
        }
        self.counts.by_timer.fetch_add(u64::from(timer.is_ok()), Ordering::Relaxed);
        timer.map(Source::Timer)
    }

    /// Stops all timers if the program has set its own action for their signal.
    fn let_timers_go(&self, followed: &mut Followed) {
        if self.counts.by_timer.load(Ordering::Relaxed) > 0 && cpu_timer::is_taken_away() {
            let is_timer = |one: &Following| matches!(one.samples, Some(Source::Timer(_)));
            for one in followed.threads.iter_mut().filter(|one| is_timer(one)) {
                one.samples = None;
            }
            if !mem::replace(&mut followed.is_told[0], true) {
                tell(&format!(
                    "{CPU_SAMPLES}: the program has set its own action for the timer's signal; continuing \
                     without samples"
                ));
            }
        }
    }

    /// Reads all rings, and drops threads that have ended.
    fn round(&self, followed: &mut Followed) {
        self.let_timers_go(followed);
        let is_open = window::state().is_open();
        let is_wanted = mem::replace(&mut followed.was_open, is_open) || is_open;
        let Followed { unwinder, threads, .. } = followed;
        if !threads.is_empty() {
            unwinder.check_loaded_objects();
        }
        let mut found = Vec::new();
        threads.retain_mut(|one| {
            let taken = perf::taken(one.thread.0 as i32);
            let periods = self.take(one, unwinder, is_wanted, &mut found);
            // If the thread has ended, its final CPU time is known only from its samples.
            let now = taken.unwrap_or_else(|| one.taken + self.period * periods as u32);
            if is_wanted && one.samples.is_some() {
                let more = now.saturating_sub(one.taken);
                self.counts.taken.fetch_add(more.as_nanos() as u64, Ordering::Relaxed);
            }
            one.taken = now;
            self.take_waits(one, unwinder, is_wanted, &mut found);
            taken.is_some()
        });
        self.hand_over(found);
    }

    /// Reads the samples of a thread. Returns the number of periods that they represent.
    fn take(
        &self,
        one: &mut Following,
        unwinder: &mut CopyUnwinder,
        is_wanted: bool,
        found: &mut Vec<Found>,
    ) -> u64 {
        let Following { thread, samples: Some(source), .. } = one else { return 0 };
        let mut all = 0;
        let mut each = |sample: &Sample<'_>, periods: u64| {
            all += periods;
            if is_wanted {
                let captured = unwinder.walk(&sample.registers, sample.stack);
                let (flags, frames) = (captured.flags, captured.frames.into());
                self.counts.cut.fetch_add(u64::from(captured.is_partial()), Ordering::Relaxed);
                let stands = Stands::OnCpu(self.nanos(periods));
                found.push(Found { time: Nanos(sample.time), thread: *thread, stands, flags, frames });
            }
        };
        let lost = match source {
            Source::Kernel(event) => event.drain(|told| {
                if let Told::Sample(sample) = told {
                    each(&sample, 1);
                }
            }),
            Source::Timer(timer) => timer.drain(each),
        };
        if is_wanted {
            self.counts.dropped.fetch_add(lost, Ordering::Relaxed);
        }
        all
    }

    /// Reads the waits of a thread. A wait is complete once the thread is on a processor again.
    fn take_waits(
        &self,
        one: &mut Following,
        unwinder: &mut CopyUnwinder,
        is_wanted: bool,
        found: &mut Vec<Found>,
    ) {
        let Following { thread, leaves: Some(event), left, .. } = one else { return };
        let lost = event.drain(|told| match told {
            Told::Sample(sample) if is_wanted => {
                let captured = unwinder.walk(&sample.registers, sample.stack);
                let (flags, frames) = (captured.flags, captured.frames.into());
                *left = Some(Left { time: sample.time, flags, frames });
            }
            // After a gap it is unknown which wait ends next.
            Told::Sample(_) | Told::Left { waits: false } | Told::Lost => *left = None,
            Told::Left { waits: true } => {}
            Told::Came { time } => {
                let waited = left.take().and_then(|left| left.until(time, *thread));
                if let Some(waited) = &waited {
                    let is_cut = waited.flags.0 & (ContextFlags::TRUNCATED | ContextFlags::CUT) != 0;
                    self.counts.waits.cut.fetch_add(is_cut.into(), Ordering::Relaxed);
                }
                found.extend(waited);
            }
        });
        if is_wanted {
            self.counts.waits.dropped.fetch_add(lost, Ordering::Relaxed);
        }
    }

    fn hand_over(&self, found: Vec<Found>) {
        let mut ready = self.ready.lock();
        let room = MOST_READY.saturating_sub(ready.len()).min(found.len());
        for (at, one) in found.iter().enumerate() {
            let (kept, dropped, waited) = match one.stands {
                Stands::OnCpu(_) => (&self.counts.samples, &self.counts.dropped, 0),
                Stands::Waited(nanos) => (&self.counts.waits.seen, &self.counts.waits.dropped, nanos),
            };
            if at < room {
                kept.fetch_add(1, Ordering::Relaxed);
                self.counts.waits.nanos.fetch_add(waited, Ordering::Relaxed);
            } else {
                dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
        ready.extend(found.into_iter().take(room));
    }
}

impl Source {
    fn room(&self) -> usize {
        match self {
            Self::Kernel(event) => event.room(),
            Self::Timer(timer) => timer.room(),
        }
    }
}

impl Left {
    /// Returns the wait, which ended at `time`. `None` if the thread only waited for our own work at exit.
    fn until(self, time: u64, thread: ThreadId) -> Option<Found> {
        let Self { time: from, flags, frames } = self;
        let waited = time.checked_sub(from).filter(|waited| *waited > 0)?;
        if ending::had_begun(Nanos(from)) {
            return None;
        }
        Some(Found { time: Nanos(from), thread, stands: Stands::Waited(waited), flags, frames })
    }
}

/// Names of the settings that request samples and waits.
const CPU_SAMPLES: &str = "GPUFLAME_CPU_SAMPLES";
const OFF_CPU: &str = "GPUFLAME_OFF_CPU";

/// Counts an event that was opened or refused, and prints the first refusal.
fn note<T>(
    opened: io::Result<T>,
    [threads, refused]: [&AtomicU64; 2],
    setting: &str,
    is_told: &mut bool,
) -> Option<T> {
    match opened {
        Ok(event) => {
            threads.fetch_add(1, Ordering::Relaxed);
            Some(event)
        }
        // The thread has ended.
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => None,
        Err(error) => {
            refused.fetch_add(1, Ordering::Relaxed);
            if !mem::replace(is_told, true) {
                tell(&refusal(setting, &error));
            }
            None
        }
    }
}

/// Returns a message about missing samples, with a remedy.
fn refusal(setting: &str, error: &io::Error) -> String {
    let level = if setting == OFF_CPU { 1 } else { 2 };
    let errno = error.raw_os_error().map(|errno| format!(", errno {errno}")).unwrap_or_default();
    let remedy = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => format!(
            "; to allow it, set sysctl kernel.perf_event_paranoid={level}; in a container, add CAP_PERFMON \
             or allow perf_event_open in the seccomp profile{}",
            if setting == CPU_SAMPLES { "; or omit `,perf` to sample with timer signals" } else { "" }
        ),
        Some(libc::ENOMEM) => "; raise ulimit -l or sysctl kernel.perf_event_mlock_kb".to_owned(),
        _ => String::new(),
    };
    let why = error.to_string();
    let why = why.split(" (os error").next().unwrap_or_default();
    let what = if setting == OFF_CPU { "waits" } else { "samples" };
    format!("{setting}: perf_event_open: {why}{errno}{remedy}; continuing without {what}")
}
