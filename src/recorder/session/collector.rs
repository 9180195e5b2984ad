//! The collector is the thread that gathers rows: it reads the logs of the application's threads and CUPTI's
//! buffers, keeps chunks ready, and flushes CUPTI about once a second.
//!
//! None of our locks is held while CUPTI is called, because a flush calls back into gpuflame, on this thread or on
//! another thread that holds CUPTI's own lock.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::capture;
use crate::control::life;
use gpuflame_cupti::tracer;
use gpuflame_model::error::{Error, ErrorKind, Result};
use gpuflame_os::{alive, heap, shortage, threads};
use gpuflame_unwind as unwind;

use super::ending;
use super::panic::disable_after_panic;
use super::progress::{self, LOOK_EVERY, Limit, Watch};

/// Pause between two visits while rows arrive. The pause is short enough that the rows of one pause fit into the ready
/// chunks.
const SHORT_PAUSE: Duration = Duration::from_millis(5);
/// Maximum pause when no rows arrive, so that an idle process is seldom woken.
pub(super) const LONGEST_PAUSE: Duration = Duration::from_millis(80);
/// Interval between flushes. CUPTI delivers a buffer by itself only when the buffer is full.
const FLUSH_EVERY: Duration = Duration::from_secs(1);

/// Time from the first launch to the next flush, whose rows the first checkpoint needs. This time is short, because a
/// worker process may soon end by `_exit`. In a forked process the following intervals double.
const FIRST_FLUSH: Duration = Duration::from_millis(80);

/// Interval between flushes while many launches wait for their activities.
const FLUSH_WHEN_BEHIND: Duration = Duration::from_millis(50);

/// Maximum time after a flush until its rows are written to the recording. If all rows are read earlier, they are
/// written earlier.
const WRITE_AFTER: Duration = Duration::from_millis(200);

/// Interval between checks whether the application still has a thread. A check takes about 10 us.
const LOOK_AROUND_EVERY: Duration = Duration::from_secs(1);

/// Operations that the collector calls.
pub(super) trait Source: Sync {
    /// Reads all rows that are ready, or a large part of them. Returns false if no rows were ready.
    fn collect(&self) -> bool;

    /// Reads all rows that are ready now.
    fn collect_noted(&self);

    /// Answers requests about the rows read so far.
    fn answer(&self);

    /// Whether the application has launched anything.
    fn has_work(&self) -> bool;

    /// Whether many launches wait for their activities.
    fn wants_flush(&self) -> bool;

    /// Maximum pause when no rows arrive.
    fn longest_pause(&self) -> Duration;

    /// Makes CUPTI deliver completed records or, if `everything`, also incomplete records.
    fn flush(&self, everything: bool);

    /// Writes the rows read so far to the recording, so that these rows survive the process. If `is_awaited`, waits
    /// until the file is written.
    fn write_down(&self, is_awaited: bool);

    /// Stops gathering because memory ran out.
    fn end_for_want_of_memory(&self);
}

/// Requests to the collector, in ascending order. If several requests are pending, the highest request is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Wish {
    /// Like `Collect`, for a checkpoint. Checkpoints may be frequent, so this request does not delay a flush that is
    /// due.
    Read,
    /// Process the records that were already delivered.
    Collect,
    /// Flush the completed records, and process these records.
    Gather,
    /// Like `Gather`, and write the rows to disk.
    Flush,
    /// Flush all records, complete or not, and process these records.
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
    /// Number of requests made, and number of requests granted.
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
            // A recording names this thread as its writer, so the process counts as alive while the thread exists. The
            // thread therefore stops instead of ending.
            threads::stop()
        });
        spawned.map_err(|error| {
            Error::new(
                ErrorKind::State,
                format!("cannot start a thread ({error}); raise the limit on threads"),
            )
        })
    }

    /// Makes a request and waits until it is granted. Returns false if the collector makes no progress within the limit.
    pub(super) fn ask(&self, wish: Wish, limit: Limit) -> bool {
        let mut watch = Watch::new(limit);
        // The thread that holds the lock may have been interrupted by a signal, and may never continue.
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

    /// Ends the collector's pause, if the collector pauses. Never waits.
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
            // The remaining memory is reserved for saving the rows recorded so far.
            if shortage::is_short() {
                return source.end_for_want_of_memory();
            }
            let any = source.collect();
            if !has_work && source.has_work() {
                (has_work, flush_every, flushed) = (true, FIRST_FLUSH, Instant::now());
            }
            let wants_flush = source.wants_flush();
            let pause_between = if wants_flush { FLUSH_WHEN_BEHIND } else { flush_every };
            // If several filled buffers wait, CUPTI delivers buffers without a flush, and a flush would only slow us
            // down.
            let due =
                wish <= Some(Wish::Read) && flushed.elapsed() >= pause_between && !capture::are_many_filled();
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
            // The collector becomes idle now, so the memory of ready buffers is released.
            if wish >= Some(Wish::Flush) {
                capture::release_ready_memory();
            }
            // The collector continues after it starts this exit, because the exit requests the remaining rows from the
            // collector.
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

    /// Waits for a request, or for `pause`. Returns the request, and the number of requests that it grants.
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

/// Peak memory in bytes: the heap's peak plus the memory mapped now, or the highest total that the collector has seen.
/// The collector computes this total before it reads pending rows.
pub(super) fn most_held() -> usize {
    MOST_HELD.load(Ordering::Relaxed).max(unwind::bytes_held() + tracer::bytes_held() + heap::most())
}

static MOST_HELD: AtomicUsize = AtomicUsize::new(0);
