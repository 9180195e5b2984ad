//! Compares several runs before a change with several runs after the change, by one value per run. Each run counts as
//! one observation, even if the run has many kernels. So conditions that stay the same during a run but differ between
//! runs (clock rate, placement in memory, other programs) count as noise.
//!
//! The runs alternate in time: before, after, before, after. The drift of the machine over time is estimated by a
//! straight line through all values in this order, and is subtracted. The remaining values are compared by a t-test.
//! For n pairs of runs, the test has 2 n - 3 degrees of freedom.
//!
//! The probability that any row is wrongly called `slower` or `faster` is at most 1 %. The total probability of 1 % is
//! divided among the verdicts by the constant [`SLOWER`] and the constants after it. Because several rows are tested, a
//! rotation test corrects the probability for their number (Langsrud, Rotation tests, Statistics and Computing 15,
//! 2005). After level and drift were removed, the test rotates the values of all rows together, which keeps the
//! correlation between rows. Therefore rows that always change together count as one test, and independent rows count
//! as separate tests. The method assumes that the logarithms of the values have normal noise. For rows whose values can
//! be 0, the method assumes that the values themselves have normal noise.

use std::f64::consts::{FRAC_2_PI, TAU};

/// Probability that any main row is wrongly called slower although the runs are equal. The rules for noisy rows and
/// small changes reduce the probability of a wrong verdict further, to 0.93 % at a noise of 1.5 % per run (the worst
/// case), 0.5 % at a noise of 1 %, and 0.3 % at a noise of 5 %. Slowdowns get nearly all of the total of 1 %, because
/// CI gates look for slowdowns. As a result, a comparison of 7 pairs of runs with 1 % noise finds a slowdown of 3 %
/// with a probability of 99 %, and a speed-up of 3 % with a probability of about 80 %.
const SLOWER: f64 = 0.0098;
/// Probability that any main row is wrongly called faster although the runs are equal.
const FASTER: f64 = 0.0005;
/// Probability that any row that is not a main row is wrongly called slower, if no main row changed. The probability
/// that such a row is wrongly called faster is equal to this probability. If a main row changed, all rows are tested
/// with the probabilities for main rows.
const OTHER_ROWS: f64 = 0.000_15;
/// Maximum probability that a noisy row is wrongly called slower, and equally that it is wrongly called faster. Noisy
/// rows have a stricter limit than all other rows, because noise shows that the runs are not well suited for the
/// comparison.
const NOISY: f64 = 0.003;
/// Share of the margin that defines noisy rows. A row is noisy if half the width of its confidence interval exceeds
/// this share of the margin.
const NOISY_SHARE_OF_MARGIN: f64 = 0.6;
/// Probability that the true change is above the upper end of the confidence interval, and equally the probability that
/// it is below the lower end.
const BEYOND_INTERVAL: f64 = 0.005;
/// Tail probability for the estimate of how many pairs are needed. The t quantile for this probability is added to the
/// t quantile of the confidence interval, as a reserve for chance.
const MISSED: f64 = 0.05;
/// Minimum change that is called slower or faster, given as a share of the margin.
const MIN_SHARE_OF_MARGIN: f64 = 0.25;
/// Number of random rotations in the rotation test. Each rotation is used in both directions, so it counts twice.
const ROTATIONS: usize = 10_000;
/// Minimum number of runs on each side of the comparison: before the change and after the change.
pub const MIN_RUNS: usize = 3;
/// Largest number of pairs of runs that a report recommends.
const MAX_PAIRS: usize = 10_000;
/// Standard deviation below which values count as equal, which is about the rounding error of sums of `f64`.
const MIN_DEVIATION: f64 = 1e-12;

/// Verdict about the runs before and after a change, for the totals or for one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PairVerdict {
    /// The values after the change are significantly lower than the values before the change.
    Faster,
    /// The values after the change are significantly higher than the values before the change.
    Slower,
    /// The whole confidence interval of the change is within the margin.
    Same,
    /// The runs show no significant change, but they do not rule out a change larger than the margin either.
    Inconclusive,
}

