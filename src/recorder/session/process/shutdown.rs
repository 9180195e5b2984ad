//! The shutdown thread, whose only task is to gather the remaining rows and to write the outputs when the process ends.
//! The shutdown thread is woken when the process exits, when a signal arrives, or when a Python program ends.
//!
//! If a signal ends the process, the interrupted thread may hold any lock of the application, even the lock of its
//! heap. Therefore the shutdown thread uses a heap of its own ([`heap`]). CUPTI and the loader may also need a lock
//! that the interrupted thread holds. Therefore the shutdown thread waits for CUPTI and the loader only for a limited
//! time.
//!
//! ```text
//! exit(), quick_exit() --asked--> thread: gather, write --done--> the exit continues
//! _exit() of a forked worker --asked--> the same, in a hurry: any lock of the program's may be held
//! end of Python's program --asked--> thread: gather, write --done--> exit(), or death by SIGINT without one
//! SIGINT, TERM, HUP ----asked--> thread: gather, write, die of the signal
//!     (the thread that took it waits, and executes nothing more)
//! ```
//!
//! A thread that requests the outputs waits while the shutdown thread makes progress. The wait ends early if the
//! shutdown thread makes no progress for the time that `GPUFLAME_EXIT_LIMIT` sets. A request to the shutdown thread
//! takes no lock and allocates no memory. The reason is that a request may come from a signal handler, which may have
//! interrupted a thread that holds a lock.

use std::hash::RandomState;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::capture;
use crate::control::lifecycle;
use gpuflame_model::error::{Error, ErrorKind, Result};
use gpuflame_model::record::Nanos;
use gpuflame_os::exit::{self, ExitAction};
use gpuflame_os::fatal_signals::{self, FatalSignalHandler, die};
use gpuflame_os::futex::EventFlags;
use gpuflame_os::threads::{self, CpuClock};
use gpuflame_os::{heap, shortage, stderr};
use gpuflame_unwind::python_exit;

use super::messages::print_from_app;
use super::progress::{StallLimit, WaitingTime};

/// Bits in `requested`, with which the shutdown thread is asked to gather all rows and to write the outputs. In `done`,
/// the same bits mean that the shutdown thread has done these tasks.
const GATHER: u32 = 1;
const WRITE: u32 = 2;
/// Bit that is used only in `done`, and means that the shutdown thread needs nothing more from the loader.
const READY: u32 = 4;

/// If several signals arrive within this time, they count as one signal. For example, a terminal, `torchrun` and a job
/// runner may each send a signal.
const SIGNAL_MERGE_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum time to wait for CUPTI or the loader if a signal ends the process.
const SIGNAL_ANSWER_TIMEOUT: Duration = Duration::from_millis(300);
/// Interval at which a waiting thread checks the progress of the shutdown thread.
const EXIT_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Maximum time for which the setup waits for the shutdown thread to start. The start of the shutdown thread usually
/// takes 0.2 ms. If a thread holds the loader's lock when it creates the shutdown thread, the shutdown thread cannot
/// start until this lock is released.
const THREAD_START_TIMEOUT: Duration = Duration::from_millis(100);
/// Maximum time for which the message about missing outputs waits while stderr is full.
const STDERR_TIMEOUT: Duration = Duration::from_millis(200);

static SHUTDOWN: Shutdown = Shutdown {
    process: AtomicU32::new(0),
    limit_ms: AtomicU64::new(0),
    requested: EventFlags::new(),
    done: EventFlags::new(),
    thread: CpuClock::new(),
    signal: AtomicI32::new(0),
    signalled_ms: AtomicU64::new(0),
    is_hurried: AtomicBool::new(false),
    is_given_up: AtomicBool::new(false),
    first_wait_ns: AtomicU64::new(0),
    is_written_early: AtomicBool::new(false),
};

