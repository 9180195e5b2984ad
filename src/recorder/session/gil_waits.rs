//! Tracks the times at which launching threads wait for Python's global interpreter lock (GIL). Threads that launch no
//! GPU work are sampled only at about these times.

use gpuflame_model::record::ThreadId;

/// Maximum number of recent waits for the GIL that are remembered. The remembered waits decide which samples of other
/// threads are kept.
const MAX_GIL_WAITS: usize = 256;
/// Minimum time in ns between two listings of all Python threads.
const LISTING_NS: u64 = 100_000_000;
/// Time in ns after the end of a wait for the GIL that is counted as part of the wait. A thread that waits for the GIL
/// wakes up every 5 ms, and may then have to wait some milliseconds for a processor.
const GIL_WAIT_GRACE_NS: u64 = 10_000_000;
/// If no launching thread has begun a wait for the GIL for this time in ns, gpuflame stops sampling the other threads.
const GIL_WAITS_END_NS: u64 = 2_000_000_000;

/// Time ranges in which launching threads waited for Python's GIL.
#[derive(Debug, Default)]
pub(super) struct GilWaits {
    /// Thread, start and end of each recent wait. The end is `None` while the wait is in progress, and 0 if gpuflame
    /// does not know when the wait ended.
    recent: Vec<(ThreadId, u64, Option<u64>)>,
    /// Time at which the latest wait began.
    last: u64,
    /// Earliest time for the next listing of the process's Python threads.
    next_listing: u64,
    /// Whether the process's Python threads must be listed because a launching thread waits for the GIL.
    pub(super) is_listing_due: bool,
}

impl GilWaits {
    pub(super) fn begin(&mut self, thread: ThreadId, time: u64) {
        if self.recent.len() >= MAX_GIL_WAITS {
            self.recent.drain(..MAX_GIL_WAITS / 2);
        }
        self.recent.push((thread, time, None));
        self.last = time;
        // The condition after `||` is true only if the system clock was set back.
        if time >= self.next_listing || self.next_listing - time > LISTING_NS {
            (self.is_listing_due, self.next_listing) = (true, time + LISTING_NS);
        }
    }

    /// Ends the wait of a thread for the GIL. If the end of the wait is unknown, `time` is 0, and the wait does not
    /// count.
    pub(super) fn end(&mut self, thread: ThreadId, time: u64) {
        let open = self.recent.iter_mut().rev().find(|(waiting, _, _)| *waiting == thread);
        if let Some((_, _, end @ None)) = open {
            *end = Some(time);
        }
    }

    /// Whether a launching thread was waiting for the GIL at `time`, or had stopped waiting shortly before `time`.
    pub(super) fn any_at(&self, time: u64) -> bool {
        let is_before_end = |to: u64| to != 0 && time < to + GIL_WAIT_GRACE_NS;
        self.recent.iter().any(|(_, from, to)| *from <= time && to.is_none_or(is_before_end))
    }

    /// Whether other threads are no longer sampled, because no launching thread has begun a wait for the GIL in the
    /// last two seconds.
    pub(super) fn are_over(&self, now: u64) -> bool {
        now.abs_diff(self.last) > GIL_WAITS_END_NS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_threads_are_sampled_only_while_a_launching_thread_waits_for_the_gil() {
        let mut waits = GilWaits::default();
        let (one, two) = (ThreadId(1), ThreadId(2));
        waits.begin(one, 1000);
        assert!(waits.is_listing_due && !waits.any_at(999) && waits.any_at(1000) && waits.any_at(u64::MAX));
        waits.end(two, 1500);
        waits.end(one, 2000);
        assert!(waits.any_at(10_001_999) && !waits.any_at(10_002_000));
        waits.begin(two, 30_000_000);
        waits.end(two, 0);
        assert!(!waits.any_at(30_000_000), "the end of this wait is not known");
        (0..1000).for_each(|at| waits.begin(one, 5000 + at));
        assert!(waits.recent.len() <= MAX_GIL_WAITS);
    }

    #[test]
    fn threads_are_listed_again_and_forgotten_although_the_clock_was_set_back() {
        let (mut waits, second) = (GilWaits::default(), 1_000_000_000);
        let mut is_due = |time| {
            waits.begin(ThreadId(1), time);
            std::mem::take(&mut waits.is_listing_due)
        };
        let due = [900 * second, 900 * second + 1, 900 * second + LISTING_NS, 3 * second, 3 * second + 1];
        assert_eq!(due.map(&mut is_due), [true, false, true, true, false]);
        is_due(900 * second);
        assert!(!waits.are_over(901 * second) && waits.are_over(903 * second) && waits.are_over(2 * second));
    }
}
