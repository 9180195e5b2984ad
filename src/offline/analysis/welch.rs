//! Tests whether the average durations of two runs differ by more than chance. The test is Welch's t-test, two-sided,
//! at a significance level of 0.001. The test assumes that durations are independent of each other.

/// Number, total and spread of a set of durations. Number, total and spread suffice to compare the average of one set
/// with the average of another set.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Durations {
    /// Number of durations.
    pub count: u64,
    /// Total of the durations, in ns.
    pub nanos: u64,
    /// Sum of the squared differences between the durations and their mean.
    squares: f64,
}

impl Durations {
    /// Adds a duration. Welford's method is used, because it avoids the subtraction of large, nearly equal numbers.
    pub fn add(&mut self, nanos: u64) {
        let before = self.mean();
        self.count += 1;
        self.nanos = self.nanos.saturating_add(nanos);
        self.squares += (nanos as f64 - before) * (nanos as f64 - self.mean());
    }

    /// Creates the statistics from the number of durations, their sum and the sum of their squares.
    pub fn from_sums(count: u64, nanos: u64, squares: u128) -> Self {
        let (all, number) = (u128::from(nanos).pow(2), u128::from(count.max(1)));
        // The two numbers may be large and nearly equal. So they are subtracted as integers, and the difference is
        // converted to `f64`.
        let whole = squares.saturating_sub(all / number) as f64;
        let squares = (whole - (all % number) as f64 / number as f64).max(0.0);
        Self { count, nanos, squares }
    }

    /// Adds all durations of `other`. Adding each duration of `other` with [`Durations::add`] would give the same
    /// statistics.
    pub fn add_all(&mut self, other: Self) {
        let (count, distance) = (self.count + other.count, self.mean() - other.mean());
        let between = self.count as f64 * other.count as f64 / count.max(1) as f64;
        self.squares += other.squares + distance * distance * between;
        (self.count, self.nanos) = (count, self.nanos.saturating_add(other.nanos));
    }

    /// Joins the durations of two kinds of work. The joined spread contains the spread within `self` and the spread
    /// within `other`. The joined spread does not contain the difference between the two means, because different kinds
    /// of work have different means.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            count: self.count + other.count,
            nanos: self.nanos.saturating_add(other.nanos),
            squares: self.squares + other.squares,
        }
    }

    /// Returns the average duration in ns, or 0 if there are no durations.
    pub fn mean(self) -> f64 {
        self.nanos as f64 / self.count.max(1) as f64
    }

    /// Returns the variance of the mean duration.
    fn variance_of_mean(self) -> f64 {
        self.squares / (self.count - 1) as f64 / self.count as f64
    }
}

/// Result of comparing an average duration before and after a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DurationChange {
    /// The change of the average duration is statistically significant.
    Sure,
    /// The change of the average duration may be due to chance.
    Unsure,
    /// No conclusion is possible, because there are fewer than five durations before or after the change.
    TooFew,
    /// The kind of work did not occur before the change.
    New,
    /// The kind of work no longer occurs after the change.
    Gone,
}

impl DurationChange {
    /// Returns the word for the column `sure` of reports.
    pub fn word(self) -> &'static str {
        match self {
            Self::Sure => "yes",
            Self::Unsure => "no",
            Self::TooFew => "too few",
            Self::New => "new",
            Self::Gone => "gone",
        }
    }
}

/// Minimum number of durations on each side of the comparison (before and after the change) that is needed for a
/// conclusion.
const MIN_DURATIONS: u64 = 5;
/// Two-sided quantile of the standard normal distribution for a probability of 0.001.
const Z_ONE_IN_1000: f64 = 3.2905;

/// Compares the average of the durations `after` with the average of the durations `before`.
pub fn compare_durations(before: Durations, after: Durations) -> DurationChange {
    match (before.count, after.count) {
        (0, 0) => DurationChange::Unsure,
        (0, _) => DurationChange::New,
        (_, 0) => DurationChange::Gone,
        (a, b) if a.min(b) < MIN_DURATIONS => DurationChange::TooFew,
        _ if differs_beyond(before, after, Z_ONE_IN_1000) => DurationChange::Sure,
        _ => DurationChange::Unsure,
    }
}

/// Whether the t value of the difference between the means exceeds the t quantile that corresponds to the normal
/// quantile `z`.
fn differs_beyond(before: Durations, after: Durations, z: f64) -> bool {
    let distance = (after.mean() - before.mean()).abs();
    let spread = (before.variance_of_mean() + after.variance_of_mean()).sqrt();
    // If all durations before the change are equal, and all durations after the change are equal too, every difference
    // between them is significant.
    match spread > 0.0 {
        true => distance / spread > critical_t(degrees_of_freedom(before, after), z),
        false => distance > 0.0,
    }
}

