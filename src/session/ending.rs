//! How the process ends: whoever ends it wakes a thread of ours that waits for nothing else. It gathers what is left
//! and writes the outputs. When a signal ends it, the thread that was stopped may hold any lock of the application's,
//! that of its heap too: ours is another ([`heap`]), and whoever may wait for such a lock, the tracer or the loader, is
//! waited for only so long.
//!
//! ```text
//! exit(), quick_exit() --asked--> thread: gather, write --done--> the exit goes on
//! _exit() of a forked worker --asked--> the same, in haste: any lock of the program's may be held
//! end of Python's program --asked--> thread: gather, write --done--> exit(), or death by SIGINT without one
//! SIGINT, TERM, HUP ----asked--> thread: gather, write, die of the signal
//!     (the thread that took it waits, and executes nothing more)
//! ```
//!
//! Who waits does so as long as the thread gets on, and by the limit (`GPUFLAME_EXIT_LIMIT`) longer. Nothing that is
//! asked from outside takes a lock or memory: it may have interrupted whoever holds the lock.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::capture;
use crate::control::life;
use crate::error::{Error, ErrorKind, Result};
use crate::export;
use crate::host::ending::{self, Listener, die};
use crate::host::exit::{self, Call};
use crate::host::futex::Bits;
use crate::host::threads::{self, Clock};
use crate::host::{heap, shortage, stderr};
use crate::record::Nanos;
use crate::unwind::python_end;

use super::messages::tell;
use super::progress::{Limit, Waited};

/// That everything be gathered, and that it be written; or that it was.
const GATHER: u32 = 1;
const WRITE: u32 = 2;
/// That the thread needs nothing of the loader's any more.
const READY: u32 = 4;

/// Signals that come within this time are one: a terminal, `torchrun` and a job's runner each send one.
const ONE_SIGNAL: Duration = Duration::from_secs(1);
/// How long the tracer, or the loader, may take to answer when a signal ends the process.
const LONGEST_ANSWER: Duration = Duration::from_millis(300);
/// Between two looks whether the thread gets on.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long a thread may take to begin: as a rule some 0.2 ms. It takes for ever where the caller holds the loader's lock.
const LONGEST_BEGINNING: Duration = Duration::from_millis(100);
/// How long a full stderr may take the last line.
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
    /// Ours: forked children have another number.
    process: AtomicU32,
    limit_ms: AtomicU64,
    asked: Bits,
    done: Bits,
    /// What the thread has taken of a processor: as long as that grows, it gets on.
    thread: Clock,
    /// That the process dies of; 0: none.
    signal: AtomicI32,
    /// When the first came, since the machine started.
    signalled_ms: AtomicU64,
    /// A worker ends by `_exit`.
    is_hurried: AtomicBool,
    gave_up: AtomicBool,
    /// When a thread first came to wait for us, as it exits; 0: none has.
    waited_for: AtomicU64,
    /// All was written before the exit: when Python's program was over.
    came_early: AtomicBool,
}

/// What the thread brings to its end.
pub(super) trait Ends: Sync {
    fn close_window(&self);

    /// Has the tracer hand over everything, complete or not, and reads it.
    fn gather_the_rest(&self, limit: Limit);

    /// Ends the life of everything of ours, and adds up what was gathered. False: whoever has it does not get on.
    fn add_up(&self, limit: Limit, is_signalled: bool) -> bool;

    /// Has that written down where it outlives the process, should somebody kill it before all is written.
    fn write_down_last(&self, limit: Duration, is_signalled: bool);

    /// Writes the outputs of it, and says what they hold.
    fn write_out(&self, limit: Limit);
}

/// Starts the thread, and sees to it that it is asked when the process exits or gets a signal.
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
    // Where there is no room for it, an interrupt that nobody catches leaves the checkpoint.
    python_end::at_end_of_program(|| !ENDING.is_settled(WRITE), || ENDING.program_of_python_ends());
    Ok(())
}

/// Comes before all exit handlers that were registered so far: the driver's may be among them, and after those
/// nothing is left to gather.
pub(super) fn come_first_at_exit() {
    exit::call_early_at_exit(Call { action: || ENDING.ask(GATHER), is_done: || ENDING.is_settled(GATHER) });
}

