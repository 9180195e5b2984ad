//! Where threads were found while a GPU waited for them, by samples: of a late launch it is known between which two calls
//! of its thread the time lay, and samples of that thread tell what it did there.
//!
//! A sample stands for a period, which is longer than most gaps: so they are added up over all gaps between the same two
//! calls before anything is charged (`shares`). Time that the thread spent waiting is in no sample: where it was noted when
//! threads left their processors, what of it lies in a gap is charged to the stack that waited, and else stays where it was.

use std::cmp::Reverse;
use std::collections::VecDeque;

use super::charge::Idle;
use crate::record::{Blocked, ContextId, IdMap, Sampled, ThreadId, map_bytes};

/// Samples and waits that are kept at most, 16 and 24 bytes each: gaps are accounted for soon after they have ended.
const MOST: usize = 1 << 16;
/// As soon as there are so many, those are dropped that no gap can be about any more.
const MANY: usize = 1 << 12;

/// See the module's documentation.
#[derive(Clone, Debug)]
pub(super) struct Samples {
    threads: IdMap<ThreadId, VecDeque<Found>>,
    waits: IdMap<ThreadId, VecDeque<Waited>>,
    count: usize,
    /// When there are so many it is time to look which are needed.
    crowd: usize,
    most: usize,
}

/// Where a thread was found.
#[derive(Clone, Copy, Debug)]
struct Found {
    time: u64,
    period: u32,
    context: ContextId,
}

/// When a thread waited, and where. Those of a thread do not overlap.
#[derive(Clone, Copy, Debug)]
struct Waited {
    from: u64,
    to: u64,
    context: ContextId,
}

const _: () = assert!(size_of::<Found>() == 16, "a sample grew: 65,536 of them may be kept");
const _: () = assert!(size_of::<Waited>() == 24, "a wait grew: 65,536 of them may be kept");

impl Default for Samples {
    fn default() -> Self {
        let (threads, waits) = Default::default();
        Self { threads, waits, count: 0, crowd: MANY, most: MOST }
    }
}

impl Samples {
    /// One that takes about so many bytes at most.
    pub(super) fn bounded(bytes: usize) -> Self {
        let most = (bytes / size_of::<Found>()).min(MOST);
        Self { most, crowd: MANY.min(most), ..Self::default() }
    }

    /// Adds a sample. Of each thread they come in the order of time, but where the clock was set.
    pub(super) fn add(&mut self, sampled: &Sampled) {
        let Sampled { time, period, thread, context } = *sampled;
        let known = self.threads.entry(thread).or_default();
        let at = known.partition_point(|found| found.time <= time.0);
        known.insert(at, Found { time: time.0, period, context });
        self.count += 1;
    }

    /// Adds a wait, in the same way.
    pub(super) fn add_blocked(&mut self, blocked: &Blocked) {
        let Blocked { time, duration, thread, context } = *blocked;
        let known = self.waits.entry(thread).or_default();
        let at = known.partition_point(|waited| waited.from <= time.0);
        known.insert(at, Waited { from: time.0, to: time.0.saturating_add(duration), context });
        self.count += 1;
    }

