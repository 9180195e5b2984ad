//! A histogram of durations whose buckets are linear up to 1,024 and logarithmic above. The percentiles of each
//! kernel's durations on each device are computed from a histogram.
//!
//! Each value up to 1,024 has its own bucket. Above 1,024, each range between two powers of two is divided into 64
//! buckets. A percentile is reported as the midpoint of its bucket, so its relative error is at most 1/128 = 0.8 %.
//! Only buckets that contain a value are stored. A stored bucket takes 10 bytes. The durations of a kernel usually fill
//! a few dozen buckets. The `hdrhistogram` crate is not used, because it stores dense tables. With the same precision
//! and range, the tables of `hdrhistogram` would take 80 to 170 KB per kernel name. For a program with a thousand
//! kernels, these tables would use too much memory inside the profiled process.

/// Highest value that has its own bucket.
const LINEAR: u64 = 1 << LINEAR_BITS;
const LINEAR_BITS: u32 = 10;
/// Base-2 logarithm of the number of buckets per power of two above `LINEAR`.
const SUB_BITS: u32 = 6;

/// Index of the bucket for the highest value.
const MAX_BUCKET: u16 = (LINEAR + 1 + ((64 - LINEAR_BITS as u64) << SUB_BITS) - 1) as u16;

/// A histogram of any `u64` values. See the module's documentation.
#[derive(Clone, Debug, Default)]
pub struct Histogram {
    /// Indices of the buckets that contain a value, ascending. Counts are stored in a separate vector, so that a search
    /// reads only 2 bytes per bucket.
    buckets: Vec<u16>,
    counts: Vec<u64>,
    total: u64,
    /// Position in `buckets` of the bucket to which the last value was added. The bucket of the last value is tried
    /// first, because a kernel usually takes about as long as its previous execution.
    last: usize,
}

impl Histogram {
    /// Counts `value` once.
    pub fn record(&mut self, value: u64) {
        self.total += 1;
        let bucket = bucket_of(value);
        if self.buckets.get(self.last) != Some(&bucket) {
            self.last = self.position(bucket);
        }
        self.counts[self.last] += 1;
    }

    /// Adds the counts of `other`.
    pub fn add(&mut self, other: Self) {
        if self.total == 0 {
            *self = other;
            return;
        }
        self.total += other.total;
        for (bucket, count) in other.buckets.into_iter().zip(other.counts) {
            let at = self.position(bucket);
            self.counts[at] += count;
        }
        self.last = 0;
    }

    /// Returns the buckets that contain a value, ascending, with their counts.
    pub fn buckets(&self) -> impl Iterator<Item = (u16, u64)> {
        self.buckets.iter().copied().zip(self.counts.iter().copied())
    }

    /// Adds `count` values to the bucket with this index, as returned by [`Histogram::buckets`]. Returns false if no
    /// bucket has this index.
    pub fn add_bucket(&mut self, bucket: u16, count: u64) -> bool {
        if bucket > MAX_BUCKET {
            return false;
        }
        let at = self.position(bucket);
        self.counts[at] = self.counts[at].saturating_add(count);
        self.total = self.total.saturating_add(count);
        true
    }

    /// Returns the number of recorded values.
    pub fn count(&self) -> u64 {
        self.total
    }

    /// Returns the `percent`th percentile by nearest rank: the smallest recorded value for which at least `percent`
    /// percent of all values are equal or smaller. Results up to 1,024 are exact. Higher results have an error of at
    /// most 0.8 %. Returns 0 if no value was recorded.
    pub fn percentile(&self, percent: u8) -> u64 {
        let rank = (u128::from(self.total) * u128::from(percent)).div_ceil(100).max(1) as u64;
        let mut below = 0;
        for (&bucket, &count) in self.buckets.iter().zip(&self.counts) {
            below += count;
            if below >= rank {
                return middle_of(bucket);
            }
        }
        0
    }

    /// Returns the heap size of the histogram in bytes.
    pub fn heap_bytes(&self) -> usize {
        self.buckets.capacity() * size_of::<u16>() + self.counts.capacity() * size_of::<u64>()
    }

