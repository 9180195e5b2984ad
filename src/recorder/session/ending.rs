//! The ending thread gathers the remaining rows and writes the outputs when the process ends. The thread has no other
//! task, and is woken by an exit, by a signal, or by the end of Python's program.
//!
//! If a signal ends the process, the interrupted thread may hold any lock of the application, including that of its
//! heap. The ending thread therefore uses a separate heap ([`heap`]), and waits only for a limited time for CUPTI and
//! the loader, which may need such a lock.
//!
//! ```text
//! exit(), quick_exit() --asked--> thread: gather, write --done--> the exit continues
//! _exit() of a forked worker --asked--> the same, in haste: any lock of the program's may be held
//! end of Python's program --asked--> thread: gather, write --done--> exit(), or death by SIGINT without one
//! SIGINT, TERM, HUP ----asked--> thread: gather, write, die of the signal
//!     (the thread that took it waits, and executes nothing more)
//! ```
//!
//! A waiting thread waits while the ending thread makes progress, and for the limit (`GPUFLAME_EXIT_LIMIT`) after the
//! last progress. The request itself takes no lock and no memory, because a signal handler that makes the request may
//! have interrupted the thread that holds the lock.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::capture;
use crate::control::life;
use gpuflame_export as export;
use gpuflame_model::error::{Error, ErrorKind, Result};
use gpuflame_model::record::Nanos;
use gpuflame_os::ending::{self, Listener, die};
use gpuflame_os::exit::{self, Call};
use gpuflame_os::futex::Bits;
use gpuflame_os::threads::{self, Clock};
use gpuflame_os::{heap, shortage, stderr};
use gpuflame_unwind::python_exit;

use super::messages::tell;
use super::progress::{Limit, Waited};

/// Requests to gather all rows, and to write the outputs. In `done`, the same bits mean that the step is complete.
const GATHER: u32 = 1;
const WRITE: u32 = 2;
/// The ending thread needs nothing more from the loader. This bit is used in `done` only.
const READY: u32 = 4;

/// Signals within this time count as one signal, because a terminal, `torchrun` and a job's runner each send one.
const ONE_SIGNAL: Duration = Duration::from_secs(1);
/// Maximum time for CUPTI or the loader to answer when a signal ends the process.
const LONGEST_ANSWER: Duration = Duration::from_millis(300);
/// Interval between checks whether the thread makes progress.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Maximum time for which the caller waits until the thread has started. Starting usually takes 0.2 ms, but the thread
/// cannot start while the caller holds the loader's lock.
const LONGEST_BEGINNING: Duration = Duration::from_millis(100);
/// Maximum time for which the last line may wait for a full stderr.
const LONGEST_TELLING: Duration = Duration::from_millis(200);

static ENDING: Ending = Ending {
    process: AtomicU32::new(0),
    limit_ms: AtomicU64::new(0),
    asked: Bits::new(),
    done: Bits::new(),
    thread: Clock::new(),
    signal: AtomicI32::new(0),
    signalled_ms: AtomicU64::new(0),
    is_hurried: AtomicBool::new(false),
    gave_up: AtomicBool::new(false),
    waited_for: AtomicU64::new(0),
    came_early: AtomicBool::new(false),
};

struct Ending {
    /// Id of our process, which forked children do not share.
    process: AtomicU32,
    limit_ms: AtomicU64,
    asked: Bits,
    done: Bits,
    /// CPU time of the ending thread. While this time grows, the thread makes progress.
    thread: Clock,
    /// Signal that the process will die of; 0 for none.
    signal: AtomicI32,
    /// Time of the first signal, in ms since the machine started.
    signalled_ms: AtomicU64,
    /// A forked worker ends by `_exit`.
    is_hurried: AtomicBool,
    gave_up: AtomicBool,
    /// Time at which an exiting thread first waited for the ending thread; 0 if no thread has waited.
    waited_for: AtomicU64,
    /// The outputs were written before the exit, at the end of Python's program.
    came_early: AtomicBool,
}

/// Steps that the thread carries out.
pub(super) trait Ends: Sync {
    fn close_window(&self);

    /// Makes CUPTI deliver all records, complete or not, and reads these records.
    fn gather_the_rest(&self, limit: Limit);

    /// Switches gpuflame off and computes the final sums. Returns false if the thread that holds the lock of the sums
    /// makes no progress.
    fn add_up(&self, limit: Limit, is_signalled: bool) -> bool;

    /// Saves the sums to the checkpoint, in case the process is killed before all outputs are written.
    fn write_down_last(&self, limit: Duration, is_signalled: bool);