    /// Where a thread was from `from` on and before `to`: for how long a sample of then stands, and what of a wait lies
    /// there.
    pub(super) fn within(
        &self,
        thread: ThreadId,
        from: u64,
        to: u64,
    ) -> impl Iterator<Item = (ContextId, u64)> {
        let found = self.threads.get(&thread).into_iter().flat_map(move |known| {
            let first = known.partition_point(|found| found.time < from);
            known.range(first..).take_while(move |found| found.time < to)
        });
        let waited = self.waits.get(&thread).into_iter().flat_map(move |known| {
            let first = known.partition_point(|waited| waited.to <= from);
            known.range(first..).take_while(move |waited| waited.from < to)
        });
        let waited = waited.map(move |one| (one.context, one.to.min(to).saturating_sub(one.from.max(from))));
        found.map(|found| (found.context, u64::from(found.period))).chain(waited)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether there is so much that [`Samples::forget`] is to be called.
    pub(super) fn is_crowded(&self) -> bool {
        self.count >= self.crowd
    }

    /// Forgets those of a time of which `is_over` says that no gap can be there, and then, where there is too much still,
    /// the older half.
    pub(super) fn forget(&mut self, is_over: impl Fn(u64, u64) -> bool) {
        self.threads.values_mut().for_each(|known| known.retain(|one| !is_over(one.time, one.time + 1)));
        self.waits.values_mut().for_each(|known| known.retain(|one| !is_over(one.from, one.to)));
        self.settle();
        if self.count >= self.most {
            self.threads.values_mut().for_each(forget_half);
            self.waits.values_mut().for_each(forget_half);
            self.settle();
        }
        self.crowd = (2 * self.count).clamp(MANY.min(self.most), self.most);
    }

    fn settle(&mut self) {
        self.count = settle(&mut self.threads) + settle(&mut self.waits);
    }

    /// Has time be charged to others.
    pub(super) fn rename(&mut self, context: impl Fn(ContextId) -> ContextId) {
        for found in self.threads.values_mut().flatten() {
            found.context = context(found.context);
        }
        for waited in self.waits.values_mut().flatten() {
            waited.context = context(waited.context);
        }
    }

    pub(super) fn heap_bytes(&self) -> usize {
        let known = self.threads.values().map(|known| known.capacity() * size_of::<Found>());
        let waits = self.waits.values().map(|known| known.capacity() * size_of::<Waited>());
        known.chain(waits).sum::<usize>() + map_bytes(&self.threads) + map_bytes(&self.waits)
    }
}

fn forget_half<T>(known: &mut VecDeque<T>) {
    known.drain(..known.len().div_ceil(2));
}

/// Gives back what is not needed; says how many there are.
fn settle<T>(threads: &mut IdMap<ThreadId, VecDeque<T>>) -> usize {
    threads.retain(|_, known| !known.is_empty());
    threads.values_mut().for_each(|known| known.shrink_to(2 * known.len()));
    threads.values().map(VecDeque::len).sum()
}

/// How `idle` time is shared among the stacks that were `found` in it, each with the processor time that its samples stand
/// for; `None`: nobody was found in it. Where samples stand for more than there is they share it. The gaps are counted for
/// the largest part.
pub(super) fn shares(idle: Idle, mut found: Vec<(ContextId, u64)>) -> Vec<(Option<ContextId>, Idle)> {
    found.sort_by_key(|(context, nanos)| (Reverse(*nanos), context.0));
    let sampled: u64 = found.iter().map(|(_, nanos)| *nanos).sum();
    let mut left = idle.nanos;
    let mut parts: Vec<(Option<ContextId>, Idle)> = found
        .into_iter()
        .map(|(context, nanos)| {
            let nanos = match sampled > idle.nanos {
                true => (u128::from(nanos) * u128::from(idle.nanos) / u128::from(sampled)) as u64,
                false => nanos,
            };
            left -= nanos;
            (Some(context), Idle { nanos, gaps: 0, found: None })
        })
        .collect();
    match parts.first_mut() {
        // What division left over.
        Some((_, first)) if sampled > idle.nanos => first.nanos += left,
        _ => parts.push((None, Idle { nanos: left, gaps: 0, found: None })),
    }
    let most = parts.iter().map(|(_, part)| part.nanos).max();
    if let Some((_, part)) = parts.iter_mut().find(|(_, part)| Some(part.nanos) == most) {
        part.gaps = idle.gaps;
    }
    parts.retain(|(_, part)| part.nanos > 0 || part.gaps > 0);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Nanos;

    fn samples(times: impl IntoIterator<Item = u64>) -> Samples {
        let mut samples = Samples::default();
        for time in times {
            let (thread, context) = (ThreadId(1), ContextId(time as u32));
            samples.add(&Sampled { time: Nanos(time), period: 10, thread, context });
        }
        samples
    }

    fn shared(nanos: u64, found: &[(u32, u64)]) -> Vec<(Option<u32>, u64, u64)> {
        let idle = Idle { nanos, gaps: 3, found: None };
        let found = found.iter().map(|(context, nanos)| (ContextId(*context), *nanos)).collect();
        let parts = shares(idle, found).into_iter();
        parts.map(|(context, part)| (context.map(|id| id.0), part.nanos, part.gaps)).collect()
    }

    #[test]
    fn samples_of_a_time_are_found_by_thread() {
        let samples = samples([100, 300, 200, 400]);
        let found = |thread, from, to| {
            samples.within(ThreadId(thread), from, to).map(|(context, _)| context.0).collect::<Vec<_>>()
        };
        assert_eq!(found(1, 200, 400), [200, 300]);
        assert_eq!(found(1, 401, 900), [0; 0]);
        assert_eq!(found(2, 0, 900), [0; 0]);
    }

    #[test]
    fn of_a_wait_counts_what_lies_in_the_time() {
        let mut samples = samples([250]);
        for (from, duration, context) in [(100, 100, 7), (300, 100, 8), (400, 500, 9)] {
            let (thread, context) = (ThreadId(1), ContextId(context));
            samples.add_blocked(&Blocked { time: Nanos(from), duration, thread, context });
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
    fn time_is_shared_by_samples_and_what_nobody_was_found_in_is_left() {
        assert_eq!(shared(100, &[(7, 60), (8, 30)]), [(Some(7), 60, 3), (Some(8), 30, 0), (None, 10, 0)]);
        assert_eq!(shared(100, &[(7, 10)]), [(Some(7), 10, 0), (None, 90, 3)]);
        assert_eq!(shared(100, &[(7, 100)]), [(Some(7), 100, 3)]);
        // 100 * 20 / 120 = 16, 100 * 100 / 120 = 83, and 1 is left over.
        assert_eq!(shared(100, &[(7, 20), (8, 100)]), [(Some(8), 84, 3), (Some(7), 16, 0)]);
        assert_eq!(shared(100, &[]), [(None, 100, 3)]);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut samples = Samples::default();
        for time in 0..1_000_000 {
            let (thread, context) = (ThreadId(time as u32 % 9), ContextId(7));
            samples.add(&Sampled { time: Nanos(time), period: 10, thread, context });
            if samples.is_crowded() {
                samples.forget(|_, _| false);
            }
        }
        assert!(samples.count <= MOST && samples.heap_bytes() < 4 << 20, "{}", samples.heap_bytes());
        samples.forget(|time, _| time < 999_990);
        assert_eq!(samples.count, 10);
    }
}
