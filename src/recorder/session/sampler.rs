//! The sampler, a thread that reads stack samples of launching threads from the kernel and unwinds the stacks.
//!
//! ```text
//! kernel -ring per thread-> this thread: walks the copied stacks -ready-> pipeline: contexts, rows
//!        collector: a thread has launched -requests-> opens a ring for it
//! ```
//!
//! The settings select whether on-CPU time, off-CPU time or both are observed. On-CPU time is observed by taking
//! samples periodically. Off-CPU time is the time from the moment at which a thread voluntarily leaves its processor
//! until it runs again.
//!
//! The kernel takes samples without interrupting the observed threads. If the kernel refuses to take samples, timers
//! interrupt the observed threads by signals instead. The pipeline takes finished samples without waiting for the
//! sampler's thread. The sampler's thread asks the loader which modules are mapped, and the loader may block it.

use std::io;
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::capture;
use crate::control::{lifecycle, window};
use gpuflame_model::record::{ContextFlags, Frame, Nanos, ThreadId};
use gpuflame_os::cpu_timer::{self, CpuTimer};
use gpuflame_os::perf::{self, PerfEvent, PerfRecord, REGISTERS, ThreadSample};
use gpuflame_os::{scheduling, threads, wake};

use super::gil_waits::GilWaits;
use super::sampled_stacks::{PythonCounts, ReadStack, StackReader, waits_for_gil};
use super::sampler_budget::Budget;
use crate::session::process::messages::print_from_app;
use crate::session::process::panic::disable_after_panic;
use crate::session::process::shutdown;

/// Maximum pause between two rounds of the sampler. A round reads the rings of all threads. The maximum applies while
/// no thread is sampled, because the sampler's thread then only watches for the end of the session.
const MAX_PAUSE: Duration = Duration::from_millis(100);
const MIN_PAUSE: Duration = Duration::from_millis(1);
/// Pause between two rounds of the sampler if waits (off-CPU times) are recorded. This pause is short because a thread
/// may wait thousands of times per second, and a thread's ring holds only 63 waits.
const PAUSE_WITH_WAITS: Duration = Duration::from_millis(10);
/// Time budget for the rounds of the sampler. `ROUND_NS` is the minimum average time between rounds. `MAX_BURST_NS` is
/// the maximum amount of unused time that can be saved up for rounds in quick succession. `PAUSE_OVER_BUDGET_MS` is the
/// pause while the budget is exceeded. A budget is needed because a thread may wait thousands of times per second. In
/// programs with Python, each wait of a thread wakes the sampler.
const ROUND_NS: u64 = 500_000;
const MAX_BURST_NS: u64 = 40 * ROUND_NS;
const PAUSE_OVER_BUDGET_MS: i32 = 5;
/// Maximum number of finished samples that wait for the pipeline. At 1,000 samples per second, this number of samples
/// covers ten seconds.
const MAX_READY_SAMPLES: usize = 10_000;
/// Maximum number of threads that are observed at the same time. The samples of each observed thread take 0.5 MiB of
/// memory, and its waits take 1 MiB.
const MAX_OBSERVED_THREADS: usize = 256;
/// Maximum number of threads that are sampled even though they launch no GPU work. The samples of each of these threads
/// take 64 KiB of memory.
const MAX_OTHERS: usize = 32;
/// Minimum duration in ns of a wait for which Python frames are still read after the wait has ended.
const MIN_READ_WAIT_NS: u64 = 1_000_000;
/// Stack size in bytes of the sampler's thread, which unwinds the stacks of other threads.
const STACK_BYTES: usize = 512 << 10;
/// Maximum time for which the sampler may block another thread that requests sampling of a new thread, or that takes
/// finished samples.
const HAND_OVER_TIMEOUT: Duration = Duration::from_millis(100);

/// Stack of a sampled thread, with the time at which the sample was taken.
#[derive(Debug)]
pub(super) struct SampledStack {
    pub(super) time: Nanos,
    pub(super) thread: ThreadId,
    pub(super) kind: SampleKind,
    pub(super) flags: ContextFlags,
    pub(super) frames: Box<[Frame]>,
    /// Whether the thread was sampled because a launching thread was waiting for Python's global interpreter lock
    /// (GIL), and for no other reason.
    is_other: bool,
}