impl PairVerdict {
    /// Returns the verdict as a word for reports.
    pub fn word(self) -> &'static str {
        match self {
            Self::Faster => "faster",
            Self::Slower => "slower",
            Self::Same => "same",
            Self::Inconclusive => "inconclusive",
        }
    }
}

/// Values of a row of the comparison, one per run. The runs before the change and the runs after it are each sorted by
/// time.
#[derive(Clone, Debug, Default)]
pub struct PairRow {
    /// Values of the runs before the change, none of which is negative.
    pub before: Vec<f64>,
    /// Values of the runs after the change, none of which is negative.
    pub after: Vec<f64>,
    /// Total by which the values are divided. If the total is `None`, the logarithms of the values are compared, so no
    /// value of the row may be 0.
    pub share_of: Option<f64>,
    /// Whether the row is a main row. The main rows decide the verdict about the whole comparison. The row of totals is
    /// a main row.
    pub is_main: bool,
}

/// Change of a row from the runs before the change to the runs after it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PairChange {
    /// Change as a share of the value before the change. For example, 0.03 means that the value after the change is 3 %
    /// higher.
    pub change: f64,
    /// Interval that contains the true change with a probability of 99 %, without correction for the number of rows.
    pub interval: [f64; 2],
    /// Verdict that follows from the change and its interval.
    pub verdict: PairVerdict,
    /// Number of pairs of runs that would suffice for a verdict: this many pairs find a change as large as the margin.
    /// If there is no change, this many pairs rule out a change as large as the margin with a probability of about 90
    /// %. The number is given only if the verdict is inconclusive and at most 10,000 pairs are needed.
    pub pairs_needed: Option<usize>,
}

/// Order of the runs in time, and the random rotations for this number of runs.
#[derive(Debug)]
pub struct RunOrder {
    /// Unit vectors that are orthogonal to each other, to the vector of the level and to the vector of the drift. The
    /// first vector is the direction in which a change moves the values. Each vector has one element per run. The runs
    /// before the change come first, followed by the runs after it.
    axes: Vec<Vec<f64>>,
    /// Distance by which a change of size 1 moves the values along the first axis.
    length: f64,
    /// Random unit vectors in the space that the axes span.
    rotations: Vec<Vec<f64>>,
}

impl RunOrder {
    /// Creates the order of runs that alternate: before, after, before, after. The drift of the machine over the time
    /// of the runs is removed from the values.
    pub fn in_turns(before: usize, after: usize) -> Self {
        let times = (0..before).map(|run| 2 * run).chain((0..after).map(|run| 2 * run + 1));
        Self::new(before, after, &[times.map(|time| time as f64).collect()])
    }

    /// Creates the order of runs whose times are unknown. Drift over time is not removed, so the drift counts as noise
    /// or as a change.
    pub fn unordered(before: usize, after: usize) -> Self {
        Self::new(before, after, &[])
    }

    fn new(before: usize, after: usize, drift: &[Vec<f64>]) -> Self {
        let runs = before + after;
        let mut basis: Vec<Vec<f64>> = Vec::new();
        let mut add = |mut vector: Vec<f64>| -> Option<Vec<f64>> {
            // The projections are subtracted twice, because the first pass leaves rounding errors.
            for _ in 0..2 {
                for known in &basis {
                    let share = dot(&vector, known);
                    vector.iter_mut().zip(known).for_each(|(value, of)| *value -= share * of);
                }
            }
            let length = dot(&vector, &vector).sqrt();
            if length < 1e-6 {
                return None;
            }
            vector.iter_mut().for_each(|value| *value /= length);
            basis.push(vector.clone());
            Some(vector)
        };
        add(vec![1.0; runs]);
        drift.iter().cloned().for_each(|drift| drop(add(drift)));
        let side: Vec<f64> = (0..runs).map(|run| f64::from(u8::from(run >= before))).collect();
        let Some(change) = add(side.clone()) else {
            return Self { axes: Vec::new(), length: 0.0, rotations: Vec::new() };
        };
        let length = dot(&side, &change);
        let units = (0..runs).map(|at| (0..runs).map(|run| f64::from(u8::from(run == at))).collect());
        let rest: Vec<Vec<f64>> = units.filter_map(&mut add).collect();
        let axes: Vec<_> = std::iter::once(change).chain(rest).collect();
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        let rotations = (0..ROTATIONS).map(|_| random.unit_vector(axes.len())).collect();
        Self { axes, length, rotations }
    }