/// Returns the quantile of Student's t that corresponds to the normal quantile `z`. The quantile is computed by the
/// Cornish-Fisher expansion. The quantile is 5 % too low for 4 degrees of freedom. For 8 or more degrees of freedom,
/// the error is at most 0.5 %.
fn critical_t(freedom: f64, z: f64) -> f64 {
    let first = (z.powi(3) + z) / (4.0 * freedom);
    let second = (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / (96.0 * freedom.powi(2));
    let third =
        (3.0 * z.powi(7) + 19.0 * z.powi(5) + 17.0 * z.powi(3) - 15.0 * z) / (384.0 * freedom.powi(3));
    z + first + second + third
}

/// Returns the degrees of freedom of the test, by the Welch-Satterthwaite equation.
fn degrees_of_freedom(a: Durations, b: Durations) -> f64 {
    let (of_a, of_b) = (a.variance_of_mean(), b.variance_of_mean());
    let parts = of_a.powi(2) / (a.count - 1) as f64 + of_b.powi(2) / (b.count - 1) as f64;
    (of_a + of_b).powi(2) / parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn durations(all: &[u64]) -> Durations {
        let mut durations = Durations::default();
        all.iter().for_each(|&nanos| durations.add(nanos));
        durations
    }

    #[test]
    fn sums_of_squares_give_the_same_spread_as_single_durations() {
        let all: Vec<u64> = (0..1000).map(|number| 1_000_000_000 + number * number % 977).collect();
        let (mut one_by_one, mut joined) = (Durations::default(), Durations::default());
        all.iter().for_each(|nanos| one_by_one.add(*nanos));
        for part in all.chunks(300) {
            let squares = part.iter().map(|nanos| u128::from(*nanos).pow(2)).sum();
            joined.add_all(Durations::from_sums(part.len() as u64, part.iter().sum(), squares));
        }
        assert_eq!((joined.count, joined.nanos), (one_by_one.count, one_by_one.nanos));
        let error = (joined.squares - one_by_one.squares).abs() / one_by_one.squares;
        assert!(error < 1e-6, "{error}");
        assert_eq!(Durations::from_sums(3, 3_000_003, 3 * 1_000_001_u128.pow(2)).squares, 0.0);
    }

    #[test]
    fn quantiles_of_students_t_match_printed_tables() {
        // The expected values are from printed tables for p = 0.001, two-sided.
        for (freedom, table) in [(8.0, 5.041), (15.0, 4.073), (30.0, 3.646), (120.0, 3.373)] {
            let found = critical_t(freedom, Z_ONE_IN_1000);
            assert!((found - table).abs() < 0.005 * table, "{freedom}: {found}");
        }
        // The expected values are from printed tables for p = 0.01, two-sided.
        for (freedom, table) in [(8.0, 3.355), (18.0, 2.878), (120.0, 2.617)] {
            let found = critical_t(freedom, 2.5758);
            assert!((found - table).abs() < 0.005 * table, "{freedom}: {found}");
        }
        let freedom = degrees_of_freedom(durations(&[1, 2, 3, 4, 5]), durations(&[10, 20, 30, 40, 50]));
        // The variances of the means are 0.5 and 50, so the result is 50.5^2 / (0.25/4 + 2500/4).
        assert!((freedom - 4.0796).abs() < 1e-3, "{freedom}");
    }

    #[test]
    fn a_change_is_significant_only_beyond_the_spread() {
        let base = durations(&[100, 104, 96, 101, 99, 100]);
        assert_eq!(compare_durations(base, durations(&[120, 118, 121, 119, 122, 120])), DurationChange::Sure);
        assert_eq!(compare_durations(base, durations(&[101, 103, 97, 102, 98, 104])), DurationChange::Unsure);
        let wide = durations(&[60, 200, 90, 170, 20, 180]);
        assert_eq!(compare_durations(base, wide), DurationChange::Unsure, "wide enough to be chance");
        assert_eq!(compare_durations(base, durations(&[120, 120])), DurationChange::TooFew);
        assert_eq!(compare_durations(base, durations(&[])), DurationChange::Gone);
        assert_eq!(compare_durations(durations(&[]), base), DurationChange::New);
        assert_eq!(compare_durations(durations(&[5; 9]), durations(&[5; 9])), DurationChange::Unsure);
        assert_eq!(compare_durations(durations(&[5; 9]), durations(&[6; 9])), DurationChange::Sure);
    }
}
