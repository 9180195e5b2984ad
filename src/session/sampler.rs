//! The thread that takes samples of launching threads away from the kernel, and finds out where they were.
//!
//! ```text
//! kernel -ring a thread-> this thread: walks the copied stacks -ready-> pipeline: contexts, rows
//!        collector: a thread has launched -wishes-> opens a ring for it
//! ```
//!
//! A thread is followed in two ways, each on request: on processors, by samples, and while it waits, from the moment in
//! which it leaves its processor of its own accord to that in which it has one again.
//!
//! The threads themselves notice nothing. Whoever explains takes what is ready and waits for nobody: this thread may be
//! held up by the loader, which knows what code is where.

use std::io;
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::capture;
use crate::control::{life, window};
use crate::host::cpu_timer::{self, CpuTimer};
use crate::host::perf::{self, Event, Sample, Told};
use crate::host::threads;
use crate::record::{ContextFlags, Frame, Nanos, ThreadId};
use crate::unwind::CopyUnwinder;

use super::ending;
use super::messages::tell;
use super::panic::disable_after_panic;

/// Where nobody launches there is nothing to take: then it is looked this often whether all is over.
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
/// Where threads are followed that may wait thousands of times a second: a ring holds 63 waits.
const PAUSE_OF_WAITS: Duration = Duration::from_millis(10);
/// Samples that may wait for who explains: ten seconds of a thousand a second.
const MOST_READY: usize = 10_000;
/// Threads that are followed at once, each with half a megabyte of memory, and a megabyte where its waits are.
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
    pub(super) stands: Stands,
    pub(super) flags: ContextFlags,
    pub(super) frames: Box<[Frame]>,
}

/// For how many nanoseconds it stands that a thread was found somewhere.
#[derive(Clone, Copy, Debug)]
pub(super) enum Stands {
    /// It was on a processor.
    OnCpu(u32),
    /// It waited from then on.
    Waited(u64),
}

/// What is to be found out of threads that launch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    /// Where they are, so often a second of processor time; `None`: not at all.
    pub(super) hertz: Option<u32>,
    /// Whether that may be done by signals where the kernel takes no samples for us.
    pub(super) by_timer: bool,
    /// Where they wait, and how long.
    pub(super) waits: bool,
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Sampler {
    wanted: Wanted,
    /// How much processor time a sample stands for.
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
    /// Threads that are sampled by a timer and its signals.
    by_timer: AtomicU64,
    waits: Waits,
}

/// Of times in which threads waited.
#[derive(Debug, Default)]
struct Waits {
    seen: AtomicU64,
    nanos: AtomicU64,
    dropped: AtomicU64,
    cut: AtomicU64,
    threads: AtomicU64,
    refused: AtomicU64,
}

/// What only one may use at a time.
#[derive(Debug)]
struct Followed {
    unwinder: CopyUnwinder,
    threads: Vec<Following>,
    /// A window was open when rings were drained before.
    was_open: bool,
    /// Somebody was told why a thread could not be sampled, and why not when it waits.
    is_told: [bool; 2],
}

#[derive(Debug)]
struct Following {
    thread: ThreadId,
    /// On processors.
    samples: Option<Source>,
    /// When it leaves them, and when and where it did so last, if it waits.
    leaves: Option<Event>,
    left: Option<Left>,
    /// What time the thread had taken when it was looked last.
    taken: Duration,
}

