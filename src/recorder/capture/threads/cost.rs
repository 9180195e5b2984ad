//! Measures how much time gpuflame's callbacks cost the application, by timing a sample of API calls.
//!
//! If a thread is preempted during a timed call, the measured time of the call can be several milliseconds. On a busy
//! machine, a few such calls would dominate the mean time. Therefore each thread counts its times in a small histogram,
//! which only that thread writes. The ledger shows the median over the histograms of all threads.

use super::counter::Counter;

/// Binary logarithm of the number of buckets per power of two. With 8 buckets per power of two, a bucket's midpoint
/// differs by at most 6.3 % from every value that is counted in the bucket.
const SUB_BITS: u32 = 3;
/// Times in ns with up to this many bits are counted in separate buckets. All longer times (131 us or more) share the
/// last bucket.
const BITS: u32 = 17;
const BUCKETS: usize = ((BITS - SUB_BITS) as usize + 1) << SUB_BITS;

/// Histogram of the times in ns that calls spent inside gpuflame.
pub(crate) struct DurationHistogram([Counter; BUCKETS]);

impl DurationHistogram {
    pub(super) const fn new() -> Self {
        Self([const { Counter::new() }; BUCKETS])
    }

    #[inline]
    pub(crate) fn add(&self, nanos: u64) {
        self.0[bucket_for(nanos)].add(1);
    }
}

/// Cost that gpuflame's callbacks cause in the application.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallbackCost {
    /// Number of API calls that gpuflame observed from beginning to end.
    pub calls: u64,
    /// Number of API calls that were timed.
    pub timed: u64,
    /// Median time in ns that a timed call spent inside gpuflame, with an error of at most 6.3 %. `None` if no call was
    /// timed.
    pub median: Option<u64>,
}

/// Computes the cost of `calls` calls from the threads' histograms, which contain only the timed calls.
pub(super) fn sum_histograms<'a>(
    calls: u64,
    times: impl Iterator<Item = &'a DurationHistogram>,
) -> CallbackCost {
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
    CallbackCost { calls, timed, median: median.map(bucket_middle) }
}

fn bucket_for(nanos: u64) -> usize {
    let nanos = nanos.min((1 << BITS) - 1);
    let Some(shift) = (nanos >> SUB_BITS).checked_ilog2() else { return nanos as usize };
    // After the shift, the highest bit of the time is the bit with the value 2^SUB_BITS. Therefore the buckets of a
    // power of two directly follow the buckets of the next smaller power of two.
    ((shift as usize) << SUB_BITS) + (nanos >> shift) as usize
}

fn bucket_middle(bucket: usize) -> u64 {
    let shift = (bucket >> SUB_BITS).saturating_sub(1);
    let first = (bucket - (shift << SUB_BITS)) << shift;
    (first + ((1 << shift) >> 1)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(threads: &[&[u64]]) -> CallbackCost {
        let times: Vec<_> = threads
            .iter()
            .map(|nanos| {
                let times = DurationHistogram::new();
                nanos.iter().for_each(|nanos| times.add(*nanos));
                times
            })
            .collect();
        sum_histograms(64, times.iter())
    }

    #[test]
    fn the_median_is_over_all_threads_and_a_preempted_call_does_not_move_it() {
        let found = cost(&[&[300, 300, 9_000_000], &[300, 310, 80_000_000], &[]]);
        assert_eq!((found.calls, found.timed), (64, 6));
        let median = found.median.unwrap();
        assert!(median.abs_diff(300) <= 19, "{median}");
    }

    #[test]
    fn there_is_no_median_without_timed_calls() {
        assert_eq!(cost(&[&[]]), CallbackCost { calls: 64, timed: 0, median: None });
    }

    #[test]
    fn buckets_ascend_and_their_midpoint_is_close_to_their_values() {
        let mut last = 0;
        for nanos in 0..(1 << BITS) {
            let bucket = bucket_for(nanos);
            assert!(bucket == last || bucket == last + 1, "{nanos} ns");
            last = bucket;
            let middle = bucket_middle(bucket);
            assert!(1000 * middle.abs_diff(nanos) <= 63 * nanos, "{nanos} ns is reported as {middle}");
        }
        assert_eq!(bucket_for(u64::MAX), BUCKETS - 1);
        assert_eq!(last, BUCKETS - 1);
    }
}
