//! The collector is the thread that gathers all rows of the recording. The collector reads the logs of the
//! application's threads and CUPTI's buffers, provides empty chunks for the logs, and flushes CUPTI about once a
//! second.
//!
//! The collector holds none of gpuflame's locks while it calls CUPTI, because CUPTI calls back into gpuflame during a
//! flush. The called code of gpuflame runs on the collector's thread, or on another thread that holds CUPTI's own lock.

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

/// Pause between two visits while rows arrive. A visit is one iteration of the collector's loop. The pause is short, so
/// that the rows that arrive during the pause fit into the empty log chunks.
const BUSY_PAUSE: Duration = Duration::from_millis(5);
/// Maximum pause between two visits while no rows arrive. This pause is long, so that an idle process is seldom woken
/// up.
pub(crate) const MAX_IDLE_PAUSE: Duration = Duration::from_millis(80);
/// Interval between flushes of CUPTI. Without flushes, CUPTI would deliver a buffer only when the buffer is full.
const FLUSH_INTERVAL: Duration = Duration::from_secs(1);

/// Time from the first launch to the first flush of CUPTI. This flush comes before the first checkpoint
/// (`FIRST_CHECKPOINT_DELAY`), so that the checkpoint can save the rows from the flush. This time is short, because a
/// worker process may soon end by `_exit`. In a forked process, each interval between flushes is twice as long as the
/// previous interval, up to the full interval.
const FIRST_FLUSH_DELAY: Duration = Duration::from_millis(80);

/// Interval between flushes of CUPTI while many launches wait for activity records.
const BACKLOG_FLUSH_INTERVAL: Duration = Duration::from_millis(50);

/// Maximum time from a flush of CUPTI until the flushed rows are written to the recording. If all flushed rows are read
/// before this time is over, they are written immediately.
const MAX_WRITE_DELAY: Duration = Duration::from_millis(200);

/// Interval between checks whether any thread of the application is still running. Each check takes about 10 us.
const LAST_THREAD_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Steps of the collector's loop that the session carries out.
pub(crate) trait CollectorSteps: Sync {
    /// Reads all finished rows, or a large part of these rows. Returns false if there were no finished rows.
    fn collect(&self) -> bool;

    /// Reads all rows that are finished when this function is called.
    fn collect_noted(&self);

    /// Answers requests of the program for statistics about the rows that were read so far.
    fn answer_stats_request(&self);

    /// Whether the application has launched any GPU work.
    fn has_work(&self) -> bool;

    /// Whether CUPTI should be flushed because many launches wait for activity records.
    fn wants_flush(&self) -> bool;

    /// Maximum pause between two visits while no rows arrive.
    fn max_idle_pause(&self) -> Duration;

    /// Makes CUPTI deliver the completed activity records. If `everything` is true, CUPTI also delivers incomplete
    /// records.
    fn flush(&self, everything: bool);

    /// Writes the rows that were read so far to the recording, so that they survive if the process dies. If
    /// `is_awaited` is true, waits until these rows are in the file.
    fn flush_recording(&self, is_awaited: bool);

    /// Stops recording because memory has run out.
    fn end_out_of_memory(&self);
}

/// Requests to the collector, in ascending order of the work that they require. If several requests are pending, the
/// collector carries out only the highest request, which includes the work for the lower requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CollectorRequest {
    /// Like `Collect`, but for a checkpoint. Checkpoints may be frequent, so this request does not postpone the next
    /// flush of CUPTI.
    Read,
    /// Process the activity records that CUPTI has already delivered.
    Collect,
    /// Make CUPTI deliver the completed activity records, and process them.
    Gather,
    /// Like `Gather`, but also write the rows to disk.
    Flush,
    /// Make CUPTI deliver all activity records, whether they are complete or not, and process them.
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
    /// Number of requests to the collector so far. `granted` is the number of requests that were carried out so far.
    made: u64,
    granted: u64,
}

impl Collector {
    /// Starts the collector's thread.
    pub(crate) fn spawn(&'static self, steps: &'static impl CollectorSteps) -> Result<()> {
        let spawned = threads::spawn(c"gpuflame", threads::DEFAULT_STACK_BYTES, move || {
            let run = std::panic::AssertUnwindSafe(|| self.run(steps));
            if std::panic::catch_unwind(run).is_err() {
                disable_after_panic();
            }
            // The collector's thread sleeps forever instead of ending. A recording names this thread as its writer, and
            // programs that read the file conclude from the thread's existence that the process is alive.
            threads::park_forever()
        });
        spawned.map_err(|error| {
            Error::new(
                ErrorKind::State,
                format!("cannot start a thread ({error}); raise the limit on threads"),
            )
        })
    }

    /// Makes a request to the collector, and waits until the collector has carried it out. Returns false if the
    /// collector makes no progress for the time `limit`.
    pub(crate) fn request(&self, request: CollectorRequest, limit: StallLimit) -> bool {
        let mut watch = ProgressWatch::new(limit);
        // The wait for this lock is limited. The reason is that a signal may have interrupted the thread that holds the
        // lock, and that thread may never continue.
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

    /// Ends the current pause of the collector, if there is one. This function never waits.
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
            // When memory is short, the session ends here, because the remaining memory is needed to save the rows that
            // were recorded so far.
            if shortage::is_short() {
                return steps.end_out_of_memory();
            }
            let any = steps.collect();
            if !has_work && steps.has_work() {
                (has_work, flush_interval, flushed) = (true, FIRST_FLUSH_DELAY, Instant::now());
            }
            let wants_flush = steps.wants_flush();
            let pause_between = if wants_flush { BACKLOG_FLUSH_INTERVAL } else { flush_interval };
            // If many filled buffers are waiting, CUPTI delivers buffers even without a flush, so a flush would only
            // slow gpuflame down.
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
            // After a request to flush, the program will probably pause its launches. Therefore the memory of empty
            // buffers is returned to the kernel at this time.
            if request >= Some(CollectorRequest::Flush) {
                capture::release_ready_memory();
            }
            // The collector continues after it has started the exit of the process, because it still has to read the
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

    /// Waits for a request to the collector, but at most for `pause`. Returns the highest pending request, and the
    /// number of requests that were made so far. All pending requests are then carried out together.
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

/// Returns the maximum number of bytes of memory that gpuflame has held. On each visit, the collector adds the mapped
/// memory and the peak of the heap since the previous visit. The returned number is the largest of these sums.
pub(crate) fn peak_bytes_held() -> usize {
    PEAK_BYTES_HELD.load(Ordering::Relaxed).max(mapped_bytes() + heap::peak_bytes())
}

fn note_peak_bytes_held() {
    PEAK_BYTES_HELD.fetch_max(mapped_bytes() + heap::take_peak_bytes(), Ordering::Relaxed);
}

/// Number of bytes that gpuflame has mapped, counting the buffers for activity records too.
fn mapped_bytes() -> usize {
    unwind::bytes_held() + tracer::bytes_held()
}

static PEAK_BYTES_HELD: AtomicUsize = AtomicUsize::new(0);
