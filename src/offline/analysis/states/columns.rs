//! Sums up the states of streams in columns of equal duration, for pictures that show the states over time.

use super::{Interval, MAX_PARTS, State, StreamKey};

/// Time in ns in each state, in the order of [`State::ALL`].
pub type Column = [u64; State::ALL.len()];

/// States of streams in columns of equal duration. The times of the states in a column add up to the duration of the
/// column. The last column can be shorter than the other columns.
#[derive(Clone, Debug)]
pub struct StateColumns {
    /// Start and end of the shown time range, in ns since 1970.
    pub window: (u64, u64),
    /// Duration of a column in ns.
    pub step: u64,
    /// Columns of each stream, in the order in which the streams were added.
    pub streams: Vec<(StreamKey, Vec<Column>)>,
}

impl StateColumns {
    /// Creates the columns of a picture without any stream. If the window would need more than [`MAX_PARTS`] columns,
    /// the duration of a column is increased.
    pub fn new(window: (u64, u64), step: u64) -> Self {
        let step = step.max((window.1 - window.0).div_ceil(MAX_PARTS)).max(1);
        Self { window, step, streams: Vec::new() }
    }

    /// Returns the number of columns.
    pub fn count(&self) -> usize {
        (self.window.1 - self.window.0).div_ceil(self.step) as usize
    }

    /// Adds an interval of a stream. All intervals of one stream must be added before the intervals of the next stream.
    pub fn add(&mut self, key: StreamKey, interval: &Interval) {
        if self.streams.last().is_none_or(|(last, _)| *last != key) {
            self.streams.push((key, vec![Column::default(); self.count()]));
        }
        let Some((_, columns)) = self.streams.last_mut() else { return };
        let start = interval.start.max(self.window.0) - self.window.0;
        let end = interval.end.min(self.window.1).saturating_sub(self.window.0);
        let mut at = start;
        while at < end {
            let column = at / self.step;
            let until = end.min((column + 1).saturating_mul(self.step));
            columns[column as usize][interval.state as usize] += until - at;
            at = until;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::StateCause;
    use super::*;
    use gpuflame_model::record::{DeviceId, GpuContextId, StreamId};

    #[test]
    fn columns_divide_intervals_at_their_borders_and_add_up_to_the_window() {
        let key = |stream| (DeviceId(0), GpuContextId(1), StreamId(stream));
        let interval = |start, end, state| Interval::new((start, end), state, StateCause::None);
        let mut columns = StateColumns::new((1_000, 1_025), 10);
        for (start, end, state) in
            [(1_000, 1_004, State::Idle), (1_004, 1_021, State::Running), (1_021, 1_025, State::Finished)]
        {
            columns.add(key(7), &interval(start, end, state));
        }
        columns.add(key(9), &interval(1_000, 1_025, State::Waiting));
        // Each column lists the times in the states running, waiting, pending, idle, finished and not recorded.
        assert_eq!(columns.streams[0].1, [[6, 0, 0, 4, 0, 0], [10, 0, 0, 0, 0, 0], [1, 0, 0, 0, 4, 0]]);
        assert_eq!(columns.streams[1].1, [[0, 10, 0, 0, 0, 0], [0, 10, 0, 0, 0, 0], [0, 5, 0, 0, 0, 0]]);
        assert_eq!(StateColumns::new((0, 50_000), 1).step, 5);
    }
}