    fn position(&mut self, bucket: u16) -> usize {
        match self.buckets.binary_search(&bucket) {
            Ok(at) => at,
            Err(at) => {
                self.buckets.insert(at, bucket);
                self.counts.insert(at, 0);
                at
            }
        }
    }
}

fn bucket_of(value: u64) -> u16 {
    if value <= LINEAR {
        return value as u16;
    }
    let octave = value.ilog2();
    let within = (value >> (octave - SUB_BITS)) - (1 << SUB_BITS);
    // The `+ 1` is needed because the value 1,024 has its own bucket, although the first of the wider buckets also
    // starts at 1,024.
    (LINEAR + 1 + (u64::from(octave - LINEAR_BITS) << SUB_BITS) + within) as u16
}

fn middle_of(bucket: u16) -> u64 {
    let Some(index) = u64::from(bucket).checked_sub(LINEAR + 1) else { return u64::from(bucket) };
    let shift = LINEAR_BITS - SUB_BITS + (index >> SUB_BITS) as u32;
    let start = ((1 << SUB_BITS) + (index & ((1 << SUB_BITS) - 1))) << shift;
    start + (1 << (shift - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histogram(values: impl IntoIterator<Item = u64>) -> Histogram {
        let mut histogram = Histogram::default();
        values.into_iter().for_each(|value| histogram.record(value));
        histogram
    }

    #[test]
    fn an_empty_histogram_returns_zero() {
        assert_eq!(Histogram::default().percentile(50), 0);
    }

    #[test]
    fn values_up_to_1024_are_exact() {
        for value in 0..=1024 {
            assert_eq!(middle_of(bucket_of(value)), value);
        }
    }

    #[test]
    fn larger_values_are_within_one_percent() {
        let mut value = 1025_u64;
        while value < u64::MAX / 100 * 99 {
            let answer = middle_of(bucket_of(value));
            let error = answer.abs_diff(value) as f64 / value as f64;
            assert!(error <= 0.01, "{answer} is returned for {value}");
            value += value / 99;
        }
        assert!(middle_of(bucket_of(u64::MAX)) > u64::MAX / 100 * 99);
    }

    #[test]
    fn buckets_read_back_as_the_same_histogram() {
        let whole = histogram([0, 7, 7, 5000, u64::MAX]);
        let mut copy = Histogram::default();
        assert!(whole.buckets().all(|(bucket, count)| copy.add_bucket(bucket, count)));
        assert_eq!(copy.buckets().map(|(_, count)| count).collect::<Vec<_>>(), [1, 2, 1, 1]);
        assert_eq!(
            [20, 60, 80, 100].map(|p| copy.percentile(p)),
            [20, 60, 80, 100].map(|p| whole.percentile(p))
        );
        assert_eq!(bucket_of(u64::MAX), MAX_BUCKET);
        assert!(!copy.add_bucket(MAX_BUCKET + 1, 1) && copy.count() == 5);
    }

    #[test]
    fn buckets_ascend_with_their_values() {
        let mut value = 1_u64;
        while value < u64::MAX / 2 {
            assert!(bucket_of(value) <= bucket_of(value + 1), "at {value}");
            value += 1 + value / 300;
        }
        assert!(bucket_of(1024) < bucket_of(1025));
    }

    #[test]
    fn percentiles_use_the_nearest_rank() {
        let hundred = histogram(1..=100);
        assert_eq!([50, 95, 99, 100].map(|p| hundred.percentile(p)), [50, 95, 99, 100]);
        let three = histogram([30, 10, 20]);
        assert_eq!([0, 33, 34, 50, 67].map(|p| three.percentile(p)), [10, 10, 20, 20, 30]);
    }

    #[test]
    fn memory_depends_on_the_buckets_hit_and_not_on_the_number_of_values() {
        let few = histogram((0..1_000_000).map(|i| 3_000_000 + i % 1000));
        assert!(few.heap_bytes() < 200, "{} bytes", few.heap_bytes());
        let all = histogram(
            (0..64).flat_map(|octave| (0..2000).map(move |i| (1_u64 << octave) + (i << octave >> 11))),
        );
        assert!(all.heap_bytes() < 128 << 10, "{} bytes", all.heap_bytes());
    }
}