    /// Returns the number of degrees of freedom for the t-test.
    fn freedom(&self) -> usize {
        self.axes.len().saturating_sub(1)
    }

    /// Compares the values of each row before and after the change. `margin` is the smallest change that matters, given
    /// as a share.
    pub fn compare(&self, rows: &[PairRow], margin: f64) -> Vec<PairChange> {
        let measured: Vec<Measured> = rows.iter().map(|row| self.measure(row, margin)).collect();
        let mut changes = vec![None; rows.len()];
        let mut judge = |is_main: bool, slower: f64, faster: f64| {
            let of_kind: Vec<usize> = (0..rows.len()).filter(|row| rows[*row].is_main == is_main).collect();
            let family: Vec<&Measured> = of_kind.iter().map(|row| &measured[*row]).collect();
            let limits = Limits::new(self, &family, slower, faster);
            for row in of_kind {
                changes[row] = Some(self.judge(&measured[row], &limits));
            }
            let verdicts = changes.iter().flatten().map(|change: &PairChange| change.verdict);
            verdicts.into_iter().any(|verdict| matches!(verdict, PairVerdict::Slower | PairVerdict::Faster))
        };
        match judge(true, SLOWER, FASTER) {
            true => judge(false, SLOWER, FASTER),
            false => judge(false, OTHER_ROWS, OTHER_ROWS),
        };
        changes.into_iter().flatten().collect()
    }

    fn measure(&self, row: &PairRow, margin: f64) -> Measured {
        let values = row.before.iter().chain(&row.after);
        let values: Vec<f64> = match row.share_of {
            Some(whole) => values.map(|value| value / whole.max(f64::MIN_POSITIVE)).collect(),
            None => values.map(|value| value.max(f64::MIN_POSITIVE).ln()).collect(),
        };
        let along: Vec<f64> = self.axes.iter().map(|axis| dot(axis, &values)).collect();
        let squares = along.iter().skip(1).map(|value| value * value).sum::<f64>();
        let deviation = (squares / self.freedom().max(1) as f64).sqrt().max(MIN_DEVIATION);
        Measured {
            change: along.first().copied().unwrap_or(0.0) / self.length,
            error: deviation / self.length,
            deviation,
            margin: if row.share_of.is_some() { margin } else { margin.ln_1p() },
            is_log: row.share_of.is_none(),
            along,
        }
    }

    fn judge(&self, row: &Measured, limits: &Limits) -> PairChange {
        let half = row.error * t_quantile(BEYOND_INTERVAL, self.freedom());
        let is_noisy = half > NOISY_SHARE_OF_MARGIN * row.margin;
        let [slower, faster] = if is_noisy { limits.noisy } else { limits.usual };
        let (t, least) = (row.change / row.error, MIN_SHARE_OF_MARGIN * row.margin);
        let verdict = match () {
            () if t >= slower && row.change >= least => PairVerdict::Slower,
            () if t <= -faster && row.change <= -least => PairVerdict::Faster,
            () if row.change.abs() + half < row.margin => PairVerdict::Same,
            () => PairVerdict::Inconclusive,
        };
        let share = |change: f64| if row.is_log { change.exp_m1() } else { change };
        let is_open = verdict == PairVerdict::Inconclusive;
        PairChange {
            change: share(row.change),
            interval: [row.change - half, row.change + half].map(share),
            verdict,
            pairs_needed: is_open
                .then(|| pairs_needed(row.deviation, row.margin, self.freedom().div_ceil(2) + 1))
                .flatten(),
        }
    }
}

