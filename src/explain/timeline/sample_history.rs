//! Stores CPU samples and off-CPU waits of threads, to find out what these threads did while a GPU waited for them.
//! Module `call_history` finds the two calls between which a thread delayed a launch. Samples show which code a thread
//! ran between two calls.
//!
//! The period that a sample represents is longer than most gaps. So the samples in all gaps between the same two calls
//! are summed first. The idle time of these gaps is then divided in proportion (`divide_idle`). While a thread waits
//! off-CPU, no samples are taken. If context switches were recorded, the part of a wait that is inside a gap is charged
//! to the stack that waited. If context switches were not recorded, this part of the gap stays attributed to the two
//! calls.
//!
//! If another thread made the first of the two calls, the thread with the late launch has often waited for that thread.
//! For example, PyTorch's thread for the backward pass waits until the main thread passes it work. In that case, the
//! stacks that the other thread had during the wait are used instead of the stack that waited.

use std::cmp::Reverse;
use std::collections::VecDeque;

use super::idle_culprit::IdleAmount;
use gpuflame_model::record::{ContextId, CpuSample, IdMap, OffCpuWait, ThreadId, map_bytes};

/// Maximum number of samples (16 bytes each) and waits (24 bytes each) that are stored. Gaps are accounted for soon
/// after they end, so older samples and waits are not needed.
const MAX_SAMPLES: usize = 1 << 16;
/// When this number of samples and waits is reached, those that cannot be inside any future gap are dropped.
const SAMPLES_HIGH_WATER: usize = 1 << 12;

/// CPU samples and off-CPU waits of all threads. See the module's documentation.
#[derive(Clone, Debug)]
pub(super) struct SampleHistory {
    threads: IdMap<ThreadId, VecDeque<StoredSample>>,
    waits: IdMap<ThreadId, VecDeque<StoredWait>>,
    count: usize,
    /// When this number of samples and waits is reached, unneeded entries are dropped again.
    drop_at: usize,
    max_samples: usize,
}

/// A CPU sample of a thread, without the thread's id.
#[derive(Clone, Copy, Debug)]
struct StoredSample {
    time: u64,
    period: u32,
    context: ContextId,
}

/// An off-CPU wait of a thread, and the stack that waited. Waits of the same thread do not overlap.
#[derive(Clone, Copy, Debug)]
struct StoredWait {
    from: u64,
    to: u64,
    context: ContextId,
}

const _: () = assert!(size_of::<StoredSample>() == 16, "a sample grew: up to 65,536 samples are stored");
const _: () = assert!(size_of::<StoredWait>() == 24, "a wait grew: up to 65,536 waits are stored");

impl Default for SampleHistory {
    fn default() -> Self {
        let (threads, waits) = Default::default();
        Self { threads, waits, count: 0, drop_at: SAMPLES_HIGH_WATER, max_samples: MAX_SAMPLES }
    }
}

impl SampleHistory {
    /// Creates a history that uses at most about `bytes` bytes.
    pub(super) fn bounded(bytes: usize) -> Self {
        let max_samples = (bytes / size_of::<StoredSample>()).min(MAX_SAMPLES);
        Self { max_samples, drop_at: SAMPLES_HIGH_WATER.min(max_samples), ..Self::default() }
    }

    /// Adds a CPU sample. Unless the clock was set, the samples of each thread arrive in order of time.
    pub(super) fn add(&mut self, sampled: &CpuSample) {
        let CpuSample { time, period, thread, context } = *sampled;
        let entries = self.threads.entry(thread).or_default();
        let at = entries.partition_point(|sample| sample.time <= time.0);
        entries.insert(at, StoredSample { time: time.0, period, context });
        self.count += 1;
    }

    /// Adds an off-CPU wait. Unless the clock was set, the waits of each thread arrive in order of time.
    pub(super) fn add_blocked(&mut self, blocked: &OffCpuWait) {
        let OffCpuWait { time, duration, thread, context } = *blocked;
        let entries = self.waits.entry(thread).or_default();
        let at = entries.partition_point(|waited| waited.from <= time.0);
        entries.insert(at, StoredWait { from: time.0, to: time.0.saturating_add(duration), context });
        self.count += 1;
    }