struct Shutdown {
    /// Id of the process that started the shutdown thread. A forked child has a different process id.
    process: AtomicU32,
    limit_ms: AtomicU64,
    requested: EventFlags,
    done: EventFlags,
    /// CPU time that the shutdown thread has used. While this time grows, the shutdown thread makes progress.
    thread: CpuClock,
    /// Signal that will kill the process; 0 if the process is not killed by a signal.
    signal: AtomicI32,
    /// Time at which the first signal arrived, in ms since the machine started.
    signalled_ms: AtomicU64,
    /// Whether the process is a forked worker that ends by `_exit`.
    is_hurried: AtomicBool,
    is_given_up: AtomicBool,
    /// Time in ns at which a thread first waited for the shutdown thread in order to exit the process; 0 if no thread
    /// has waited yet.
    first_wait_ns: AtomicU64,
    /// Whether the outputs were already written when the Python program ended, before the exit of the process.
    is_written_early: AtomicBool,
}

/// Steps that the shutdown thread carries out.
pub(crate) trait ShutdownSteps: Sync {
    fn close_window(&self);

    /// Makes CUPTI deliver all activity records, whether they are complete or not, and reads them.
    fn gather_remaining_rows(&self, limit: StallLimit);

    /// Switches gpuflame off, and computes the final sums. Returns false if the lock of the sums is held by another
    /// thread that makes no progress.
    fn compute_final_sums(&self, limit: StallLimit, is_signalled: bool) -> bool;

    /// Saves the sums in the checkpoint, in case the process is killed before all outputs are written.
    fn write_last_checkpoint(&self, limit: Duration, is_signalled: bool);

    /// Writes the outputs, and prints the summary.
    fn write_outputs(&self, limit: StallLimit);
}

/// Starts the shutdown thread, and registers the functions that wake this thread on an exit or a signal.
pub(crate) fn start(steps: &'static impl ShutdownSteps, limit: Duration, on_signals: bool) -> Result<()> {
    SHUTDOWN.process.store(std::process::id(), Ordering::Release);
    SHUTDOWN.limit_ms.store(limit.as_millis() as u64, Ordering::Release);
    let spawned = threads::spawn(c"gpuflame-end", threads::DEFAULT_STACK_BYTES, move || SHUTDOWN.run(steps));
    spawned.map_err(|error| {
        Error::new(ErrorKind::State, format!("cannot start a thread ({error}); raise the limit on threads"))
    })?;
    exit::call_at_exit(ExitAction {
        action: || SHUTDOWN.on_exit(),
        is_done: || SHUTDOWN.is_done_or_abandoned(WRITE),
    });
    exit::call_at_worker_exit(|| SHUTDOWN.on_worker_exit());
    SHUTDOWN.wait_until_ready();
    if on_signals {
        fatal_signals::handle_fatal_signals(FatalSignalHandler {
            on_signal: |signal| SHUTDOWN.on_signal(signal),
            wait: |_| SHUTDOWN.wait_to_die(),
        });
    }
    // If Python has no room for another exit handler, no outputs are written after an uncaught KeyboardInterrupt. After
    // such an interrupt, only the checkpoint remains.
    python_exit::call_at_program_exit(
        || !SHUTDOWN.is_done_or_abandoned(WRITE),
        || SHUTDOWN.on_python_program_end(),
    );
    Ok(())
}

/// Moves gpuflame's exit handler ahead of all exit handlers that are already registered, because the CUDA driver's
/// handler may be among them. Once the driver's exit handlers have run, there are no records left to gather.
pub(crate) fn move_exit_handler_first() {
    exit::call_early_at_exit(ExitAction {
        action: || SHUTDOWN.request(GATHER),
        is_done: || SHUTDOWN.is_done_or_abandoned(GATHER),
    });
}

/// Ends the process. Called after `main` has ended by `pthread_exit`, if only gpuflame's threads are left. Without this
/// call, gpuflame's threads would keep the process alive.
pub(crate) fn exit_as_the_last_thread() {
    let _ = threads::spawn(c"gpuflame-exit", threads::DEFAULT_STACK_BYTES, || exit::exit());
}

/// Whether the process was already exiting at the time `time`. If a thread began to wait after the exit had started, it
/// was waiting for gpuflame.
pub(crate) fn was_exiting_at(time: Nanos) -> bool {
    let since = SHUTDOWN.first_wait_ns.load(Ordering::Acquire);
    since != 0 && time.0 >= since
}