/// Returns the number of alternating pairs of runs that make the confidence interval narrower than the margin, with a
/// reserve for chance. The number is always greater than `pairs`.
fn pairs_needed(deviation: f64, margin: f64, pairs: usize) -> Option<usize> {
    let is_enough = |pairs: usize| {
        let freedom = 2 * pairs - 3;
        let error = deviation * (2.0 / pairs as f64).sqrt();
        (t_quantile(BEYOND_INTERVAL, freedom) + t_quantile(MISSED, freedom)) * error <= margin
    };
    let (mut low, mut high) = (MIN_RUNS - 1, MAX_PAIRS);
    if !is_enough(high) {
        return None;
    }
    while low + 1 < high {
        let middle = low.midpoint(high);
        if is_enough(middle) {
            high = middle;
        } else {
            low = middle;
        }
    }
    Some(high.max(pairs + 1))
}

/// Values of a row, projected onto the axes of a [`RunOrder`].
struct Measured {
    along: Vec<f64>,
    change: f64,
    /// Standard error of the change.
    error: f64,
    /// Standard deviation of the values of single runs.
    deviation: f64,
    margin: f64,
    /// Whether the values are logarithms.
    is_log: bool,
}

/// Minimum values of Student's t at which a row is called slower (first element) or faster (second element). The limits
/// apply to a family, which is a set of rows that are tested together.
struct Limits {
    usual: [f64; 2],
    /// Minimum values of t for noisy rows: slower, then faster.
    noisy: [f64; 2],
}

impl Limits {
    fn new(order: &RunOrder, family: &[&Measured], slower: f64, faster: f64) -> Self {
        let probabilities = [slower, faster, slower.min(NOISY), faster.min(NOISY)];
        let freedom = order.freedom();
        let mut largest = Vec::new();
        // A family with only one row needs no correction for the number of rows.
        if family.len() > 1 {
            largest = order.largest_t(family);
            largest.sort_unstable_by(f64::total_cmp);
        }
        let limits = probabilities.map(|probability| {
            let one_row = t_quantile(probability, freedom);
            let independent = t_quantile(probability / family.len().max(1) as f64, freedom);
            let beyond = (largest.len() as f64 * probability) as usize;
            let found = largest.len().checked_sub(beyond + 1).map_or(one_row, |at| largest[at]);
            found.clamp(one_row, independent.max(one_row))
        });
        Self { usual: [limits[0], limits[1]], noisy: [limits[2], limits[3]] }
    }
}

