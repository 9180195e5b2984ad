//! The thread that gathers rows: it reads the logs of the application's threads and the tracer's
//! buffers, keeps chunks ready, and asks the tracer for what is complete about once a second.
//!
//! No lock of ours is held while the tracer is called: a flush calls back into us, on this thread or on
//! another that holds the tracer's own lock.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::capture;
use crate::control::life;
use crate::error::{Error, ErrorKind, Result};
use crate::host::{alive, heap, shortage, threads};
use crate::tracer;
use crate::unwind;

use super::ending;
use super::panic::disable_after_panic;
use super::progress::{self, LOOK_EVERY, Limit, Watch};

/// Pause between two visits while rows come in: what comes in meanwhile fits the ready chunks.
const SHORT_PAUSE: Duration = Duration::from_millis(5);
/// Pause after a while without rows: an idle process must not be woken for nothing.
pub(super) const LONGEST_PAUSE: Duration = Duration::from_millis(80);
/// The tracer hands over a buffer when it is full; this often it is asked for what it has.
const FLUSH_EVERY: Duration = Duration::from_secs(1);

/// The same after the first launch, for the first checkpoint: a worker may end by `_exit` soon. In a forked process the times after it double.
const FIRST_FLUSH: Duration = Duration::from_millis(80);

/// This often when many launches wait for their activities.
const FLUSH_WHEN_BEHIND: Duration = Duration::from_millis(50);

/// After a flush, what it brought is read and then written down, after this time at the latest.
const WRITE_AFTER: Duration = Duration::from_millis(200);

/// How often it is looked whether the application has any thread left: some 10 us.
const LOOK_AROUND_EVERY: Duration = Duration::from_secs(1);

/// What the collector gathers from.
pub(super) trait Source: Sync {
    /// Reads what lies ready, or a good deal of it. False: there was nothing.
    fn collect(&self) -> bool;

    /// Reads all that lies ready now.
    fn collect_noted(&self);

    /// Answers what is asked of all that was read.
    fn answer(&self);

    /// Whether the application has launched anything.
    fn has_work(&self) -> bool;

    /// Whether many launches wait for their activities.
    fn wants_flush(&self) -> bool;

    /// How long it may be left alone when nothing comes.
    fn longest_pause(&self) -> Duration;

    /// Has the tracer hand over what is complete, or everything.
    fn flush(&self, everything: bool);

    /// Has what was read outlive the process, once that is written; or now, if it is awaited.
    fn write_down(&self, is_awaited: bool);

    /// There is no memory left: nothing more is gathered.
    fn end_for_want_of_memory(&self);
}

/// What the collector may be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Wish {
    /// As `Collect`, for a checkpoint. Checkpoints may be frequent, so they do not delay a flush that is due.
    Read,
    /// Everything that was handed over already.
    Collect,
    /// Everything that is complete.
    Gather,
    /// The same, so that it outlives the process.
    Flush,
    /// Everything there is, complete or not.
    Drain,
}

#[derive(Debug, Default)]
pub(super) struct Collector {
    wishes: Mutex<Wishes>,
    asked: Condvar,
    granted: Condvar,
}

#[derive(Debug, Default)]
struct Wishes {
    open: Option<Wish>,
    /// How many wishes were made and how many of them granted.
    made: u64,
    granted: u64,
}

impl Collector {
    /// Starts the thread.
    pub(super) fn spawn(&'static self, source: &'static impl Source) -> Result<()> {
        let spawned = threads::spawn(c"gpuflame", threads::STACK, move || {
            let run = std::panic::AssertUnwindSafe(|| self.run(source));
            if std::panic::catch_unwind(run).is_err() {
                disable_after_panic();
            }
            // A recording says that this thread writes it: as long as it is there the process lives.
            threads::stop()
        });
        spawned.map_err(|error| {
            Error::new(
                ErrorKind::State,
                format!("cannot start a thread ({error}); raise the limit on threads"),
            )
        })
    }

