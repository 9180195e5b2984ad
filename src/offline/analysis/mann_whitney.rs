//! Compares two sets of durations with the rank sum test of Mann, Whitney and Wilcoxon, which uses only the order of
//! the durations. So a single extreme duration, for example a first step that waits for another rank to start, hardly
//! changes the result of the test.

/// Two-sided quantile of the standard normal distribution for a probability of 0.01.
const Z_ONE_IN_100: f64 = 2.5758;

/// Sorts the durations of all sets together. For each set, returns the average position of its durations in this order.
/// Positions are on a scale from 0 (shortest duration) to 1 (longest duration). Equal durations share the average of
/// their positions. For an empty set, the returned value is 0.5.
pub(super) fn mean_positions(sets: &[&[u64]]) -> Vec<f64> {
    let mut all: Vec<(u64, usize)> = sets
        .iter()
        .enumerate()
        .flat_map(|(set, nanos)| nanos.iter().map(move |&nanos| (nanos, set)))
        .collect();
    all.sort_unstable();
    let mut sums = vec![0.0; sets.len()];
    let mut before = 0;
    for equal in all.chunk_by(|a, b| a.0 == b.0) {
        let position = before as f64 + equal.len() as f64 / 2.0;
        equal.iter().for_each(|&(_, set)| sums[set] += position);
        before += equal.len();
    }
    let mean = |(sum, set): (f64, &&[u64])| match set.len() {
        0 => 0.5,
        count => sum / count as f64 / all.len() as f64,
    };
    sums.into_iter().zip(sets).map(mean).collect()
}

/// Whether the durations of `one` tend to be shorter or longer than the durations of `other`. The test is two-sided, at
/// a significance level of 0.01. The normal distribution is a good approximation if each side has at least about ten
/// durations.
pub(super) fn differ_at_one_percent(one: &[u64], other: &[u64]) -> bool {
    let (n, m) = (one.len() as f64, other.len() as f64);
    let mut all: Vec<u64> = one.iter().chain(other).copied().collect();
    all.sort_unstable();
    let ties: f64 =
        all.chunk_by(|a, b| a == b).map(|equal| (equal.len() as f64).powi(3) - equal.len() as f64).sum();
    let total = n + m;
    // Variance of U, which is the number of pairs in which the duration from `one` is longer than the duration from
    // `other`. The variance is corrected for equal durations.
    let variance = n * m / 12.0 * (total + 1.0 - ties / (total * (total - 1.0)));
    // U is the number of pairs in which the duration from `one` is longer than the duration from `other`. If the two
    // sets do not differ, U is expected to be half the number of all pairs. A position also counts the durations in
    // `one`. Within `one`, the average position is n / 2, so n / 2 is subtracted.
    let position = mean_positions(&[one, other])[0] * total;
    let pairs = n * (position - n / 2.0);
    variance > 0.0 && (pairs - n * m / 2.0).abs() / variance.sqrt() > Z_ONE_IN_100
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_count_from_the_shortest_duration_and_equal_ones_share_theirs() {
        // The sorted durations are 1 | 2 2 | 9. The middle positions of the four sorted durations are 0.5, 2, 2 and 3.5
        // on a scale from 0 to 4.
        assert_eq!(mean_positions(&[&[2, 1], &[9, 2], &[]]), [2.5 / 8.0, 5.5 / 8.0, 0.5]);
    }

    #[test]
    fn sets_differ_from_the_quantile_on() {
        // Each set has five durations, and the two sets do not overlap. Therefore U = 0, the expected U is 12.5, the
        // variance is 25 * 11 / 12 = 22.92, and z = 2.611.
        assert!(differ_at_one_percent(&[1, 2, 3, 4, 5], &[6, 7, 8, 9, 10]));
        assert!(differ_at_one_percent(&[6, 7, 8, 9, 10], &[1, 2, 3, 4, 5]));
        // In one pair, the duration from the first set is longer than the duration from the second set. So U = 1 and z
        // = 11.5 / 4.787 = 2.402.
        assert!(!differ_at_one_percent(&[1, 2, 3, 4, 6], &[5, 7, 8, 9, 10]));
    }

    #[test]
    fn equal_durations_lower_the_variance() {
        // In one set, 4 of 10 durations are 0, and in the other set all 10 durations are 0. So in both sets together,
        // 14 durations are equal to 0 and 6 durations are equal to 1. The result is U = 10 * 10 * 0.6 + 0.5 * 10 * 4 =
        // 80, and the expected U is 50. The variance is 100 / 12 * (21 - (14^3 - 14 + 6^3 - 6) / 380) = 110.5, so z =
        // 2.854.
        let (mixed, zeros) = ([0, 0, 0, 0, 1, 1, 1, 1, 1, 1], [0; 10]);
        assert!(differ_at_one_percent(&mixed, &zeros));
        // If 5 of 10 durations are 0, U = 75, the variance is 100 / 12 * (21 - (15^3 - 15 + 5^3 - 5) / 380) = 98.7, and
        // z = 2.517.
        let mixed = [0, 0, 0, 0, 0, 1, 1, 1, 1, 1];
        assert!(!differ_at_one_percent(&mixed, &zeros));
        assert!(!differ_at_one_percent(&zeros, &zeros), "all are equal");
    }

    #[test]
    fn one_long_duration_hides_no_difference() {
        let waits = vec![50_000; 40];
        let mut short = vec![6; 39];
        short.push(755_000_000);
        assert!(differ_at_one_percent(&short, &waits));
    }
}