/// Who samples a thread.
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
    /// Has a thread look after threads from now on; `None`: nothing is wanted, or it cannot and somebody was told.
    pub(super) fn begin(wanted: Wanted) -> Option<&'static Self> {
        if wanted.hertz.is_none() && !wanted.waits {
            return None;
        }
        let Some(unwinder) = CopyUnwinder::new() else {
            let setting = if wanted.hertz.is_some() { CPU_SAMPLES } else { OFF_CPU };
            tell(&format!("{setting}: copied stacks are walked on x86-64 alone; going on without samples"));
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

    /// What of a thread's processor time is in so many periods of the samples.
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

    /// How many there was no room for so far: samples, and waits.
    pub(super) fn dropped(&self) -> [u64; 2] {
        [&self.counts.dropped, &self.counts.waits.dropped].map(|count| count.load(Ordering::Relaxed))
    }

    /// Takes what the kernel still has, unless whoever has the rings does not give them back within `limit`. Who waits
    /// still has waited until now.
    pub(super) fn take_the_rest(&self, limit: Duration) {
        if let Some(mut followed) = self.followed.try_lock_for(limit) {
            self.round(&mut followed);
            let now = capture::now();
            let threads = followed.threads.iter_mut();
            let found = threads.filter_map(|one| one.left.take()?.until(now.0, one.thread)).collect();
            self.hand_over(found);
            // Nobody takes any more, and a timer's signals would go on.
            followed.threads.clear();
        }
    }

    /// What came of it, as lines for the ledger.
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
            refused += &format!(", by a timer's signals, which ended {interrupted} calls early");
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
        // Whatever ended it: the program goes on without timers.
        self.followed.lock().threads.clear();
    }

    /// Waits until somebody asks, or for `pause`.
    fn wait(&self, pause: Duration) -> Vec<ThreadId> {
        let mut wishes = self.wishes.lock();
        if wishes.is_empty() {
            self.asked.wait_for(&mut wishes, pause);
        }
        mem::take(&mut *wishes)
    }

    /// Half of the time after which a ring, or a slot, may be full.
    fn pause(&self, followed: &Followed) -> Duration {
        if followed.threads.iter().any(|one| one.leaves.is_some()) {
            return PAUSE_OF_WAITS;
        }
        let fewest = followed.threads.iter().filter_map(|one| Some(one.samples.as_ref()?.room())).min();
        fewest.map_or(LONGEST_PAUSE, |room| {
            (self.period * (room / 2).max(1) as u32).clamp(SHORTEST_PAUSE, LONGEST_PAUSE)
        })
    }

    /// Follows a thread from now on. One of the same number that was followed before has ended.
    fn open(&self, followed: &mut Followed, thread: ThreadId) {
        followed.threads.retain(|one| one.thread != thread);
        let is_full = followed.threads.len() >= MOST_THREADS;
        let opened = |open: &dyn Fn() -> io::Result<Event>| match is_full {
            false => open(),
            true => Err(io::Error::other("there are too many threads")),
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

    /// The same by a timer, where that is wanted and the kernel does not let us otherwise.
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
            tell(&format!("{CPU_SAMPLES}: no timer either: {error}; going on without samples"));
        }
        self.counts.by_timer.fetch_add(u64::from(timer.is_ok()), Ordering::Relaxed);
        timer.map(Source::Timer)
    }

    /// Stops all timers, where the program has set an action of its own for their signal.
    fn let_timers_go(&self, followed: &mut Followed) {
        if self.counts.by_timer.load(Ordering::Relaxed) > 0 && cpu_timer::is_taken_away() {
            let is_timer = |one: &Following| matches!(one.samples, Some(Source::Timer(_)));
            for one in followed.threads.iter_mut().filter(|one| is_timer(one)) {
                one.samples = None;
            }
            if !mem::replace(&mut followed.is_told[0], true) {
                tell(&format!(
                    "{CPU_SAMPLES}: the program uses the timer's signal itself; going on without samples"
                ));
            }
        }
    }

    /// Takes what all rings have, and lets threads go that have ended.
    fn round(&self, followed: &mut Followed) {
        self.let_timers_go(followed);
        let is_open = window::state().is_open();
        let is_wanted = mem::replace(&mut followed.was_open, is_open) || is_open;
        let Followed { unwinder, threads, .. } = followed;
        if !threads.is_empty() {
            unwinder.look();
        }
        let mut found = Vec::new();
        threads.retain_mut(|one| {
            let taken = perf::taken(one.thread.0 as i32);
            let periods = self.take(one, unwinder, is_wanted, &mut found);
            // Of a thread that is gone nobody knows what it took last, but by its samples.
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

    /// Takes samples, and says for how many periods they stand.
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

    /// The same for times in which it waited: they are whole when it has a processor again.
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
            // Where something is missing nobody knows which wait it is that ends next.
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
    /// A wait that ended then.
    fn until(self, time: u64, thread: ThreadId) -> Option<Found> {
        let Self { time: from, flags, frames } = self;
        let waited = time.checked_sub(from).filter(|waited| *waited > 0)?;
        if ending::had_begun(Nanos(from)) {
            return None;
        }
        Some(Found { time: Nanos(from), thread, stands: Stands::Waited(waited), flags, frames })
    }
}

/// What the settings are called that ask for samples, and for waits.
const CPU_SAMPLES: &str = "GPUFLAME_CPU_SAMPLES";
const OFF_CPU: &str = "GPUFLAME_OFF_CPU";

/// Counts an event that was opened, or was refused, of which somebody is told once.
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
        // It has ended.
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

/// Why there are no samples, and what to do.
fn refusal(setting: &str, error: &io::Error) -> String {
    let level = if setting == OFF_CPU { 1 } else { 2 };
    let errno = error.raw_os_error().map(|errno| format!(", errno {errno}")).unwrap_or_default();
    let remedy = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => format!(
            "; allow it by sysctl kernel.perf_event_paranoid={level}, in a container by a seccomp profile or CAP_PERFMON{}",
            if setting == CPU_SAMPLES { ", or take a timer's signals instead (without `,perf`)" } else { "" }
        ),
        Some(libc::ENOMEM) => "; raise ulimit -l or sysctl kernel.perf_event_mlock_kb".to_owned(),
        _ => String::new(),
    };
    let why = error.to_string();
    let why = why.split(" (os error").next().unwrap_or_default();
    let what = if setting == OFF_CPU { "waits" } else { "samples" };
    format!("{setting}: perf_event_open: {why}{errno}{remedy}; going on without {what}")
}
