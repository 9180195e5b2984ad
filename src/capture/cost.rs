//! What our callbacks cost the application, from the calls that were timed.
//!
//! A thread that loses its processor inside a timed call makes that one look like milliseconds, and on a
//! busy machine a few of those outweigh all others in a mean. So the times are kept as a small histogram
//! for each thread, owner-only counters like the rest of its tally, and the ledger prints the median.

use super::counter::Counter;

/// Buckets for each power of two, as a power of two: a bucket's middle is within 6.3 % of its values.
const SUB_BITS: u32 = 3;
/// Times of this many bits and more share the last bucket: 131 us.
const BITS: u32 = 17;
const BUCKETS: usize = ((BITS - SUB_BITS) as usize + 1) << SUB_BITS;

/// How often calls took how long.
pub(super) struct Times([Counter; BUCKETS]);

impl Times {
    pub(super) const fn new() -> Self {
        Self([const { Counter::new() }; BUCKETS])
    }

    #[inline]
    pub(super) fn add(&self, nanos: u64) {
        self.0[bucket_of(nanos)].add(1);
    }
}

/// What the callbacks cost the application.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// API calls that were looked at, from enter to exit.
    pub calls: u64,
    /// How many of them were timed.
    pub timed: u64,
    /// What the median of the timed ones took inside gpuflame, nanoseconds, within 6.3 %; `None` where none
    /// was timed.
    pub median: Option<u64>,
}

/// The cost of so many calls, some of which took these times.
pub(super) fn of_all<'a>(calls: u64, times: impl Iterator<Item = &'a Times>) -> Cost {
    let mut counts = [0; BUCKETS];
    for times in times {
        for (sum, count) in counts.iter_mut().zip(&times.0) {
            *sum += count.get();
        }
    }
    let timed: u64 = counts.iter().sum();
    let mut below = 0;
    let median = counts.iter().position(|count| {
        below += count;
        below > 0 && 2 * below >= timed
    });
    Cost { calls, timed, median: median.map(middle_of) }
}

fn bucket_of(nanos: u64) -> usize {
    let nanos = nanos.min((1 << BITS) - 1);
    let Some(shift) = (nanos >> SUB_BITS).checked_ilog2() else { return nanos as usize };
    // The highest bit, 2^SUB_BITS after the shift, is what puts every power of two after the one below.
    ((shift as usize) << SUB_BITS) + (nanos >> shift) as usize
}

fn middle_of(bucket: usize) -> u64 {
    let shift = (bucket >> SUB_BITS).saturating_sub(1);
    let first = (bucket - (shift << SUB_BITS)) << shift;
    (first + ((1 << shift) >> 1)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(threads: &[&[u64]]) -> Cost {
        let times: Vec<_> = threads
            .iter()
            .map(|nanos| {
                let times = Times::new();
                nanos.iter().for_each(|nanos| times.add(*nanos));
                times
            })
            .collect();
        of_all(64, times.iter())
    }

    #[test]
    fn the_median_is_over_all_threads_and_a_preempted_call_does_not_move_it() {
        let found = cost(&[&[300, 300, 9_000_000], &[300, 310, 80_000_000], &[]]);
        assert_eq!((found.calls, found.timed), (64, 6));
        let median = found.median.unwrap();
        assert!(median.abs_diff(300) <= 19, "{median}");
    }

    #[test]
    fn where_nothing_was_timed_there_is_no_median() {
        assert_eq!(cost(&[&[]]), Cost { calls: 64, timed: 0, median: None });
    }

    #[test]
    fn buckets_ascend_and_their_middle_is_near_their_values() {
        let mut last = 0;
        for nanos in 0..(1 << BITS) {
            let bucket = bucket_of(nanos);
            assert!(bucket == last || bucket == last + 1, "{nanos} ns");
            last = bucket;
            let middle = middle_of(bucket);
            assert!(1000 * middle.abs_diff(nanos) <= 63 * nanos, "{nanos} ns is answered with {middle}");
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
        assert_eq!(last, BUCKETS - 1);
    }
}