impl Shutdown {
    /// Waits until the shutdown thread has started and no longer needs the loader. A signal may later stop a thread
    /// inside the loader, and then the loader is unusable.
    fn wait_until_ready(&self) {
        let began = Instant::now();
        while !self.done.has(READY)
            && let Some(patience) = THREAD_START_TIMEOUT.checked_sub(began.elapsed())
        {
            self.done.wait(self.done.get() & !READY, Some(patience));
        }
    }

    fn limit(&self) -> Duration {
        Duration::from_millis(self.limit_ms.load(Ordering::Acquire))
    }

    /// Body of the shutdown thread.
    fn run(&self, steps: &impl ShutdownSteps) {
        threads::note_ours();
        self.thread.follow_this_thread();
        // When the next two calls are made for the first time, they resolve symbols, which takes the loader's lock. The
        // calls are first made here, because later a stopped thread may hold the loader's lock forever. A new hash
        // table needs random numbers, and resolves symbols to get them.
        drop(RandomState::new());
        Condvar::new().wait_for(&mut Mutex::new(()).lock(), Duration::from_millis(1));
        self.done.set(READY);
        let run = AssertUnwindSafe(|| self.gather_and_write(steps));
        if catch_unwind(run).is_err() {
            // If this code has panicked, the outputs are lost, but the application still exits as usual.
            lifecycle::end();
        }
        self.die_if_signalled();
        self.done.set(GATHER | WRITE);
        self.die_if_signalled();
    }

    fn gather_and_write(&self, steps: &impl ShutdownSteps) {
        loop {
            let requested = self.requested.get();
            if requested & WRITE != 0 {
                break;
            }
            if requested & GATHER != 0 && !self.done.has(GATHER) {
                steps.gather_remaining_rows(self.stall_limit());
                self.done.set(GATHER);
            }
            self.requested.wait(requested, None);
        }
        if lifecycle::is_over() {
            return;
        }
        // The window is closed first, so that no new rows arrive while the remaining rows are gathered.
        steps.close_window();
        steps.gather_remaining_rows(self.stall_limit());
        if steps.compute_final_sums(self.stall_limit(), self.must_hurry()) {
            steps.write_last_checkpoint(SIGNAL_ANSWER_TIMEOUT.min(self.limit()), self.must_hurry());
            steps.write_outputs(self.stall_limit());
        }
    }

    /// Whether the process ends because of a signal or because a worker calls `_exit`. When a signal or `_exit` ends
    /// the process, other threads may hold any lock of the program.
    fn must_hurry(&self) -> bool {
        self.signal.load(Ordering::SeqCst) != 0 || self.is_hurried.load(Ordering::SeqCst)
    }

    fn stall_limit(&self) -> StallLimit {
        let limit = self.limit();
        let foreign = if self.must_hurry() { limit.min(SIGNAL_ANSWER_TIMEOUT) } else { limit };
        StallLimit { foreign, own: limit }
    }

    fn die_if_signalled(&self) {
        match self.signal.load(Ordering::SeqCst) {
            0 => {}
            signal => die(signal),
        }
    }

    /// Whether no thread needs to wait for the request `what` any more. As long as this function returns false, an exit
    /// handler registers itself again each time that it has run.
    fn is_done_or_abandoned(&self, what: u32) -> bool {
        self.done.has(what) || self.is_abandoned()
    }

    /// Whether the shutdown thread will do nothing more. The shutdown thread does nothing more if it belongs to the
    /// parent process, or if it has ended. It also does nothing more if it made no progress and a waiting thread has
    /// therefore stopped waiting.
    fn is_abandoned(&self) -> bool {
        let is_forked = self.process.load(Ordering::Acquire) != std::process::id();
        // If no thread has requested the outputs, gpuflame can only have been switched off by a panic in its own code.
        // If a thread has requested the outputs, `done` shows whether they are written.
        let is_over = lifecycle::is_over() && !self.requested.has(WRITE);
        is_forked || is_over || shortage::has_stopped_thread() || self.is_given_up.load(Ordering::Acquire)
    }