    /// Makes a wish and waits until it is granted. False: the collector has not got on for as long as the limit.
    pub(super) fn ask(&self, wish: Wish, limit: Limit) -> bool {
        let mut watch = Watch::new(limit);
        // Who holds it may have been interrupted for good.
        let Some(mut wishes) = self.wishes.try_lock_for(limit.others) else { return false };
        wishes.made += 1;
        let mine = wishes.made;
        wishes.open = wishes.open.max(Some(wish));
        self.asked.notify_one();
        while wishes.granted < mine {
            self.granted.wait_for(&mut wishes, LOOK_EVERY);
            if watch.is_over() || life::is_over() {
                return wishes.granted >= mine;
            }
        }
        true
    }

    /// Ends the pause, if there is one. Never waits.
    pub(super) fn nudge(&self) {
        self.asked.notify_one();
    }

    fn run(&self, source: &impl Source) {
        let mut pause = SHORT_PAUSE;
        let (mut flushed, mut looked, mut is_written) = (Instant::now(), Instant::now(), false);
        let (mut is_over, mut has_work) = (false, false);
        let mut flush_every = FLUSH_EVERY;
        threads::note_ours();
        loop {
            let (wish, up_to) = self.wait(pause);
            if life::is_over() {
                return;
            }
            MOST_HELD.fetch_max(capture::bytes_held(), Ordering::Relaxed);
            progress::made();
            // What there is left is for who writes down what there was.
            if shortage::is_short() {
                return source.end_for_want_of_memory();
            }
            let any = source.collect();
            if !has_work && source.has_work() {
                (has_work, flush_every, flushed) = (true, FIRST_FLUSH, Instant::now());
            }
            let wants_flush = source.wants_flush();
            let pause_between = if wants_flush { FLUSH_WHEN_BEHIND } else { flush_every };
            // Where buffers wait, the tracer fills them by itself; a flush would only hold us up.
            let due =
                wish <= Some(Wish::Read) && flushed.elapsed() >= pause_between && !capture::many_filled();
            if due || wish >= Some(Wish::Gather) {
                source.flush(wish == Some(Wish::Drain));
                flushed = Instant::now();
                flush_every = if alive::is_forked() { FLUSH_EVERY.min(2 * flush_every) } else { FLUSH_EVERY };
                is_written = false;
            } else if !is_written && (!any || flushed.elapsed() >= WRITE_AFTER) {
                source.write_down(false);
                is_written = true;
            }
            if wish.is_some() {
                source.collect_noted();
                source.answer();
            }
            if wish == Some(Wish::Flush) {
                source.write_down(true);
                is_written = true;
            }
            // And is at rest.
            if wish >= Some(Wish::Flush) {
                capture::rest();
            }
            // Whoever exits then still asks for the rest.
            if !any && !is_over && looked.elapsed() >= LOOK_AROUND_EVERY {
                looked = Instant::now();
                is_over = threads::only_ours_are_left();
                if is_over {
                    ending::exit_as_the_last_thread();
                }
            }
            pause = if any { SHORT_PAUSE } else { (2 * pause).min(source.longest_pause()) };
            self.grant(up_to);
        }
    }

    /// Waits for a wish, or for `pause`. Returns the wish, and up to which number it grants them.
    fn wait(&self, pause: Duration) -> (Option<Wish>, u64) {
        let mut wishes = self.wishes.lock();
        if wishes.open.is_none() {
            self.asked.wait_for(&mut wishes, pause);
        }
        (wishes.open.take(), wishes.made)
    }

    fn grant(&self, up_to: u64) {
        self.wishes.lock().granted = up_to;
        self.granted.notify_all();
    }
}

/// The most bytes it held: on the heap ever, mapped now, and both whenever the collector looked, which is before it
/// reads what waits for it.
pub(super) fn most_held() -> usize {
    MOST_HELD.load(Ordering::Relaxed).max(unwind::bytes_held() + tracer::bytes_held() + heap::most())
}

static MOST_HELD: AtomicUsize = AtomicUsize::new(0);