    /// Returns the stacks of a thread in `from..to`, each with a time in ns. The time is the period of a sample, or the
    /// part of a wait that is inside `from..to`.
    pub(super) fn within(
        &self,
        thread: ThreadId,
        from: u64,
        to: u64,
    ) -> impl Iterator<Item = (ContextId, u64)> {
        let waited = self.waits_within(thread, from, to);
        self.samples_within(thread, from, to)
            .chain(waited.map(|(context, from, to)| (context, to.saturating_sub(from))))
    }

    /// Returns the stacks in `from..to` as [`SampleHistory::within`] does, for a gap that began with a call of the
    /// thread `other`. If `other` was sampled while `thread` waited, the stacks of `other` replace the waits of
    /// `thread`.
    pub(super) fn within_hand_over(
        &self,
        (thread, other): (ThreadId, Option<ThreadId>),
        from: u64,
        to: u64,
    ) -> Vec<(ContextId, u64)> {
        let Some(other) = other.filter(|other| self.threads.contains_key(other)) else {
            return self.within(thread, from, to).collect();
        };
        let meanwhile = self.waits_within(thread, from, to);
        let meanwhile = meanwhile.flat_map(|(_, from, to)| self.within(other, from, to));
        self.samples_within(thread, from, to).chain(meanwhile).collect()
    }

    /// Returns the stacks of the samples in `from..to`, each with the period of the sample in ns.
    fn samples_within(&self, thread: ThreadId, from: u64, to: u64) -> impl Iterator<Item = (ContextId, u64)> {
        let found = self.threads.get(&thread).into_iter().flat_map(move |entries| {
            let first = entries.partition_point(|sample| sample.time < from);
            entries.range(first..).take_while(move |sample| sample.time < to)
        });
        found.map(|sample| (sample.context, u64::from(sample.period)))
    }

