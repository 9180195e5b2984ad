//! Computes the ideal durations of a job. All operations that should take equally long get the average of their
//! durations.

use super::model::{Average, JobModel};

impl JobModel {
    /// Returns the ideal durations of all operations. All operations of a set that should be equal get the average
    /// duration of this set over all workers and steps. The average is the mean for computation, and the median for
    /// communication.
    pub(super) fn even_durations(&self) -> Vec<f64> {
        let lanes = self.lanes();
        let sets = self.ops.iter().map(|op| op.even_with + 1).max().unwrap_or(0);
        let mut values: Vec<Vec<f64>> = vec![Vec::new(); sets];
        for (op, durations) in self.ops.iter().zip(self.durations.chunks(lanes)) {
            values[op.even_with].extend(durations);
        }
        let mut averages: Vec<Option<f64>> = vec![None; sets];
        let mut even = Vec::with_capacity(self.durations.len());
        for op in &self.ops {
            let set = &mut values[op.even_with];
            let average = *averages[op.even_with].get_or_insert_with(|| match op.average {
                Average::Mean => mean(set),
                Average::Median => median(set),
            });
            even.extend(std::iter::repeat_n(average, lanes));
        }
        even
    }
}

/// Returns the mean of `values`, or 0 if there are no values.
pub(super) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Returns the median of `values`, or 0 if there are no values. The median of an even number of values is the mean of
/// the two middle values.
fn median(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let half = values.len() / 2;
    match values.len() {
        0 => 0.0,
        count if count % 2 == 1 => values[half],
        _ => f64::midpoint(values[half - 1], values[half]),
    }
}
