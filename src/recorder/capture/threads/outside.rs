//! Counts launches made while no window is open ("outside windows"). Only the number of these launches and the range of
//! their correlation ids are recorded. Launches outside windows are not recorded one by one, because a program that
//! records one step in a thousand makes nearly all of its launches outside windows.
//!
//! The correlation ids of a thread's launches ascend. If a thread makes two launches outside windows and no window
//! opens between them, all launches of this thread with ids between the two ids were made outside windows, too.
//! Therefore each thread has one growing range, which the collector can read ([`SharedOutsideRange`]). The first launch
//! outside windows after another window begins a new range, and writes the previous range to the thread's log.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use gpuflame_model::record::{CorrelationId, Launch, Nanos, OutsideLaunches};

/// Maximum difference between the last id and the first id in a range. Ids wrap around, and with this limit, earlier
/// ids can still be distinguished from later ids.
const MAX_ID_SPAN: u32 = 1 << 24;

/// Maximum number of times that the collector tries to read a range that a thread is just writing. A write takes 10 ns.
const MAX_READ_ATTEMPTS: u32 = 64;

/// The current range of a thread's launches outside windows. Only that thread accesses it.
#[derive(Clone, Copy)]
pub(crate) struct OutsideRange {
    /// Number of windows that were opened before the range began.
    openings: u32,
    launches: OutsideLaunches,
}

impl OutsideRange {
    /// Adds a launch outside windows. `openings` is the number of windows that were opened before the launch. `last` is
    /// the last correlation id of the launch and its nested calls. If the launch does not fit into the current range,
    /// begins a new range and returns the previous range.
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

    /// Adds the correlation id of a call that is nested in the last launch of the range.
    pub(crate) fn extend(&mut self, last: CorrelationId) {
        self.launches.last = last;
    }

    pub(crate) fn launches(&self) -> &OutsideLaunches {
        &self.launches
    }
}

/// Copy of a thread's current range that the collector can read. A sequence lock protects the copy, which only the
/// thread writes.
pub(crate) struct SharedOutsideRange {
    /// Sequence number of the lock: odd while the thread writes; 0 if no range was written yet.
    sequence: AtomicU32,
    count: AtomicU32,
    /// Number of launches of the range that the collector has read so far.
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

    /// Publishes a range. Called by the thread that owns the range.
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

    /// Returns the number of launches in `range` that the collector has not read yet. Called when the range ends.
    pub(crate) fn unread(&self, range: &OutsideLaunches) -> u32 {
        range.count.wrapping_sub(self.read_count.load(Ordering::Acquire))
    }

    /// Reads the range. Called by the collector. Returns `None` if there is no range, or if the thread was in the
    /// middle of a write at every attempt, because it was preempted during the write.
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

/// Packs the first and the last id of a range into one word.
fn ids(range: &OutsideLaunches) -> u64 {
    u64::from(range.first.0) | u64::from(range.last.0) << 32
}

fn outside(ids: u64, count: u32, over: Nanos) -> OutsideLaunches {
    OutsideLaunches { first: CorrelationId(ids as u32), last: CorrelationId((ids >> 32) as u32), count, over }
}

/// Numbers of launches that the collector has read from a thread's ranges. The list has one entry for each range that
/// may still grow. The first id of a range identifies its entry.
#[derive(Default)]
pub(super) struct OutsideReader(Vec<OutsideLaunches>);

impl OutsideReader {
    pub(super) const fn new() -> Self {
        Self(Vec::new())
    }

    /// Returns the launches that were added to the growing range since the last call.
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

    /// Returns the launches of an ended range that the collector has not read yet.
    pub(super) fn ended(&mut self, range: OutsideLaunches) -> Option<OutsideLaunches> {
        let read = self.0.iter().position(|read| read.first == range.first).map(|at| self.0.swap_remove(at));
        let count = range.count.wrapping_sub(read.map_or(0, |read| read.count));
        (count > 0).then_some(OutsideLaunches { count, ..range })
    }
}