impl RunOrder {
    /// For each rotation in both directions, returns the largest value of t over all rows.
    fn largest_t(&self, family: &[&Measured]) -> Vec<f64> {
        let freedom = self.freedom().max(1) as f64;
        let rows: Vec<(&[f64], f64)> = family
            .iter()
            .map(|row| (&*row.along, dot(&row.along, &row.along).max(MIN_DEVIATION.powi(2))))
            .collect();
        let mut largest = Vec::with_capacity(2 * self.rotations.len());
        for rotation in &self.rotations {
            // The value of t increases with the signed share of the sum of squares that lies in the direction of the
            // rotation. So t is computed only for the rows with the smallest and the largest share.
            let (mut least, mut most) = (0.0_f64, 0.0_f64);
            for (along, squares) in &rows {
                let turned = dot(along, rotation);
                let share = turned * turned.abs() / squares;
                (least, most) = (least.min(share), most.max(share));
            }
            let t = |share: f64| (share * freedom / (1.0 - share).max(f64::EPSILON)).sqrt();
            largest.extend([t(most), t(-least)]);
        }
        largest
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Returns the value that Student's t exceeds with the given probability, which must be at most 0.5.
fn t_quantile(probability: f64, freedom: usize) -> f64 {
    // The formulas have half as many terms as there are degrees of freedom. To limit the time, at most 1,000 degrees of
    // freedom are used, because t hardly changes beyond this number.
    let freedom = freedom.clamp(1, 1000);
    let (mut low, mut high) = (0.0, 1.0);
    while t_tail(high, freedom) > probability && high < 1e12 {
        high *= 2.0;
    }
    for _ in 0..60 {
        let middle: f64 = f64::midpoint(low, high);
        if t_tail(middle, freedom) > probability {
            low = middle;
        } else {
            high = middle;
        }
    }
    high
}

/// Returns the probability that Student's t exceeds `t`, which must be at least 0. The formulas are from Abramowitz and
/// Stegun, 26.7.3 and 26.7.4.
fn t_tail(t: f64, freedom: usize) -> f64 {
    let angle = (t / (freedom as f64).sqrt()).atan();
    let (sine, cosine) = angle.sin_cos();
    let is_odd = freedom % 2 == 1;
    let (mut term, mut sum) = if is_odd { (cosine, 0.0) } else { (1.0, 0.0) };
    let mut at = if is_odd { 1 } else { 0 };
    while at + 2 <= freedom {
        sum += term;
        at += 2;
        term *= cosine * cosine * (at - 1) as f64 / at as f64;
    }
    let within = if is_odd { FRAC_2_PI * (angle + sine * sum) } else { sine * sum };
    ((1.0 - within) / 2.0).max(0.0)
}

/// Pseudo-random numbers (SplitMix64). Equal seeds give equal numbers, so that a comparison can be repeated.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a uniform random number between 0 and 1, excluding both ends.
    fn uniform(&mut self) -> f64 {
        ((self.next() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
    }

    /// Returns a random number with the standard normal distribution, by the Box-Muller transform.
    fn normal(&mut self) -> f64 {
        (-2.0 * self.uniform().ln()).sqrt() * (TAU * self.uniform()).cos()
    }

    /// Returns a random unit vector with `size` dimensions. All directions are equally likely.
    fn unit_vector(&mut self, size: usize) -> Vec<f64> {
        let mut vector: Vec<f64> = (0..size).map(|_| self.normal()).collect();
        let length = dot(&vector, &vector).sqrt();
        vector.iter_mut().for_each(|value| *value /= length);
        vector
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(found: f64, expected: f64) {
        assert!((found - expected).abs() < 2e-6 * expected.abs().max(0.1), "{found}, not {expected}");
    }

    #[test]
    fn quantiles_of_students_t_match_scipy() {
        // The expected values are from scipy.stats.t.isf(probability, freedom), SciPy 1.17.1.
        for (probability, freedom, expected) in [
            (0.0092, 11, 2.764717),
            (0.0006, 11, 4.327278),
            (0.005, 11, 3.105807),
            (0.05, 6, 1.94318),
            (0.005, 1, 63.656741),
            (0.0003, 4, 9.832351),
            (0.001, 25, 3.450189),
            (1e-6, 11, 9.043276),
        ] {
            near(t_quantile(probability, freedom), expected);
        }
    }

    const BEFORE: [f64; 5] = [100.0, 103.0, 101.0, 104.0, 102.0];
    const AFTER: [f64; 5] = [108.0, 107.0, 110.0, 109.0, 112.0];

    fn main_row(before: &[f64], after: &[f64]) -> PairRow {
        PairRow { before: before.to_vec(), after: after.to_vec(), share_of: None, is_main: true }
    }

    #[test]
    fn runs_in_turns_are_compared_without_their_drift() {
        // The expected values are from a regression of the logarithms on a constant, the order and the side
        // (numpy.linalg.lstsq), with scipy.stats.t.isf(0.005, 7).
        let found = RunOrder::in_turns(5, 5).compare(&[main_row(&BEFORE, &AFTER)], 0.05)[0];
        near(found.change, 0.06680448549546458);
        near(found.interval[0], 0.035767248535979394);
        near(found.interval[1], 0.09877176738487088);
        assert_eq!((found.verdict, found.pairs_needed), (PairVerdict::Slower, None));
        let back = RunOrder::in_turns(5, 5).compare(&[main_row(&AFTER, &BEFORE)], 0.05)[0];
        assert_eq!(back.verdict, PairVerdict::Faster);
        // The machine becomes 4 % slower with each run. Apart from this drift, the runs are equal.
        let warming = |from: i32| (0..5).map(|run| 1.04_f64.powi(from + 2 * run)).collect::<Vec<_>>();
        let found = RunOrder::in_turns(5, 5).compare(&[main_row(&warming(0), &warming(1))], 0.05)[0];
        assert!(found.change.abs() < 1e-9 && found.verdict == PairVerdict::Same, "{found:?}");
    }

    #[test]
    fn runs_in_no_order_are_compared_by_students_t_test() {
        // The expected values are from scipy.stats.ttest_ind(log(after), log(before)).confidence_interval(0.99). The
        // change is the difference between the mean logarithms.
        let found = RunOrder::unordered(5, 5).compare(&[main_row(&BEFORE, &AFTER)], 0.05)[0];
        near(found.interval[0], 0.03302694317487062f64.exp_m1());
        near(found.interval[1], 0.10333456779238806f64.exp_m1());
        assert_eq!(found.verdict, PairVerdict::Slower);
    }

    #[test]
    fn the_number_of_pairs_is_that_at_which_the_interval_fits_the_margin() {
        // The expected values are from SciPy. Each expected value is the smallest n with (t.isf(.005, 2n-3) +
        // t.isf(.05, 2n-3)) * noise * sqrt(2/n) <= log(1 + margin).
        for (deviation, margin, expected) in [(0.05, 0.05_f64, 39), (0.02, 0.05, 8), (0.05, 0.02, 229)] {
            assert_eq!(pairs_needed(deviation, margin.ln_1p(), 7), Some(expected));
        }
        assert_eq!(pairs_needed(0.02, 0.05_f64.ln_1p(), 20), Some(21), "more than there are");
        assert_eq!(pairs_needed(10.0, 0.01, 7), None);
    }

    #[test]
    fn equal_and_extreme_values_have_verdicts() {
        let order = RunOrder::in_turns(3, 3);
        let verdict = |before: f64, after: f64, share_of| {
            let row = PairRow { share_of, ..main_row(&[before; 3], &[after; 3]) };
            order.compare(&[row], 0.05)[0].verdict
        };
        assert_eq!(verdict(7.0, 7.0, None), PairVerdict::Same);
        assert_eq!(verdict(7.0, 7.01, None), PairVerdict::Same, "too small to matter");
        assert_eq!(verdict(7.0, 8.0, None), PairVerdict::Slower);
        assert_eq!(verdict(0.0, 8.0, Some(20.0)), PairVerdict::Slower, "new");
        assert_eq!(verdict(8.0, 0.0, Some(20.0)), PairVerdict::Faster, "gone");
        assert_eq!(verdict(0.0, 0.0, Some(0.0)), PairVerdict::Same);
        for odd in [f64::MAX, f64::MIN_POSITIVE, 1e300] {
            verdict(odd, 1.0, None);
            verdict(1.0, odd, Some(0.0));
        }
        assert!(RunOrder::in_turns(0, 3).compare(&[], 0.05).is_empty());
    }

    /// Relation between the noise in different rows.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Noise {
        /// One random factor per run, which is the same for all rows.
        Common,
        /// Independent random factors for each run and row.
        PerRow,
    }

    /// Counts of simulated comparisons, by the verdicts about their main rows. The field `any_changed` counts the
    /// comparisons in which at least one row is called slower or faster.
    #[derive(Debug, Default)]
    struct Counts {
        slower: u32,
        inconclusive: u32,
        any_changed: u32,
    }

    /// Simulates `count` comparisons of 7 pairs of runs with 10 kernels each. The machine becomes 2 % slower from the
    /// first run to the last run.
    fn simulated(count: u32, noise: Noise, deviation: f64, slowdown: f64) -> Counts {
        let mut random = Random(u64::from(count) + u64::from(noise == Noise::Common));
        let order = RunOrder::in_turns(7, 7);
        let mut counts = Counts::default();
        for _ in 0..count {
            let mut kernels = vec![PairRow::default(); 10];
            let (mut total, mut idle) = (PairRow { is_main: true, ..PairRow::default() }, PairRow::default());
            let mut step = total.clone();
            for run in 0..14 {
                let common = random.normal();
                let mut factor = || {
                    let own = random.normal();
                    let noise = if noise == Noise::Common { common } else { own };
                    (deviation * noise + 0.02 * f64::from(run) / 13.0).exp()
                };
                let is_after = run % 2 == 1;
                let add = |row: &mut PairRow, value: f64| match is_after {
                    true => row.after.push(value),
                    false => row.before.push(value),
                };
                let change = if is_after { 1.0 + slowdown } else { 1.0 };
                let mut sum = 0.0;
                for (size, row) in (1..).zip(&mut kernels) {
                    let value = f64::from(size * size) * factor() * change;
                    add(row, value);
                    sum += value;
                }
                let waiting = 80.0 * factor();
                add(&mut total, sum);
                add(&mut step, sum + waiting);
                add(&mut idle, waiting);
            }
            idle.share_of = Some(step.before.iter().sum::<f64>() / 7.0);
            let rows: Vec<PairRow> = [total, step, idle].into_iter().chain(kernels).collect();
            let changes = order.compare(&rows, 0.05);
            let has = |rows: &[PairChange], verdict| rows.iter().any(|row| row.verdict == verdict);
            counts.slower += u32::from(has(&changes[..2], PairVerdict::Slower));
            counts.inconclusive += u32::from(
                has(&changes[..2], PairVerdict::Inconclusive) && !has(&changes[..2], PairVerdict::Slower),
            );
            counts.any_changed +=
                u32::from(has(&changes, PairVerdict::Slower) || has(&changes, PairVerdict::Faster));
        }
        counts
    }

    #[test]
    fn comparisons_of_equal_runs_are_rarely_wrong_and_a_slowdown_is_found() {
        let mut wrong = 0;
        for noise in [Noise::Common, Noise::PerRow] {
            for deviation in [0.01, 0.05] {
                wrong += simulated(50, noise, deviation, 0.0).any_changed;
            }
        }
        // At an error rate of 1 %, 2 of 200 comparisons are expected to be wrong. The probability that more than 5 of
        // the 200 comparisons are wrong is below 2 %.
        assert!(wrong <= 5, "{wrong} of 200");
        let found = simulated(50, Noise::Common, 0.01, 0.03);
        assert!(found.slower >= 48, "{found:?}");
        let open = simulated(50, Noise::Common, 0.05, 0.03);
        assert!(open.inconclusive >= 45, "{open:?}");
    }

    #[test]
    #[allow(clippy::print_stdout)]
    #[ignore = "a minute; `.ci/long` runs it, and it prints its figures"]
    fn a_thousand_comparisons_of_equal_runs_have_at_most_1_percent_wrong_verdicts() {
        for noise in [Noise::Common, Noise::PerRow] {
            for deviation in [0.01, 0.05] {
                let equal = simulated(1000, noise, deviation, 0.0);
                let slower = simulated(1000, noise, deviation, 0.03);
                println!("{noise:?} {deviation}: equal {equal:?}, 3 % slower {slower:?}");
                // At an error rate of 1 %, at most 10 of the comparisons are expected to be wrong. An excess of up to 4
                // standard deviations can be chance.
                assert!(equal.any_changed <= 22, "{noise:?} {deviation}: {equal:?}");
                if deviation < 0.02 {
                    assert!(slower.slower >= 979, "{noise:?} {deviation}: {slower:?}");
                }
            }
        }
    }
}