    /// Returns the stacks of the waits that overlap `from..to`, each with the start and end of the overlap.
    fn waits_within(
        &self,
        thread: ThreadId,
        from: u64,
        to: u64,
    ) -> impl Iterator<Item = (ContextId, u64, u64)> {
        let waited = self.waits.get(&thread).into_iter().flat_map(move |entries| {
            let first = entries.partition_point(|waited| waited.to <= from);
            entries.range(first..).take_while(move |waited| waited.from < to)
        });
        waited.map(move |one| (one.context, one.from.max(from), one.to.min(to)))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether there are so many samples and waits that [`SampleHistory::forget`] should be called.
    pub(super) fn is_crowded(&self) -> bool {
        self.count >= self.drop_at
    }

    /// Calls `is_over` with the time of each sample and wait, and drops those for which it returns true. `is_over` must
    /// return true only if no future gap can contain the time. If too many samples and waits remain, the older half of
    /// them is dropped.
    pub(super) fn forget(&mut self, is_over: impl Fn(u64, u64) -> bool) {
        self.threads.values_mut().for_each(|entries| entries.retain(|one| !is_over(one.time, one.time + 1)));
        self.waits.values_mut().for_each(|entries| entries.retain(|one| !is_over(one.from, one.to)));
        self.shrink();
        if self.count >= self.max_samples {
            self.threads.values_mut().for_each(drop_older_half);
            self.waits.values_mut().for_each(drop_older_half);
            self.shrink();
        }
        self.drop_at = (2 * self.count).clamp(SAMPLES_HIGH_WATER.min(self.max_samples), self.max_samples);
    }

    fn shrink(&mut self) {
        self.count = shrink(&mut self.threads) + shrink(&mut self.waits);
    }

    /// Replaces each context by the context that the function `context` returns for it.
    pub(super) fn rename(&mut self, context: impl Fn(ContextId) -> ContextId) {
        for sample in self.threads.values_mut().flatten() {
            sample.context = context(sample.context);
        }
        for waited in self.waits.values_mut().flatten() {
            waited.context = context(waited.context);
        }
    }

    pub(super) fn heap_bytes(&self) -> usize {
        let entries = self.threads.values().map(|entries| entries.capacity() * size_of::<StoredSample>());
        let waits = self.waits.values().map(|entries| entries.capacity() * size_of::<StoredWait>());
        entries.chain(waits).sum::<usize>() + map_bytes(&self.threads) + map_bytes(&self.waits)
    }
}

fn drop_older_half<T>(entries: &mut VecDeque<T>) {
    entries.drain(..entries.len().div_ceil(2));
}

/// Releases unused memory, and returns the number of remaining entries.
fn shrink<T>(threads: &mut IdMap<ThreadId, VecDeque<T>>) -> usize {
    threads.retain(|_, entries| !entries.is_empty());
    threads.values_mut().for_each(|entries| entries.shrink_to(2 * entries.len()));
    threads.values().map(VecDeque::len).sum()
}

/// Divides the time `idle` among the stacks in `found`. Each stack in `found` has the time in ns that its samples and
/// waits represent. In the result, the entry `None` is the remaining time that belongs to no stack. If the samples
/// represent more time than `idle`, the idle time is divided in proportion to the times of the samples. The number of
/// gaps in `idle` is assigned to the largest part.
pub(super) fn divide_idle(
    idle: IdleAmount,
    mut found: Vec<(ContextId, u64)>,
) -> Vec<(Option<ContextId>, IdleAmount)> {
    found.sort_unstable_by_key(|(context, nanos)| (Reverse(*nanos), context.0));
    let sampled: u64 = found.iter().map(|(_, nanos)| *nanos).sum();
    let mut left = idle.nanos;
    let mut parts: Vec<(Option<ContextId>, IdleAmount)> = found
        .into_iter()
        .map(|(context, nanos)| {
            let nanos = match sampled > idle.nanos {
                true => (u128::from(nanos) * u128::from(idle.nanos) / u128::from(sampled)) as u64,
                false => nanos,
            };
            left -= nanos;
            (Some(context), IdleAmount { nanos, gaps: 0, context: None })
        })
        .collect();
    match parts.first_mut() {
        // Add the remainder of the integer divisions to the first stack's part.
        Some((_, first)) if sampled > idle.nanos => first.nanos += left,
        _ => parts.push((None, IdleAmount { nanos: left, gaps: 0, context: None })),
    }
    let largest = parts.iter().map(|(_, part)| part.nanos).max();
    if let Some((_, part)) = parts.iter_mut().find(|(_, part)| Some(part.nanos) == largest) {
        part.gaps = idle.gaps;
    }
    parts.retain(|(_, part)| part.nanos > 0 || part.gaps > 0);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuflame_model::record::Nanos;

    fn samples(times: impl IntoIterator<Item = u64>) -> SampleHistory {
        let mut samples = SampleHistory::default();
        for time in times {
            let (thread, context) = (ThreadId(1), ContextId(time as u32));
            samples.add(&CpuSample { time: Nanos(time), period: 10, thread, context });
        }
        samples
    }

    fn shared(nanos: u64, found: &[(u32, u64)]) -> Vec<(Option<u32>, u64, u64)> {
        let idle = IdleAmount { nanos, gaps: 3, context: None };
        let found = found.iter().map(|(context, nanos)| (ContextId(*context), *nanos)).collect();
        let parts = divide_idle(idle, found).into_iter();
        parts.map(|(context, part)| (context.map(|id| id.0), part.nanos, part.gaps)).collect()
    }

    #[test]
    fn samples_in_an_interval_are_found_by_thread() {
        let samples = samples([100, 300, 200, 400]);
        let found = |thread, from, to| {
            samples.within(ThreadId(thread), from, to).map(|(context, _)| context.0).collect::<Vec<_>>()
        };
        assert_eq!(found(1, 200, 400), [200, 300]);
        assert_eq!(found(1, 401, 900), [0; 0]);
        assert_eq!(found(2, 0, 900), [0; 0]);
    }

    #[test]
    fn a_wait_counts_only_its_part_inside_the_interval() {
        let mut samples = samples([250]);
        for (from, duration, context) in [(100, 100, 7), (300, 100, 8), (400, 500, 9)] {
            let (thread, context) = (ThreadId(1), ContextId(context));
            samples.add_blocked(&OffCpuWait { time: Nanos(from), duration, thread, context });
        }
        let found = |from, to| -> Vec<(u32, u64)> {
            samples.within(ThreadId(1), from, to).map(|(context, nanos)| (context.0, nanos)).collect()
        };
        assert_eq!(found(150, 350), [(250, 10), (7, 50), (8, 50)]);
        assert_eq!(found(500, 600), [(9, 100)]);
        assert_eq!(found(200, 250), []);
        let mut later = samples.clone();
        later.forget(|_, to| to <= 400);
        assert_eq!((later.count, later.within(ThreadId(1), 0, 1000).count()), (1, 1));
    }

    #[test]
    fn a_thread_that_waits_for_another_one_has_the_stacks_of_that_one() {
        let mut samples = samples([120, 350]);
        for (thread, time, context) in [(2, 220, 20), (2, 260, 21), (2, 320, 22)] {
            let (thread, context) = (ThreadId(thread), ContextId(context));
            samples.add(&CpuSample { time: Nanos(time), period: 10, thread, context });
        }
        let mut wait = |thread, from, duration, context| {
            let (thread, context) = (ThreadId(thread), ContextId(context));
            samples.add_blocked(&OffCpuWait { time: Nanos(from), duration, thread, context });
        };
        // In this test, thread 1 waits from 200 to 300. Thread 2 runs until 270, and then waits.
        wait(1, 200, 100, 7);
        wait(2, 270, 40, 8);
        let found = |other: u32| -> Vec<(u32, u64)> {
            let threads = (ThreadId(1), Some(ThreadId(other)).filter(|other| other.0 > 0));
            let found = samples.within_hand_over(threads, 100, 400).into_iter();
            found.map(|(context, nanos)| (context.0, nanos)).collect()
        };
        assert_eq!(found(2), [(120, 10), (350, 10), (20, 10), (21, 10), (8, 30)]);
        // In the first case, thread 1 itself made both calls. In the second case, the other thread was not sampled.
        assert_eq!(found(0), [(120, 10), (350, 10), (7, 100)]);
        assert_eq!(found(3), [(120, 10), (350, 10), (7, 100)]);
    }

    #[test]
    fn idle_time_is_shared_by_samples_and_the_unsampled_rest_remains() {
        assert_eq!(shared(100, &[(7, 60), (8, 30)]), [(Some(7), 60, 3), (Some(8), 30, 0), (None, 10, 0)]);
        assert_eq!(shared(100, &[(7, 10)]), [(Some(7), 10, 0), (None, 90, 3)]);
        assert_eq!(shared(100, &[(7, 100)]), [(Some(7), 100, 3)]);
        // The parts are 100 * 20 / 120 = 16 and 100 * 100 / 120 = 83, and 1 is left over.
        assert_eq!(shared(100, &[(7, 20), (8, 100)]), [(Some(8), 84, 3), (Some(7), 16, 0)]);
        assert_eq!(shared(100, &[]), [(None, 100, 3)]);
    }

    #[test]
    fn stored_samples_are_bounded() {
        let mut samples = SampleHistory::default();
        for time in 0..1_000_000 {
            let (thread, context) = (ThreadId(time as u32 % 9), ContextId(7));
            samples.add(&CpuSample { time: Nanos(time), period: 10, thread, context });
            if samples.is_crowded() {
                samples.forget(|_, _| false);
            }
        }
        assert!(samples.count <= MAX_SAMPLES && samples.heap_bytes() < 4 << 20, "{}", samples.heap_bytes());
        samples.forget(|time, _| time < 999_990);
        assert_eq!(samples.count, 10);
    }
}
