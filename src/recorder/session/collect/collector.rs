//! The collector is the thread that gathers all rows. The collector reads the logs of the application's threads and
//! CUPTI's buffers, provides empty chunks for the logs, and flushes CUPTI about once a second.
//!
//! The collector holds none of gpuflame's locks while it calls CUPTI, because a flush calls back into gpuflame. The
//! callback runs on the collector's thread, or on another thread that holds CUPTI's own lock.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::capture;
use crate::control::lifecycle;
use gpuflame_cupti::tracer;
use gpuflame_model::error::{Error, ErrorKind, Result};
use gpuflame_os::{heap, process_liveness, shortage, threads};
use gpuflame_unwind as unwind;

use crate::session::process::panic::disable_after_panic;
use crate::session::process::progress::{self, POLL_INTERVAL, ProgressWatch, StallLimit};
use crate::session::process::shutdown;

/// Pause between two visits while rows arrive. (A visit is one iteration of the collector's loop.) The pause is short
/// enough that all rows that arrive during one pause fit into the empty log chunks.
const BUSY_PAUSE: Duration = Duration::from_millis(5);
/// Maximum pause while no rows arrive. The pause is long, so that an idle process is seldom woken.
pub(crate) const MAX_IDLE_PAUSE: Duration = Duration::from_millis(80);
/// Interval between flushes of CUPTI. Without flushes, CUPTI would deliver a buffer only when the buffer is full.
const FLUSH_INTERVAL: Duration = Duration::from_secs(1);

/// Time from the first launch to the first flush. The flush is due before the first checkpoint
/// (`FIRST_CHECKPOINT_DELAY`), so that the checkpoint can save the rows of the flush. This time is short because a
/// worker process may soon end by `_exit`. In a forked process, each interval between flushes is twice as long as the
/// previous interval, up to the full interval.
const FIRST_FLUSH_DELAY: Duration = Duration::from_millis(80);

/// Interval between flushes of CUPTI while many launches wait for their activity records.
const BACKLOG_FLUSH_INTERVAL: Duration = Duration::from_millis(50);

/// Maximum time from a flush of CUPTI until the flushed rows are written to the recording. The rows are written earlier
/// if all of them are read earlier.
const MAX_WRITE_DELAY: Duration = Duration::from_millis(200);

/// Interval between checks whether any thread of the application still runs. Each check takes about 10 us.
const LAST_THREAD_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Steps that the collector's loop delegates to the session.
pub(crate) trait CollectorSteps: Sync {
    /// Reads all finished rows, or a large part of them. Returns false if there were no finished rows.
    fn collect(&self) -> bool;

    /// Reads all rows that are finished at the time of the call.
    fn collect_noted(&self);

    /// Answers requests for statistics about the rows read so far.
    fn answer_stats_request(&self);

    /// Whether the application has launched any GPU work.
    fn has_work(&self) -> bool;

    /// Whether CUPTI should be flushed, because many launches wait for their activity records.
    fn wants_flush(&self) -> bool;

    /// Maximum pause while no rows arrive.
    fn max_idle_pause(&self) -> Duration;

    /// Makes CUPTI deliver completed activity records. If `everything` is true, CUPTI delivers incomplete records as
    /// well.
    fn flush(&self, everything: bool);

    /// Writes the rows read so far to the recording, so that they survive if the process dies. If `is_awaited` is true,
    /// waits until the rows are in the file.
    fn flush_recording(&self, is_awaited: bool);

    /// Stops recording because memory has run out.
    fn end_out_of_memory(&self);
}

/// Requests to the collector, in ascending order. If several requests are pending, only the highest is carried out,
/// because it includes the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CollectorRequest {
    /// Like `Collect`, but for a checkpoint. Checkpoints may be frequent, so this request does not delay a flush that
    /// is due.
    Read,
    /// Process the records that CUPTI has already delivered.
    Collect,
    /// Make CUPTI deliver the completed records, and process them.
    Gather,
    /// Like `Gather`, and also write the rows to disk.
    Flush,
    /// Make CUPTI deliver all records, complete or not, and process them.
    Drain,
}

#[derive(Debug, Default)]
pub(crate) struct Collector {
    requests: Mutex<PendingRequests>,
    requested: Condvar,
    granted: Condvar,
}

#[derive(Debug, Default)]
struct PendingRequests {
    highest: Option<CollectorRequest>,
    /// Number of requests made so far. `granted` is the number of requests carried out so far.
    made: u64,
    granted: u64,
}

impl Collector {
    /// Starts the thread.
    pub(crate) fn spawn(&'static self, steps: &'static impl CollectorSteps) -> Result<()> {
        let spawned = threads::spawn(c"gpuflame", threads::DEFAULT_STACK_BYTES, move || {
            let run = std::panic::AssertUnwindSafe(|| self.run(steps));
            if std::panic::catch_unwind(run).is_err() {
                disable_after_panic();
            }
            // The thread sleeps forever instead of ending, because a recording names this thread as its writer, and
            // readers of the file regard the process as alive while that thread exists.
            threads::park_forever()
        });
        spawned.map_err(|error| {
            Error::new(
                ErrorKind::State,
                format!("cannot start a thread ({error}); raise the limit on threads"),
            )
        })
    }