    /// Writes the outputs, and prints a summary.
    fn write_out(&self, limit: Limit);
}

/// Starts the thread, and arranges for requests at exit and on signals.
pub(super) fn begin(ends: &'static impl Ends, limit: Duration, on_signals: bool) -> Result<()> {
    ENDING.process.store(std::process::id(), Ordering::Release);
    ENDING.limit_ms.store(limit.as_millis() as u64, Ordering::Release);
    let spawned = threads::spawn(c"gpuflame-end", threads::STACK, move || ENDING.run(ends));
    spawned.map_err(|error| {
        Error::new(ErrorKind::State, format!("cannot start a thread ({error}); raise the limit on threads"))
    })?;
    exit::call_at_exit(Call { action: || ENDING.exits(), is_done: || ENDING.is_settled(WRITE) });
    exit::call_at_worker_exit(|| ENDING.worker_exits());
    ENDING.wait_until_ready();
    if on_signals {
        ending::listen(Listener { came: |signal| ENDING.note(signal), wait: |_| ENDING.wait_to_die() });
    }
    // If Python has no room for the handler, an uncaught interrupt leaves only the checkpoint.
    python_exit::call_at_program_exit(|| !ENDING.is_settled(WRITE), || ENDING.program_of_python_ends());
    Ok(())
}

/// Moves our exit handler ahead of all exit handlers registered so far. The driver's exit handlers may be among these
/// handlers, and after the driver's handlers no records are left to gather.
pub(super) fn come_first_at_exit() {
    exit::call_early_at_exit(Call { action: || ENDING.ask(GATHER), is_done: || ENDING.is_settled(GATHER) });
}

/// Ends the process when `main` has ended by `pthread_exit` and only our threads are left, because they would keep the
/// process alive.
pub(super) fn exit_as_the_last_thread() {
    let _ = threads::spawn(c"gpuflame-exit", threads::STACK, || exit::exit());
}

/// Whether the process was already exiting at `time`. A wait that began after `time` was caused by us.
pub(super) fn had_begun(time: Nanos) -> bool {
    let since = ENDING.waited_for.load(Ordering::Acquire);
    since != 0 && time.0 >= since
}

impl Ending {
    /// Waits until the ending thread has started. If a signal later stops a thread inside the loader, the ending thread
    /// must not need the loader.
    fn wait_until_ready(&self) {
        let began = Instant::now();
        while !self.done.has(READY)
            && let Some(patience) = LONGEST_BEGINNING.checked_sub(began.elapsed())
        {
            self.done.wait(self.done.get() & !READY, Some(patience));
        }
    }

    fn limit(&self) -> Duration {
        Duration::from_millis(self.limit_ms.load(Ordering::Acquire))
    }

    /// Body of the thread.
    fn run(&self, ends: &impl Ends) {
        threads::note_ours();
        self.thread.follow_this_thread();
        // The next two calls resolve symbols on first use, under the loader's lock. Both calls are made now, because a
        // stopped thread may later hold that lock forever.
        export::draw_once();
        Condvar::new().wait_for(&mut Mutex::new(()).lock(), Duration::from_millis(1));
        self.done.set(READY);
        let run = AssertUnwindSafe(|| self.gather_and_write(ends));
        if catch_unwind(run).is_err() {
            // The outputs are lost, but the application exits as usual.
            life::end();
        }
        self.die_if_signalled();
        self.done.set(GATHER | WRITE);
        self.die_if_signalled();
    }

    fn gather_and_write(&self, ends: &impl Ends) {
        loop {
            let asked = self.asked.get();
            if asked & WRITE != 0 {
                break;
            }
            if asked & GATHER != 0 && !self.done.has(GATHER) {
                ends.gather_the_rest(self.patience());
                self.done.set(GATHER);
            }
            self.asked.wait(asked, None);
        }
        if life::is_over() {
            return;
        }
        // The window is closed first, so that the number of rows to gather is limited.
        ends.close_window();
        ends.gather_the_rest(self.patience());
        if ends.add_up(self.patience(), self.is_in_haste()) {
            ends.write_down_last(LONGEST_ANSWER.min(self.limit()), self.is_in_haste());
            ends.write_out(self.patience());
        }
    }

    /// Whether the thread that ends the process may have been stopped at any instruction.
    fn is_in_haste(&self) -> bool {
        self.signal.load(Ordering::SeqCst) != 0 || self.is_hurried.load(Ordering::SeqCst)
    }

    fn patience(&self) -> Limit {
        let limit = self.limit();
        let others = if self.is_in_haste() { limit.min(LONGEST_ANSWER) } else { limit };
        Limit { others, ours: limit }
    }

