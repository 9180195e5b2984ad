//! Sums over the streams of a device: the time for each number of simultaneously busy streams, launch delays, and
//! amounts for each part of the shown time.

use super::state::StateCause;
use std::collections::BTreeMap;

/// Time in ns for each number of streams that were busy at the same time, keyed by this number.
pub type Concurrency = BTreeMap<u64, u64>;

/// Launch delays. A launch delay is the time from the start of a launch call to the begin of the launched operation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delays {
    /// Delays of single operations in ns. The list of delays is sorted when all operations have been added.
    pub nanos: Vec<u64>,
    /// Total of the launch delays for each cause, in ns.
    pub by_cause: BTreeMap<StateCause, u64>,
}

/// Launch delays that are collected while the operations of a stream are visited.
#[derive(Debug, Default)]
pub(super) struct DelaySums {
    pub(super) nanos: Vec<u64>,
    pub(super) by_cause: SmallSums<StateCause>,
}

impl DelaySums {
    pub(super) fn finished(mut self) -> Delays {
        self.nanos.sort_unstable();
        Delays { nanos: self.nanos, by_cause: self.by_cause.into_map() }
    }
}

/// Sums for a small number of keys. The keys are in a list, because for few keys a linear search is faster than a tree.
#[derive(Debug)]
pub(super) struct SmallSums<K>(Vec<(K, u64)>);

impl<K> Default for SmallSums<K> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<K: Copy + Ord> SmallSums<K> {
    pub(super) fn add(&mut self, key: K, nanos: u64) {
        match self.0.iter_mut().find(|(known, _)| *known == key) {
            Some((_, sum)) => *sum = sum.saturating_add(nanos),
            None => self.0.push((key, nanos)),
        }
    }

    pub(super) fn into_map(self) -> BTreeMap<K, u64> {
        self.0.into_iter().collect()
    }
}

impl Delays {
    /// Returns the `percent`th percentile of the launch delays in ns, or `None` if there are no operations.
    pub fn percentile(&self, percent: usize) -> Option<u64> {
        let rank = (self.nanos.len() * percent).div_ceil(100).max(1);
        self.nanos.get(rank - 1).copied()
    }
}

/// Sums of one device in one of the equal parts of the shown time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeriesRow {
    /// Start of the part, in ns since 1970.
    pub start: u64,
    /// End of the part, in ns since 1970.
    pub end: u64,
    /// Time in which at least one stream was busy, in ns.
    pub busy_ns: u64,
    /// Total busy time of all streams, in ns.
    pub stream_ns: u64,
    /// Total time that operations were in flight (launched but not finished), summed over all operations, in ns.
    pub queue_ns: u64,
    /// Number of bytes that copies and fills moved.
    pub bytes: u64,
}

/// Sums for each of the equal parts of a time range.
#[derive(Clone, Debug)]
pub(super) struct SpanSums {
    shown: (u64, u64),
    step: u64,
    partial: Vec<u64>,
    /// For each part, the number of spans that cover the whole part, as the difference from the same number for the
    /// previous part.
    complete: Vec<i64>,
    /// Part that was looked up last, as (start, end, index). The next looked-up time is usually in the same part, so
    /// this field saves slow divisions.
    last: (u64, u64, usize),
}

impl SpanSums {
    pub(super) fn new(shown: (u64, u64), step: u64) -> Self {
        let parts = (shown.1 - shown.0).div_ceil(step) as usize;
        Self { shown, step, partial: vec![0; parts], complete: vec![0; parts + 1], last: (0, 0, 0) }
    }

    /// Returns the time range that is divided into parts.
    pub(super) fn shown(&self) -> (u64, u64) {
        self.shown
    }

    /// Returns the duration of a part, in ns.
    pub(super) fn step(&self) -> u64 {
        self.step
    }

    /// Adds a span: the sum of each part grows by the time in which the span overlaps the part.
    pub(super) fn add(&mut self, start: u64, end: u64) {
        let (start, end) = (start.max(self.shown.0), end.min(self.shown.1));
        if start >= end {
            return;
        }
        let (first, last) = (self.part(start), self.part(end - 1));
        if first == last {
            self.partial[first] = self.partial[first].saturating_add(end - start);
            return;
        }
        let [after_first, at_last] = [self.start_of(first + 1), self.start_of(last)];
        self.partial[first] = self.partial[first].saturating_add(after_first - start);
        self.partial[last] = self.partial[last].saturating_add(end - at_last);
        self.complete[first + 1] += 1;
        self.complete[last] -= 1;
    }

    /// Divides an amount among the parts that a span overlaps, in proportion to the durations of the overlaps. If the
    /// span has no duration, one part gets the whole amount.
    pub(super) fn add_amount(&mut self, start: u64, end: u64, amount: u64) {
        let within = self.shown.0..self.shown.1;
        if start >= end {
            if within.contains(&start) {
                let part = self.part(start);
                self.partial[part] = self.partial[part].saturating_add(amount);
            }
            return;
        }
        let moved =
            |until: u64| (u128::from(amount) * u128::from(until - start) / u128::from(end - start)) as u64;
        let (mut at, to) = (start.max(within.start), end.min(within.end));
        while at < to {
            let part = self.part(at);
            let next = self.start_of(part + 1).min(to);
            self.partial[part] = self.partial[part].saturating_add(moved(next) - moved(at));
            at = next;
        }
    }

    fn part(&mut self, time: u64) -> usize {
        if !(self.last.0..self.last.1).contains(&time) {
            let part = ((time - self.shown.0) / self.step) as usize;
            self.last = (self.start_of(part), self.start_of(part + 1), part);
        }
        self.last.2
    }

    fn start_of(&self, part: usize) -> u64 {
        self.shown.0.saturating_add((part as u64).saturating_mul(self.step))
    }

    /// Returns the sum for each part of the time range.
    pub(super) fn sums(&self) -> Vec<u64> {
        let mut covering = 0_i64;
        let add = |(partial, change): (&u64, &i64)| {
            covering += change;
            partial.saturating_add(covering.unsigned_abs().saturating_mul(self.step))
        };
        self.partial.iter().zip(&self.complete).map(add).collect()
    }
}