/// Kind of a sample, and the time in ns that the sample represents.
#[derive(Clone, Copy, Debug)]
pub(super) enum SampleKind {
    /// The thread was on a processor.
    OnCpu { ns: u32 },
    /// The thread began to wait at the time of the sample.
    OffCpu { ns: u64 },
}

/// Settings that control how threads that launch GPU work are observed.
#[derive(Clone, Copy, Debug)]
pub(super) struct SamplerOptions {
    /// Number of samples per second of CPU time; `None` if on-CPU time is not sampled.
    pub(super) hertz: Option<u32>,
    /// Whether to sample with timer signals if the kernel refuses to take samples.
    pub(super) by_timer: bool,
    /// Whether to record where and for how long threads wait.
    pub(super) waits: bool,
}

/// State that the sampler's thread shares with other threads. The documentation of this module describes the sampler.
#[derive(Debug)]
pub(super) struct Sampler {
    options: SamplerOptions,
    /// CPU time that one sample represents.
    period: Duration,
    requests: Mutex<Vec<ThreadId>>,
    /// Kernel thread id of the sampler's thread; 0 while it is not running.
    own_thread: AtomicI32,
    observed: Mutex<ObservedThreads>,
    ready: Mutex<Vec<SampledStack>>,
    counts: SampleCounts,
}

#[derive(Debug, Default)]
struct SampleCounts {
    samples: AtomicU64,
    /// Number of samples that were dropped because the kernel's ring or `ready` was full.
    dropped: AtomicU64,
    /// Number of samples whose stack could not be unwound to its root.
    cut: AtomicU64,
    threads: AtomicU64,
    /// Number of threads that the kernel has not allowed gpuflame to sample.
    refused: AtomicU64,
    /// Total CPU time in ns that the observed threads have used while a window was open.
    cpu_time: AtomicU64,
    is_user_time: AtomicBool,
    /// Number of threads that are sampled with timer signals.
    by_timer: AtomicU64,
    waits: WaitCounts,
    python: PythonCounts,
    others: OtherCounts,
}

/// Counters for sampled threads that do not launch GPU work.
#[derive(Debug, Default)]
struct OtherCounts {
    samples: AtomicU64,
    dropped: AtomicU64,
    /// Maximum number of threads that were refused at the same time, either by the kernel or because too many threads
    /// were sampled already.
    not_sampled: AtomicU64,
}

/// Counters for waits (off-CPU times).
#[derive(Debug, Default)]
struct WaitCounts {
    count: AtomicU64,
    nanos: AtomicU64,
    dropped: AtomicU64,
    cut: AtomicU64,
    threads: AtomicU64,
    refused: AtomicU64,
}

/// State of all observed threads. Only one thread may use this state at a time.
#[derive(Debug)]
struct ObservedThreads {
    stacks: StackReader,
    threads: Vec<ObservedThread>,
    gil_waits: GilWaits,
    /// Whether a window was open during the previous round.
    was_open: bool,
    /// Whether a message about refused samples (first element) and about refused waits (second element) was already
    /// printed.
    is_refusal_printed: [bool; 2],
}

#[derive(Debug)]
struct ObservedThread {
    thread: ThreadId,
    /// Source of the thread's on-CPU samples.
    samples: Option<SampleSource>,
    /// Perf event that reports when the thread leaves a processor and when the thread runs on a processor again.
    /// `pending_wait` is the wait that is in progress.
    switches: Option<PerfEvent>,
    left: LeftProcessor,
    pending_wait: Option<PendingWait>,
    /// CPU time that the thread had used at the time of the previous round.
    cpu_time: Duration,
    /// Whether the thread launches no GPU work and is observed only because a launching thread waited for the GIL.
    is_other: bool,
}

/// Sample that was taken when a thread left its processor.
#[derive(Debug, Default)]
struct LeftProcessor {
    time: u64,
    registers: [u64; REGISTERS],
    stack: Vec<u8>,
    /// Whether `stack` contains a sample. `is_blocked` states whether it is known that the thread waits.
    is_sampled: bool,
    is_blocked: bool,
}