    fn die_if_signalled(&self) {
        match self.signal.load(Ordering::SeqCst) {
            0 => {}
            signal => die(signal),
        }
    }

    /// Whether no thread needs to wait for `what` any more. While this is false, an exit handler registers itself again
    /// each time.
    fn is_settled(&self, what: u32) -> bool {
        self.done.has(what) || self.is_out_of_reach()
    }

    /// Whether the ending thread will do nothing more, because it belongs to another process, has ended, or made no
    /// progress.
    fn is_out_of_reach(&self) -> bool {
        let is_forked = self.process.load(Ordering::Acquire) != std::process::id();
        // Without a request to write, the session is over only because gpuflame has panicked. After a request to write,
        // `done` shows when the thread has finished.
        let is_over = life::is_over() && !self.asked.has(WRITE);
        is_forked || is_over || shortage::is_out() || self.gave_up.load(Ordering::Acquire)
    }

    /// Runs on a thread that exits.
    fn exits(&self) {
        self.ask(GATHER | WRITE);
        let is_own = self.process.load(Ordering::Acquire) == std::process::id();
        if is_own && capture::has_launched_after_shutdown() && self.came_early.swap(false, Ordering::AcqRel) {
            tell("not in any file: launches made after the Python program ended");
        }
    }

    /// Runs on a thread that calls `_exit`.
    fn worker_exits(&self) {
        self.is_hurried.store(true, Ordering::SeqCst);
        self.ask(GATHER | WRITE);
    }

    /// Runs on the thread that ends Python's program, when the program only has to exit. CPython has restored the
    /// signal handlers by then, so ours are installed again: a second Ctrl+C must not interrupt the writing that the
    /// first Ctrl+C started.
    fn program_of_python_ends(&self) {
        ending::listen_again();
        self.ask(GATHER | WRITE);
        self.came_early.store(true, Ordering::Release);
    }

    /// Asks the ending thread for `what`, and waits until `what` is done. Runs on a thread that exits.
    fn ask(&self, what: u32) {
        if self.is_out_of_reach() {
            return;
        }
        let now = capture::now().0;
        let _ = self.waited_for.compare_exchange(0, now, Ordering::AcqRel, Ordering::Acquire);
        self.asked.set(what);
        if !self.wait(|| self.done.has(what)) {
            self.give_up();
        }
    }

    /// Stops waiting permanently, and prints once that the outputs are missing.
    fn give_up(&self) {
        if !self.gave_up.swap(true, Ordering::AcqRel) {
            let line = b"gpuflame: writing the outputs makes no progress, and the process exits without \
                         them; raise GPUFLAME_EXIT_LIMIT to wait longer\n";
            stderr::write_here(line, LONGEST_TELLING);
        }
    }

    /// Waits until `is_done`. Returns false if the ending thread has made no progress for the length of the limit.
    fn wait(&self, is_done: impl Fn() -> bool) -> bool {
        let (mut taken, mut waited) = (self.thread.taken(), Waited::begin());
        loop {
            let done = self.done.get();
            if is_done() || shortage::is_out() {
                return true;
            }
            self.done.wait(done, Some(LOOK_EVERY));
            let now = self.thread.taken();
            if now != taken {
                (taken, waited) = (now, Waited::begin());
            } else if waited.look() >= self.limit() {
                return is_done();
            }
        }
    }

    /// Handles a signal, on any thread, at any instruction.
    fn note(&self, signal: i32) {
        let is_over = life::is_over() && !self.asked.has(WRITE);
        if is_over || self.done.has(WRITE) {
            die(signal);
        }
        let now = threads::milliseconds().max(1);
        let first = self.signalled_ms.compare_exchange(0, now, Ordering::AcqRel, Ordering::Acquire);
        if first.is_err_and(|first| now.saturating_sub(first) >= ONE_SIGNAL.as_millis() as u64) {
            die(signal);
        }
        heap::make_haste();
        let _ = self.signal.compare_exchange(0, signal, Ordering::SeqCst, Ordering::SeqCst);
        self.asked.set(WRITE);
        // The ending thread may have finished just now, and would not see the signal.
        if self.done.has(WRITE) {
            die(signal);
        }
    }

    /// Runs on a thread that received a signal. The process dies when all outputs are written, or when writing makes no
    /// progress.
    fn wait_to_die(&self) -> ! {
        // When the ending thread has finished, it raises the signal, which kills the process.
        if !self.wait(|| false) {
            self.give_up();
        }
        die(self.signal.load(Ordering::SeqCst))
    }
}
