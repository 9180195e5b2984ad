//! Whether the average of two runs' durations differs by more than chance: Welch's t-test, two sides, one in a
//! thousand. It takes durations as independent of each other.

/// Enough of many durations to compare their averages.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Durations {
    /// The number of values.
    pub count: u64,
    /// Their sum, ns.
    pub nanos: u64,
    /// The sum of the squares of the distances from the mean.
    squares: f64,
}

impl Durations {
    /// Adds one. After Welford, who takes no difference of large numbers.
    pub fn add(&mut self, nanos: u64) {
        let before = self.mean();
        self.count += 1;
        self.nanos = self.nanos.saturating_add(nanos);
        self.squares += (nanos as f64 - before) * (nanos as f64 - self.mean());
    }

    /// Count and sum of both. Their spread is that within each, since two kinds of work have two means.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            count: self.count + other.count,
            nanos: self.nanos.saturating_add(other.nanos),
            squares: self.squares + other.squares,
        }
    }

    /// The average, ns; 0 where there are none.
    pub fn mean(self) -> f64 {
        self.nanos as f64 / self.count.max(1) as f64
    }

    /// The variance of the mean.
    fn uncertainty(self) -> f64 {
        self.squares / (self.count - 1) as f64 / self.count as f64
    }
}

/// What can be said of an average, before and after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It changed by more than chance.
    Sure,
    /// It may be chance.
    Unsure,
    /// One side has less than five, which say nothing.
    TooFew,
    /// There was none before.
    New,
    /// There is none any more.
    Gone,
}

impl Change {
    /// The word of a report, under the heading `sure`.
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

/// Fewer durations than this say nothing.
const ENOUGH: u64 = 5;
/// Beyond this lies one in a thousand by chance, both sides taken together, of a normal distribution.
const NORMAL: f64 = 3.2905;
/// The same for one in a hundred.
const HUNDREDTH: f64 = 2.5758;

/// Whether two averages differ by more than happens once in a hundred by chance, both sides taken together.
pub(super) fn differ(one: Durations, other: Durations) -> bool {
    one.count.min(other.count) > 1 && is_beyond(one, other, HUNDREDTH)
}

/// Whether `after` differs from `before`.
pub fn change(before: Durations, after: Durations) -> Change {
    match (before.count, after.count) {
        (0, 0) => Change::Unsure,
        (0, _) => Change::New,
        (_, 0) => Change::Gone,
        (a, b) if a.min(b) < ENOUGH => Change::TooFew,
        _ if is_beyond(before, after, NORMAL) => Change::Sure,
        _ => Change::Unsure,
    }
}

/// Whether they are farther apart than `normal` standard deviations would be, were they known exactly.
fn is_beyond(before: Durations, after: Durations, normal: f64) -> bool {
    let distance = (after.mean() - before.mean()).abs();
    let spread = (before.uncertainty() + after.uncertainty()).sqrt();
    // Without any spread every difference is one.
    match spread > 0.0 {
        true => distance / spread > critical(freedom(before, after), normal),
        false => distance > 0.0,
    }
}

/// The same as `z` of Student's t with so many degrees of freedom: the series of Cornish and Fisher, which is
/// 5 % too low for 4 degrees, and right to 0.5 % from 8 on.
fn critical(freedom: f64, z: f64) -> f64 {
    let first = (z.powi(3) + z) / (4.0 * freedom);
    let second = (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / (96.0 * freedom.powi(2));
    let third =
        (3.0 * z.powi(7) + 19.0 * z.powi(5) + 17.0 * z.powi(3) - 15.0 * z) / (384.0 * freedom.powi(3));
    z + first + second + third
}

/// Welch's and Satterthwaite's degrees of freedom.
fn freedom(a: Durations, b: Durations) -> f64 {
    let (of_a, of_b) = (a.uncertainty(), b.uncertainty());
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
    fn students_t_is_near_the_tables() {
        // From printed tables, p = 0.001, two sides.
        for (freedom, table) in [(8.0, 5.041), (15.0, 4.073), (30.0, 3.646), (120.0, 3.373)] {
            let found = critical(freedom, NORMAL);
            assert!((found - table).abs() < 0.005 * table, "{freedom}: {found}");
        }
        // The same for p = 0.01.
        for (freedom, table) in [(8.0, 3.355), (18.0, 2.878), (120.0, 2.617)] {
            let found = critical(freedom, HUNDREDTH);
            assert!((found - table).abs() < 0.005 * table, "{freedom}: {found}");
        }
        let freedom = freedom(durations(&[1, 2, 3, 4, 5]), durations(&[10, 20, 30, 40, 50]));
        // Variances of the means: 0.5 and 50. 50.5^2 / (0.25/4 + 2500/4).
        assert!((freedom - 4.0796).abs() < 1e-3, "{freedom}");
    }

    #[test]
    fn a_change_is_sure_only_beyond_the_spread() {
        let base = durations(&[100, 104, 96, 101, 99, 100]);
        assert_eq!(change(base, durations(&[120, 118, 121, 119, 122, 120])), Change::Sure);
        assert_eq!(change(base, durations(&[101, 103, 97, 102, 98, 104])), Change::Unsure);
        let wide = durations(&[60, 200, 90, 170, 20, 180]);
        assert_eq!(change(base, wide), Change::Unsure, "wide enough to be chance");
        assert_eq!(change(base, durations(&[120, 120])), Change::TooFew);
        assert_eq!(change(base, durations(&[])), Change::Gone);
        assert_eq!(change(durations(&[]), base), Change::New);
        assert_eq!(change(durations(&[5; 9]), durations(&[5; 9])), Change::Unsure);
        assert_eq!(change(durations(&[5; 9]), durations(&[6; 9])), Change::Sure);
    }
}