/// Mechanism with which a thread is sampled.
#[derive(Debug)]
enum SampleSource {
    Kernel(PerfEvent),
    Timer(CpuTimer),
}

#[derive(Debug)]
struct PendingWait {
    time: u64,
    flags: ContextFlags,
    frames: Box<[Frame]>,
}

impl Sampler {
    /// Starts the sampler. Returns `None` if the settings do not ask to observe threads. If the sampler cannot be
    /// started, prints a message and returns `None`.
    pub(super) fn start(options: SamplerOptions) -> Option<&'static Self> {
        if options.hertz.is_none() && !options.waits {
            return None;
        }
        let Some(stacks) = StackReader::new() else {
            let setting = if options.hertz.is_some() { CPU_SAMPLES } else { OFF_CPU };
            print_from_app(&format!("{setting}: samples need x86-64; continuing without samples"));
            return None;
        };
        let sampler: &'static Self = Box::leak(Box::new(Self::new(options, stacks)));
        let spawned = sampler.spawn();
        if let Err(error) = &spawned {
            print_from_app(&format!(
                "no samples: cannot start a thread ({error}); raise the limit on threads"
            ));
        }
        spawned.is_ok().then_some(sampler)
    }

    fn new(options: SamplerOptions, stacks: StackReader) -> Self {
        Self {
            options,
            period: options.hertz.map_or(Duration::ZERO, |hertz| Duration::from_secs(1) / hertz),
            requests: Mutex::default(),
            own_thread: AtomicI32::new(0),
            observed: Mutex::new(ObservedThreads {
                stacks,
                threads: Vec::new(),
                gil_waits: GilWaits::default(),
                was_open: false,
                is_refusal_printed: [false; 2],
            }),
            ready: Mutex::default(),
            counts: SampleCounts::default(),
        }
    }

    /// Returns the CPU time in ns to which `periods` sampling periods correspond.
    fn nanos(&self, periods: u64) -> u32 {
        (self.period.as_nanos() as u64).saturating_mul(periods).try_into().unwrap_or(u32::MAX)
    }

    fn spawn(&'static self) -> io::Result<()> {
        threads::spawn(c"gpuflame-cpu", STACK_BYTES, move || {
            let run = std::panic::AssertUnwindSafe(|| self.run());
            if std::panic::catch_unwind(run).is_err() {
                disable_after_panic();
            }
            // Even after a panic, gpuflame's timers must stop, and no thread may wake the sampler's thread any more.
            self.own_thread.store(0, Ordering::Release);
            self.observed.lock().threads.clear();
        })
    }

    /// Requests that a thread be sampled. This function is called after the thread's first launch.
    pub(super) fn request(&self, thread: ThreadId) {
        if let Some(mut requests) = self.requests.try_lock_for(HAND_OVER_TIMEOUT) {
            requests.push(thread);
        }
        let own = self.own_thread.load(Ordering::Acquire);
        if own != 0 {
            wake::wake(std::process::id() as i32, own);
        }
    }

    /// Returns the samples that were finished since the last call. The samples of each thread are ordered by time.
    pub(super) fn drain_ready(&self) -> Vec<SampledStack> {
        let ready = self.ready.try_lock_for(HAND_OVER_TIMEOUT);
        ready.map(|mut ready| mem::take(&mut *ready)).unwrap_or_default()
    }

    /// Returns how many samples and how many waits were dropped so far.
    pub(super) fn dropped(&self) -> [u64; 2] {
        [&self.counts.dropped, &self.counts.waits.dropped].map(|count| count.load(Ordering::Relaxed))
    }

    /// Reads the remaining samples from the kernel's rings, unless another thread uses the rings for longer than
    /// `limit`. A wait that is still in progress is recorded as if it ended at the time of this call.
    pub(super) fn drain_remaining(&self, limit: Duration) {
        if let Some(mut observed) = self.observed.try_lock_for(limit) {
            self.read_all(&mut observed);
            let now = capture::now();
            let threads = observed.threads.iter_mut();
            let stacks =
                threads.filter_map(|one| one.pending_wait.take()?.end_at_time(now.0, one.thread)).collect();
            self.hand_over(stacks);
            // The timers must be stopped, because they would continue to send signals although no thread reads their
            // samples any more.
            observed.threads.clear();
        }
    }

    /// Returns the ledger lines about samples and waits.
    pub(super) fn ledger_lines(&self) -> Vec<String> {
        let samples = self.options.hertz.map(|hertz| self.samples_line(hertz));
        let waits = self.options.waits.then(|| self.waits_line());
        samples.into_iter().chain(waits).chain(self.python_line()).collect()
    }

    /// Returns the ledger's line about Python frames, which is also in the recording. Returns `None` if no sample was
    /// in Python code.
    pub(super) fn python_line(&self) -> Option<String> {
        self.counts.python.line()
    }

    fn waits_line(&self) -> String {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let waits = &self.counts.waits;
        let refused = match count(&waits.refused) {
            0 => String::new(),
            refused => format!(", {refused} threads were refused"),
        };
        format!(
            "off cpu {} waits of {:.3} s, dropped {}, cut {}, on {} threads{refused}",
            count(&waits.count),
            count(&waits.nanos) as f64 / 1e9,
            count(&waits.dropped),
            count(&waits.cut),
            count(&waits.threads),
        )
    }

    fn samples_line(&self, hertz: u32) -> String {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (samples, [dropped, _], cut) =
            (count(&self.counts.samples), self.dropped(), count(&self.counts.cut));
        let taken = count(&self.counts.cpu_time) as f64 / 1e9;
        let got = if taken > 0.0 { (samples + dropped) as f64 / taken } else { 0.0 };
        let time = if self.counts.is_user_time.load(Ordering::Relaxed) { "user time" } else { "CPU time" };
        let mut refused = match count(&self.counts.refused) {
            0 => String::new(),
            refused => format!(", {refused} threads were refused"),
        };
        if count(&self.counts.by_timer) > 0 {
            let interrupted = cpu_timer::interrupted_calls();
            refused += &format!(", taken by timer signals, which interrupted {interrupted} calls");
        }
        let others = &self.counts.others;
        let others = match [&others.samples, &others.dropped, &others.not_sampled].map(count) {
            [0, 0, 0] => String::new(),
            [others, dropped, not_sampled] => format!(
                ", and {others} of other threads while a launching thread waited for the GIL (dropped {dropped}, \
                 threads not sampled {not_sampled})"
            ),
        };
        format!(
            "cpu samples {samples} of {time}, dropped {dropped}, cut {cut}: asked {hertz} Hz, got {got:.1} Hz in \
             {taken:.3} s on {} threads{refused}{others}",
            count(&self.counts.threads),
        )
    }

    fn run(&self) {
        threads::note_ours();
        self.own_thread.store(threads::current_id(), Ordering::Release);
        let (mut pause, mut processor, mut rounds) = (MAX_PAUSE, None, Budget::new(MAX_BURST_NS));
        while !lifecycle::is_over() {
            let new = self.wait(pause, processor);
            let now = capture::now().0;
            rounds.pay(now, ROUND_NS);
            if rounds.is_overdrawn(now) {
                wake::sleep(PAUSE_OVER_BUDGET_MS);
            }
            let mut observed = self.observed.lock();
            if lifecycle::is_over() {
                break;
            }
            self.read_all(&mut observed);
            for thread in self.observed_without_python(&mut observed).into_iter().chain(new) {
                self.observe(&mut observed, thread);
            }
            self.observe_others(&mut observed);
            (pause, processor) = (self.pause(&observed), observed.stacks.processor);
        }
    }

    /// Waits until a request to sample a thread arrives, but at most for `pause`. If `processor` is given, the calling
    /// thread sleeps on that processor. Returns the threads whose observation was requested.
    fn wait(&self, pause: Duration, processor: Option<u32>) -> Vec<ThreadId> {
        // If a thread makes a request after this check, it wakes this thread up, so the wait ends immediately.
        let is_idle = self.requests.lock().is_empty();
        match processor {
            _ if !is_idle => false,
            Some(processor) => scheduling::run_on(processor, || wake::wait(pause)),
            None => wake::wait(pause),
        };
        mem::take(&mut *self.requests.lock())
    }

    /// Returns the pause until the next round. The pause is half of the shortest time in which a thread's ring or the
    /// sample slots of a timer can fill up.
    fn pause(&self, observed: &ObservedThreads) -> Duration {
        if observed.threads.iter().any(|one| one.switches.is_some()) {
            return PAUSE_WITH_WAITS;
        }
        let min_room = observed.threads.iter().filter_map(|one| Some(one.samples.as_ref()?.capacity())).min();
        min_room
            .map_or(MAX_PAUSE, |room| (self.period * (room / 2).max(1) as u32).clamp(MIN_PAUSE, MAX_PAUSE))
    }

    /// Returns the threads whose observation must be restarted because a Python interpreter was loaded. After the
    /// restart, each sample of these threads wakes the sampler's thread.
    fn observed_without_python(&self, observed: &mut ObservedThreads) -> Vec<ThreadId> {
        if observed.threads.is_empty() || observed.stacks.has_python() || !observed.stacks.reads_python() {
            return Vec::new();
        }
        for one in &observed.threads {
            // These threads are counted again when their observation restarts.
            self.counts.threads.fetch_sub(one.samples.is_some().into(), Ordering::Relaxed);
            self.counts.waits.threads.fetch_sub(one.switches.is_some().into(), Ordering::Relaxed);
        }
        observed.threads.iter().map(|one| one.thread).collect()
    }

    /// Starts to observe a thread that launches GPU work. If the table already contains a launching thread with the
    /// same id, the earlier thread must have ended, so it is dropped. Threads that launch no GPU work are also dropped,
    /// to make room. The next listing of Python threads will find the dropped threads again.
    fn observe(&self, observed: &mut ObservedThreads, thread: ThreadId) {
        observed.threads.retain(|one| one.thread != thread && !one.is_other);
        // In a program without Python, samples need not wake the sampler's thread, which saves time.
        let wakes = if observed.stacks.reads_python() { self.own_thread.load(Ordering::Relaxed) } else { 0 };
        let is_full = observed.threads.len() >= MAX_OBSERVED_THREADS;
        let opened = |open: &dyn Fn() -> io::Result<PerfEvent>| match is_full {
            false => open(),
            true => Err(io::Error::other("too many threads are sampled")),
        };
        let (mut samples, mut switches) = (None, None);
        if self.options.hertz.is_some() {
            let counts = [&self.counts.threads, &self.counts.refused];
            let opened = opened(&|| PerfEvent::open(thread.0 as i32, self.period, wakes));
            let opened = self.fall_back_to_timer(
                opened.map(SampleSource::Kernel),
                (thread, wakes),
                &mut observed.is_refusal_printed[0],
            );
            samples = note_opened(opened, counts, CPU_SAMPLES, &mut observed.is_refusal_printed[0]);
        }
        if self.options.waits {
            let counts = [&self.counts.waits.threads, &self.counts.waits.refused];
            let opened = opened(&|| PerfEvent::open_switches(thread.0 as i32, wakes));
            switches = note_opened(opened, counts, OFF_CPU, &mut observed.is_refusal_printed[1]);
        }
        if let Some(SampleSource::Kernel(event)) = &samples {
            self.counts.is_user_time.fetch_or(event.is_user_only(), Ordering::Relaxed);
        }
        if samples.is_some() || switches.is_some() {
            observed.threads.push(ObservedThread::new(thread, samples, switches));
        }
    }

    /// Samples the Python threads that launch no GPU work, while launching threads wait for the GIL. Stops sampling
    /// these threads when no launching thread has waited for the GIL for two seconds. Such a thread is not sampled if
    /// the kernel refuses, or if too many threads are sampled already.
    fn observe_others(&self, observed: &mut ObservedThreads) {
        if observed.gil_waits.are_over(capture::now().0) {
            observed.threads.retain(|one| !one.is_other);
        }
        if !mem::take(&mut observed.gil_waits.is_listing_due) || self.options.hertz.is_none() {
            return;
        }
        let wakes = self.own_thread.load(Ordering::Relaxed);
        let mut room = MAX_OTHERS - observed.threads.iter().filter(|one| one.is_other).count();
        let mut not_sampled = 0;
        for number in observed.stacks.python_threads() {
            let thread = ThreadId(number as u32);
            let is_observed = observed.threads.iter().any(|one| one.thread == thread);
            // Python may still list a thread that has ended, and one of gpuflame's own threads may have got the same
            // id.
            if is_observed || room > 0 && threads::is_thread_ours(number) {
                continue;
            }
            let opened = (room > 0).then(|| PerfEvent::open_small(number, self.period, wakes));
            room = room.saturating_sub(1);
            if let Some(Ok(event)) = opened {
                let other = ObservedThread::new(thread, Some(SampleSource::Kernel(event)), None);
                observed.threads.push(ObservedThread { is_other: true, ..other });
            } else {
                not_sampled += 1;
            }
        }
        self.counts.others.not_sampled.fetch_max(not_sampled, Ordering::Relaxed);
    }

    /// Uses a timer instead if the kernel denies access to perf events and the settings permit timers.
    fn fall_back_to_timer(
        &self,
        opened: io::Result<SampleSource>,
        (thread, wakes): (ThreadId, i32),
        is_refusal_printed: &mut bool,
    ) -> io::Result<SampleSource> {
        let Err(error) = &opened else { return opened };
        let may_not = matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES | libc::ENOSYS));
        if !may_not || !self.options.by_timer || cpu_timer::is_signal_taken() {
            return opened;
        }
        let timer = CpuTimer::open(thread.0 as i32, self.period, wakes);
        if let Err(error) = &timer
            && error.raw_os_error() != Some(libc::ESRCH)
            && !mem::replace(is_refusal_printed, true)
        {
            print_from_app(&format!(
                "{CPU_SAMPLES}: cannot sample with a timer either: {error}; continuing without samples"
            ));
        }
        self.counts.by_timer.fetch_add(u64::from(timer.is_ok()), Ordering::Relaxed);
        timer.map(SampleSource::Timer)
    }

    /// Stops all timers if the program has installed its own handler for the signal that the timers use.
    fn stop_lost_timers(&self, observed: &mut ObservedThreads) {
        if self.counts.by_timer.load(Ordering::Relaxed) > 0 && cpu_timer::is_signal_taken() {
            let is_timer = |one: &ObservedThread| matches!(one.samples, Some(SampleSource::Timer(_)));
            for one in observed.threads.iter_mut().filter(|one| is_timer(one)) {
                one.samples = None;
            }
            if !mem::replace(&mut observed.is_refusal_printed[0], true) {
                print_from_app(&format!(
                    "{CPU_SAMPLES}: the program has set its own action for the timer's signal; continuing \
                     without samples"
                ));
            }
        }
    }

    /// Reads the rings of all observed threads, and drops threads that have ended.
    fn read_all(&self, observed: &mut ObservedThreads) {
        self.stop_lost_timers(observed);
        let is_open = window::state().is_open();
        let is_wanted = mem::replace(&mut observed.was_open, is_open) || is_open;
        let ObservedThreads { stacks: reader, threads, gil_waits, .. } = observed;
        if !threads.is_empty() {
            reader.check_loaded_objects();
        }
        if !is_wanted {
            reader.processor = None;
        }
        let mut stacks = Vec::new();
        threads.retain_mut(|one| {
            let cpu_time = perf::thread_cpu_time(one.thread.0 as i32);
            // The waits of a thread are read before its samples. Whether samples of other threads are kept depends on
            // waits for the GIL, and these other threads come later in this loop.
            self.read_waits(one, (reader, gil_waits), is_wanted, &mut stacks);
            let periods = self.read_samples(one, (reader, gil_waits), is_wanted, &mut stacks);
            // The final CPU time of a thread that has ended can be computed only from its samples.
            let now = cpu_time.unwrap_or_else(|| one.cpu_time + self.period * periods as u32);
            if is_wanted && one.samples.is_some() && !one.is_other {
                let more = now.saturating_sub(one.cpu_time);
                self.counts.cpu_time.fetch_add(more.as_nanos() as u64, Ordering::Relaxed);
            }
            one.cpu_time = now;
            if cpu_time.is_none() {
                gil_waits.end(one.thread, 0);
            }
            cpu_time.is_some()
        });
        self.hand_over(stacks);
    }

    /// Reads the samples of a thread. Returns the number of sampling periods to which these samples correspond.
    fn read_samples(
        &self,
        one: &mut ObservedThread,
        (reader, gil_waits): (&mut StackReader, &GilWaits),
        is_wanted: bool,
        stacks: &mut Vec<SampledStack>,
    ) -> u64 {
        let ObservedThread { thread, samples: Some(source), is_other, .. } = one else { return 0 };
        let (thread, is_other) = (*thread, *is_other);
        let (mut all, mut processor) = (0, None);
        let mut each = |sample: &ThreadSample<'_>, periods: u64| {
            all += periods;
            if is_wanted && (!is_other || gil_waits.any_at(sample.time)) {
                // Python frames are read only for the newest sample, because the thread has already left the Python
                // frames of the older samples.
                let stack = reader.read(thread, sample, sample.is_newest, &self.counts.python);
                self.counts.cut.fetch_add(u64::from(stack.is_partial()), Ordering::Relaxed);
                let kind = SampleKind::OnCpu { ns: self.nanos(periods) };
                let ReadStack { flags, frames } = stack;
                let time = Nanos(sample.time);
                stacks.push(SampledStack { time, thread, kind, flags, frames, is_other });
                processor = Some(sample.cpu);
            }
        };
        let lost = match source {
            SampleSource::Kernel(event) => event.drain(|told| {
                if let PerfRecord::Sample(sample) = told {
                    each(&sample, 1);
                }
            }),
            SampleSource::Timer(timer) => timer.drain(each),
        };
        if let Some(processor) = processor {
            reader.follow(thread, processor);
        }
        if is_wanted {
            let dropped = if is_other { &self.counts.others.dropped } else { &self.counts.dropped };
            dropped.fetch_add(lost, Ordering::Relaxed);
        }
        all
    }

    /// Reads the waits of a thread from its ring. A wait is complete when the thread runs on a processor again.
    fn read_waits(
        &self,
        one: &mut ObservedThread,
        (reader, gil_waits): (&mut StackReader, &mut GilWaits),
        is_wanted: bool,
        stacks: &mut Vec<SampledStack>,
    ) {
        let ObservedThread { thread, switches: Some(event), left, pending_wait, .. } = one else { return };
        let thread = *thread;
        let mut begin = |left: &mut LeftProcessor, is_new: bool, gil_waits: &mut GilWaits| {
            let sample = left.sample();
            let ReadStack { flags, frames } = reader.read(thread, &sample, is_new, &self.counts.python);
            if waits_for_gil(&sample) {
                gil_waits.begin(thread, sample.time);
            }
            left.forget();
            Some(PendingWait { time: left.time, flags, frames })
        };
        let lost = event.drain(|told| match told {
            PerfRecord::Sample(sample) if is_wanted => {
                *pending_wait = None;
                gil_waits.end(thread, 0);
                left.set(&sample);
            }
            // After perf records were dropped, it is unknown to which wait the next end belongs.
            PerfRecord::Sample(_) | PerfRecord::Descheduled { blocked: false } | PerfRecord::Lost => {
                gil_waits.end(thread, 0);
                *pending_wait = None;
                left.forget();
            }
            PerfRecord::Descheduled { blocked: true } => left.is_blocked = left.is_sampled,
            PerfRecord::Scheduled { time } => {
                if left.is_blocked {
                    let is_long = time.saturating_sub(left.time) >= MIN_READ_WAIT_NS;
                    *pending_wait = begin(left, is_long, gil_waits);
                }
                left.forget();
                gil_waits.end(thread, time);
                let waited = pending_wait.take().and_then(|left| left.end_at_time(time, thread));
                if let Some(waited) = &waited {
                    let is_cut = waited.flags.0 & (ContextFlags::TRUNCATED | ContextFlags::CUT) != 0;
                    self.counts.waits.cut.fetch_add(is_cut.into(), Ordering::Relaxed);
                }
                stacks.extend(waited);
            }
        });
        if left.is_blocked {
            *pending_wait = begin(left, true, gil_waits);
        }
        if is_wanted {
            self.counts.waits.dropped.fetch_add(lost, Ordering::Relaxed);
        }
    }

    fn hand_over(&self, stacks: Vec<SampledStack>) {
        let mut ready = self.ready.lock();
        let room = MAX_READY_SAMPLES.saturating_sub(ready.len()).min(stacks.len());
        for (at, one) in stacks.iter().enumerate() {
            let (kept, dropped, waited) = match one.kind {
                SampleKind::OnCpu { .. } if one.is_other => {
                    (&self.counts.others.samples, &self.counts.others.dropped, 0)
                }
                SampleKind::OnCpu { .. } => (&self.counts.samples, &self.counts.dropped, 0),
                SampleKind::OffCpu { ns } => (&self.counts.waits.count, &self.counts.waits.dropped, ns),
            };
            if at < room {
                kept.fetch_add(1, Ordering::Relaxed);
                self.counts.waits.nanos.fetch_add(waited, Ordering::Relaxed);
            } else {
                dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
        ready.extend(stacks.into_iter().take(room));
    }
}

impl SampleSource {
    fn capacity(&self) -> usize {
        match self {
            Self::Kernel(event) => event.capacity(),
            Self::Timer(timer) => timer.capacity(),
        }
    }
}

impl PendingWait {
    /// Returns the wait that has ended at `time`. Returns `None` if the thread only waited for gpuflame's own work
    /// while the process exited.
    fn end_at_time(self, time: u64, thread: ThreadId) -> Option<SampledStack> {
        let Self { time: from, flags, frames } = self;
        let waited = time.checked_sub(from).filter(|waited| *waited > 0)?;
        if shutdown::was_exiting_at(Nanos(from)) {
            return None;
        }
        Some(SampledStack {
            time: Nanos(from),
            thread,
            kind: SampleKind::OffCpu { ns: waited },
            flags,
            frames,
            is_other: false,
        })
    }
}

impl ObservedThread {
    fn new(thread: ThreadId, samples: Option<SampleSource>, switches: Option<PerfEvent>) -> Self {
        Self {
            thread,
            samples,
            switches,
            left: LeftProcessor::default(),
            pending_wait: None,
            cpu_time: perf::thread_cpu_time(thread.0 as i32).unwrap_or_default(),
            is_other: false,
        }
    }
}

impl LeftProcessor {
    fn set(&mut self, sample: &ThreadSample<'_>) {
        (self.time, self.registers) = (sample.time, sample.registers);
        self.stack.clear();
        self.stack.extend_from_slice(sample.stack);
        (self.is_sampled, self.is_blocked) = (true, false);
    }

    fn sample(&self) -> ThreadSample<'_> {
        ThreadSample {
            time: self.time,
            cpu: 0,
            registers: self.registers,
            stack: &self.stack,
            is_newest: true,
        }
    }

    fn forget(&mut self) {
        (self.is_sampled, self.is_blocked) = (false, false);
    }
}

/// Names of the settings that enable CPU samples and off-CPU waits.
const CPU_SAMPLES: &str = "GPUFLAME_CPU_SAMPLES";
const OFF_CPU: &str = "GPUFLAME_OFF_CPU";

/// Counts a perf event that the kernel has opened or refused, and prints a message about the first refusal.
fn note_opened<T>(
    opened: io::Result<T>,
    [threads, refused]: [&AtomicU64; 2],
    setting: &str,
    is_refusal_printed: &mut bool,
) -> Option<T> {
    match opened {
        Ok(event) => {
            threads.fetch_add(1, Ordering::Relaxed);
            Some(event)
        }
        // If the thread has already ended, there is nothing to observe.
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => None,
        Err(error) => {
            refused.fetch_add(1, Ordering::Relaxed);
            if !mem::replace(is_refusal_printed, true) {
                print_from_app(&refusal(setting, &error));
            }
            None
        }
    }
}

/// Returns a message that explains why samples or waits are missing, and how the user can get them.
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