    /// Called on a thread that exits the process.
    fn on_exit(&self) {
        self.request(GATHER | WRITE);
        let is_own = self.process.load(Ordering::Acquire) == std::process::id();
        if is_own
            && capture::has_launched_after_shutdown()
            && self.is_written_early.swap(false, Ordering::AcqRel)
        {
            print_from_app("not in any file: launches made after the Python program ended");
        }
    }

    /// Called on a thread that calls `_exit` in a forked worker.
    fn on_worker_exit(&self) {
        self.is_hurried.store(true, Ordering::SeqCst);
        self.request(GATHER | WRITE);
    }

    /// Called on the thread that ends the Python program, when only the exit of the process remains to be done. At this
    /// point, CPython has already restored the signal handlers. Therefore gpuflame installs its handlers again. Without
    /// gpuflame's handlers, a second Ctrl+C would interrupt the writing of outputs that the first Ctrl+C has started.
    fn on_python_program_end(&self) {
        fatal_signals::handle_new_defaults();
        self.request(GATHER | WRITE);
        self.is_written_early.store(true, Ordering::Release);
    }

    /// Sends the request `what` to the shutdown thread, and waits until the request is carried out. Called on a thread
    /// that exits the process.
    fn request(&self, what: u32) {
        if self.is_abandoned() {
            return;
        }
        let now = capture::now().0;
        let _ = self.first_wait_ns.compare_exchange(0, now, Ordering::AcqRel, Ordering::Acquire);
        self.requested.set(what);
        if !self.wait(|| self.done.has(what)) {
            self.give_up();
        }
    }

    /// Makes all threads stop waiting for the outputs permanently, and prints once that the outputs are missing.
    fn give_up(&self) {
        if !self.is_given_up.swap(true, Ordering::AcqRel) {
            let line = b"gpuflame: writing the outputs makes no progress, and the process exits without \
                         them; raise GPUFLAME_EXIT_LIMIT to wait longer\n";
            stderr::write_here(line, STDERR_TIMEOUT);
        }
    }

    /// Waits until `is_done` returns true. Returns false if the shutdown thread makes no progress for the duration of
    /// the exit limit.
    fn wait(&self, is_done: impl Fn() -> bool) -> bool {
        let (mut taken, mut waited) = (self.thread.elapsed(), WaitingTime::start());
        loop {
            let done = self.done.get();
            if is_done() || shortage::has_stopped_thread() {
                return true;
            }
            self.done.wait(done, Some(EXIT_POLL_INTERVAL));
            let now = self.thread.elapsed();
            if now != taken {
                (taken, waited) = (now, WaitingTime::start());
            } else if waited.update() >= self.limit() {
                return is_done();
            }
        }
    }

    /// Handles a signal. This function may run on any thread, because a signal can interrupt a thread at any
    /// instruction.
    fn on_signal(&self, signal: i32) {
        let is_over = lifecycle::is_over() && !self.requested.has(WRITE);
        if is_over || self.done.has(WRITE) {
            die(signal);
        }
        let now = threads::uptime_ms().max(1);
        let first = self.signalled_ms.compare_exchange(0, now, Ordering::AcqRel, Ordering::Acquire);
        if first.is_err_and(|first| now.saturating_sub(first) >= SIGNAL_MERGE_INTERVAL.as_millis() as u64) {
            die(signal);
        }
        heap::populate_pages_at_once();
        let _ = self.signal.compare_exchange(0, signal, Ordering::SeqCst, Ordering::SeqCst);
        self.requested.set(WRITE);
        // If the shutdown thread has just finished, it does not notice the signal.
        if self.done.has(WRITE) {
            die(signal);
        }
    }

    /// Called on the thread that has received a signal. This function never returns. The process dies when all outputs
    /// are written, or when the shutdown thread stops making progress.
    fn wait_to_die(&self) -> ! {
        // When the shutdown thread has finished, it raises the signal itself, which kills the process.
        if !self.wait(|| false) {
            self.give_up();
        }
        die(self.signal.load(Ordering::SeqCst))
    }
}