/// Ends the process as its last thread does when `main` has ended by `pthread_exit`: ours would keep it alive.
pub(super) fn exit_as_the_last_thread() {
    let _ = threads::spawn(c"gpuflame-exit", threads::STACK, || exit::exit());
}

/// Whether the process was on its way out then, so that whoever waited did so for us.
pub(super) fn had_begun(time: Nanos) -> bool {
    let since = ENDING.waited_for.load(Ordering::Acquire);
    since != 0 && time.0 >= since
}

impl Ending {
    /// Waits until the thread has begun: a signal that stops a thread inside the loader must not find it waiting for that.
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

    /// What the thread does.
    fn run(&self, ends: &impl Ends) {
        threads::note_ours();
        self.thread.follow_this_thread();
        // Both look something up when it is first done, under the loader's lock, which may be held for good later.
        export::draw_once();
        Condvar::new().wait_for(&mut Mutex::new(()).lock(), Duration::from_millis(1));
        self.done.set(READY);
        let run = AssertUnwindSafe(|| self.gather_and_write(ends));
        if catch_unwind(run).is_err() {
            // The outputs are lost, the application's exit is not.
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
        // First, so that what is to be gathered comes to an end.
        ends.close_window();
        ends.gather_the_rest(self.patience());
        if ends.add_up(self.patience(), self.is_in_haste()) {
            ends.write_down_last(LONGEST_ANSWER.min(self.limit()), self.is_in_haste());
            ends.write_out(self.patience());
        }
    }

    /// Whether the thread that ends the process may have been stopped anywhere.
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

    /// Whether nobody has to wait for this any more. Else an exit handler is registered anew, again and again.
    fn is_settled(&self, what: u32) -> bool {
        self.done.has(what) || self.is_out_of_reach()
    }

    /// Whether the thread will not do anything: it is another process's, or has not got on.
    fn is_out_of_reach(&self) -> bool {
        let is_forked = self.process.load(Ordering::Acquire) != std::process::id();
        // By a bug of ours; else it is over when it is done.
        let is_over = life::is_over() && !self.asked.has(WRITE);
        is_forked || is_over || shortage::is_out() || self.gave_up.load(Ordering::Acquire)
    }

    /// On a thread that exits.
    fn exits(&self) {
        self.ask(GATHER | WRITE);
        let is_own = self.process.load(Ordering::Acquire) == std::process::id();
        if is_own && capture::has_launched_late() && self.came_early.swap(false, Ordering::AcqRel) {
            tell("what was launched after the end of Python's program is in no file");
        }
    }

    /// On a thread that calls `_exit`.
    fn worker_exits(&self) {
        self.is_hurried.store(true, Ordering::SeqCst);
        self.ask(GATHER | WRITE);
    }

    /// On the thread that ends it, where nothing but its exit is left. CPython has given its signals back: a second
    /// Ctrl+C must not take what the first leaves.
    fn program_of_python_ends(&self) {
        ending::listen_again();
        self.ask(GATHER | WRITE);
        self.came_early.store(true, Ordering::Release);
    }

    /// Has the thread do this, and waits until it has. On a thread that exits.
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

    /// Says so, once.
    fn give_up(&self) {
        if !self.gave_up.swap(true, Ordering::AcqRel) {
            let line = b"gpuflame: writing the outputs came to a halt, and the process ends without them; \
                         GPUFLAME_EXIT_LIMIT says how long it waits\n";
            stderr::write_here(line, LONGEST_TELLING);
        }
    }

    /// False: the thread has not got on for as long as the limit.
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

    /// A signal came, on any thread, at any moment.
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
        // It may just have been done, and the thread be gone.
        if self.done.has(WRITE) {
            die(signal);
        }
    }

    /// On a thread that took a signal: the process dies when all is written, or when that came to a halt.
    fn wait_to_die(&self) -> ! {
        // Whoever has done it dies of the signal, and nobody comes back here.
        if !self.wait(|| false) {
            self.give_up();
        }
        die(self.signal.load(Ordering::SeqCst))
    }
}
