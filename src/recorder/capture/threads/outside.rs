//! Counts the launches that are made while no window is open ("outside windows"). Only the number of these launches and
//! the interval in which their correlation ids are (a "range") are recorded. The launches are not recorded
//! individually, because a program that records one step in a thousand makes nearly all of its launches outside
//! windows.
//!
//! The correlation ids of a thread's launches increase. If no window opens between two launches that a thread makes
//! outside windows, all launches of this thread with ids between these two ids were also made outside windows.
//! Therefore each thread has one range, which grows with each launch and which the collector can read
//! ([`SharedOutsideRange`]). If a window was open after the thread's previous launch outside windows, the thread's next
//! launch outside windows begins a new range. The previous range is then written to the thread's log.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use gpuflame_model::record::{CorrelationId, Launch, Nanos, OutsideLaunches};

/// Maximum difference between the last and the first correlation id in a range. Correlation ids wrap around. Because of
/// this limit, earlier ids can still be distinguished from later ids.
const MAX_ID_SPAN: u32 = 1 << 24;

/// Maximum number of attempts of the collector to read a range while a thread is writing it. A thread writes a range in
/// 10 ns.
const MAX_READ_ATTEMPTS: u32 = 64;

/// Current range of a thread's launches outside windows. Only the thread that makes the launches accesses this range.
#[derive(Clone, Copy)]
pub(crate) struct OutsideRange {
    /// Number of windows that had been opened when the range began.
    openings: u32,
    launches: OutsideLaunches,
}

impl OutsideRange {
    /// Adds a launch outside windows to a range. `openings` is the number of windows that had been opened when the
    /// launch was made. `last` is the last of the correlation ids of the launch and its nested calls. If the launch
    /// does not fit into the current range, begins a new range and returns the previous range.
    pub(crate) fn add(
        range: &mut Option<Self>,
        openings: u32,
        launch: &Launch,
        last: CorrelationId,
        over: Nanos,
    ) -> Option<OutsideLaunches> {
        if let Some(Self { launches, .. }) = range.as_mut().filter(|range| range.accepts(openings, last)) {
            launches.last = last;
            launches.count = launches.count.wrapping_add(1);
            launches.over = over;
            return None;
        }
        let launches = OutsideLaunches { first: launch.correlation, last, count: 1, over };
        range.replace(Self { openings, launches }).map(|ended| ended.launches)
    }

    fn accepts(&self, openings: u32, id: CorrelationId) -> bool {
        self.openings == openings && id.0.wrapping_sub(self.launches.first.0) < MAX_ID_SPAN
    }

    /// Adds the correlation id of a call that is nested in the range's last launch.
    pub(crate) fn extend(&mut self, last: CorrelationId) {
        self.launches.last = last;
    }

    pub(crate) fn launches(&self) -> &OutsideLaunches {
        &self.launches
    }
}

/// A copy of a thread's current range, which the collector can read. A sequence lock protects the copy, and only the
/// thread writes it.
pub(crate) struct SharedOutsideRange {
    /// Sequence number of the lock, which is odd while the thread writes, and 0 if no range was written yet.
    sequence: AtomicU32,
    count: AtomicU32,
    /// Number of launches in the range that the collector has read so far.
    read_count: AtomicU32,
    ids: AtomicU64,
    over: AtomicU64,
}

impl SharedOutsideRange {
    pub(super) const fn new() -> Self {
        let [sequence, count, read_count] = [const { AtomicU32::new(0) }; 3];
        let [ids, over] = [const { AtomicU64::new(0) }; 2];
        Self { sequence, count, read_count, ids, over }
    }

    /// Publishes a range to the collector. Called by the thread to which the range belongs.
    pub(crate) fn set(&self, range: &OutsideLaunches) {
        let sequence = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(sequence.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        if range.count == 1 {
            self.read_count.store(0, Ordering::Relaxed);
        }
        self.ids.store(ids(range), Ordering::Relaxed);
        self.count.store(range.count, Ordering::Relaxed);
        self.over.store(range.over.0, Ordering::Relaxed);
        self.sequence.store(sequence.wrapping_add(2).max(2), Ordering::Release);
    }

    /// Returns the number of launches in the range that the collector has not read yet. This function is called when a
    /// new range replaces the range.
    pub(crate) fn unread(&self, range: &OutsideLaunches) -> u32 {
        range.count.wrapping_sub(self.read_count.load(Ordering::Acquire))
    }

    /// Reads the range. Only the collector calls this function. Returns `None` if there is no range. Also returns
    /// `None` if the thread was in the middle of a write at every attempt, because it was preempted.
    fn get(&self) -> Option<OutsideLaunches> {
        for _ in 0..MAX_READ_ATTEMPTS {
            let sequence = self.sequence.load(Ordering::Acquire);
            if sequence == 0 {
                return None;
            }
            if let Some(range) = self.get_in(sequence) {
                return Some(range);
            }
            std::thread::yield_now();
        }
        None
    }

    fn get_in(&self, sequence: u32) -> Option<OutsideLaunches> {
        let ids = self.ids.load(Ordering::Relaxed);
        let (count, over) = (self.count.load(Ordering::Relaxed), Nanos(self.over.load(Ordering::Relaxed)));
        fence(Ordering::Acquire);
        let is_consistent = sequence.is_multiple_of(2) && self.sequence.load(Ordering::Relaxed) == sequence;
        is_consistent.then(|| outside(ids, count, over))
    }
}

/// Packs the first and the last correlation id of a range into one word.
fn ids(range: &OutsideLaunches) -> u64 {
    u64::from(range.first.0) | u64::from(range.last.0) << 32
}

fn outside(ids: u64, count: u32, over: Nanos) -> OutsideLaunches {
    OutsideLaunches { first: CorrelationId(ids as u32), last: CorrelationId((ids >> 32) as u32), count, over }
}

/// For each range, the number of its launches that the collector has already read. The list contains only the ranges
/// that may still grow. A range is identified by its first correlation id.
#[derive(Default)]
pub(super) struct OutsideReader(Vec<OutsideLaunches>);

impl OutsideReader {
    pub(super) const fn new() -> Self {
        Self(Vec::new())
    }

    /// Returns the launches that were added to the growing range since the last call of this function.
    pub(super) fn grown(&mut self, growing: &SharedOutsideRange) -> Option<OutsideLaunches> {
        let range = growing.get()?;
        let before = match self.0.iter_mut().find(|read| read.first == range.first) {
            Some(read) => std::mem::replace(&mut read.count, range.count),
            None => {
                self.0.push(range);
                0
            }
        };
        growing.read_count.store(range.count, Ordering::Release);
        let count = range.count.wrapping_sub(before);
        (count > 0).then_some(OutsideLaunches { count, ..range })
    }

    /// Returns the launches in an ended range that the collector has not read yet.
    pub(super) fn ended(&mut self, range: OutsideLaunches) -> Option<OutsideLaunches> {
        let read = self.0.iter().position(|read| read.first == range.first).map(|at| self.0.swap_remove(at));
        let count = range.count.wrapping_sub(read.map_or(0, |read| read.count));
        (count > 0).then_some(OutsideLaunches { count, ..range })
    }
}