    /// Makes a request to the collector and waits until the request is carried out. Returns false if the collector
    /// makes no progress for the time `limit`.
    pub(crate) fn request(&self, request: CollectorRequest, limit: StallLimit) -> bool {
        let mut watch = ProgressWatch::new(limit);
        // The wait for the lock has a limit, because a signal may have interrupted the thread that holds the lock, and
        // that thread may never continue.
        let Some(mut requests) = self.requests.try_lock_for(limit.foreign) else { return false };
        requests.made += 1;
        let mine = requests.made;
        requests.highest = requests.highest.max(Some(request));
        self.requested.notify_one();
        while requests.granted < mine {
            self.granted.wait_for(&mut requests, POLL_INTERVAL);
            if watch.is_exceeded() || lifecycle::is_over() {
                return requests.granted >= mine;
            }
        }
        true
    }

    /// Ends the collector's pause, if it is pausing. Never waits.
    pub(crate) fn wake(&self) {
        self.requested.notify_one();
    }

    fn run(&self, steps: &impl CollectorSteps) {
        let mut pause = BUSY_PAUSE;
        let (mut flushed, mut last_thread_check, mut is_written) = (Instant::now(), Instant::now(), false);
        let (mut is_over, mut has_work) = (false, false);
        let mut flush_interval = FLUSH_INTERVAL;
        threads::note_ours();
        loop {
            let (request, count) = self.wait(pause);
            if lifecycle::is_over() {
                return;
            }
            note_peak_bytes_held();
            progress::note_step();
            // The remaining memory is reserved for saving the rows recorded so far.
            if shortage::is_short() {
                return steps.end_out_of_memory();
            }
            let any = steps.collect();
            if !has_work && steps.has_work() {
                (has_work, flush_interval, flushed) = (true, FIRST_FLUSH_DELAY, Instant::now());
            }
            let wants_flush = steps.wants_flush();
            let pause_between = if wants_flush { BACKLOG_FLUSH_INTERVAL } else { flush_interval };
            // If several filled buffers wait, CUPTI delivers buffers without a flush, and a flush would only slow
            // gpuflame down.
            let due = request <= Some(CollectorRequest::Read)
                && flushed.elapsed() >= pause_between
                && !capture::are_many_filled();
            if due || request >= Some(CollectorRequest::Gather) {
                steps.flush(request == Some(CollectorRequest::Drain));
                flushed = Instant::now();
                flush_interval = if process_liveness::is_forked() {
                    FLUSH_INTERVAL.min(2 * flush_interval)
                } else {
                    FLUSH_INTERVAL
                };
                is_written = false;
            } else if !is_written && (!any || flushed.elapsed() >= MAX_WRITE_DELAY) {
                steps.flush_recording(false);
                is_written = true;
            }
            if request.is_some() {
                steps.collect_noted();
                steps.answer_stats_request();
            }
            if request == Some(CollectorRequest::Flush) {
                steps.flush_recording(true);
                is_written = true;
            }
            // After a flush request, launches are expected to pause. Therefore the memory of empty buffers is released.
            if request >= Some(CollectorRequest::Flush) {
                capture::release_ready_memory();
            }
            // The collector continues after it has started the exit, because the exit needs the collector to read the
            // remaining rows.
            if !any && !is_over && last_thread_check.elapsed() >= LAST_THREAD_CHECK_INTERVAL {
                last_thread_check = Instant::now();
                is_over = threads::are_only_ours_left();
                if is_over {
                    shutdown::exit_as_the_last_thread();
                }
            }
            pause = if any { BUSY_PAUSE } else { (2 * pause).min(steps.max_idle_pause()) };
            self.grant(count);
        }
    }

    /// Waits for a request, but at most for `pause`. Returns the highest pending request, and the number of requests
    /// made so far. All requests are carried out together.
    fn wait(&self, pause: Duration) -> (Option<CollectorRequest>, u64) {
        let mut requests = self.requests.lock();
        if requests.highest.is_none() {
            self.requested.wait_for(&mut requests, pause);
        }
        (requests.highest.take(), requests.made)
    }

    fn grant(&self, count: u64) {
        self.requests.lock().granted = count;
        self.granted.notify_all();
    }
}

/// Returns the peak of gpuflame's memory in bytes. On each visit, the collector adds the mapped memory to the heap's
/// peak since the previous visit. The result is the maximum of these sums.
pub(crate) fn peak_bytes_held() -> usize {
    PEAK_BYTES_HELD.load(Ordering::Relaxed).max(mapped_bytes() + heap::peak_bytes())
}

fn note_peak_bytes_held() {
    PEAK_BYTES_HELD.fetch_max(mapped_bytes() + heap::take_peak_bytes(), Ordering::Relaxed);
}

/// Number of bytes that gpuflame has mapped, including the buffers for activity records.
fn mapped_bytes() -> usize {
    unwind::bytes_held() + tracer::bytes_held()
}

static PEAK_BYTES_HELD: AtomicUsize = AtomicUsize::new(0);
