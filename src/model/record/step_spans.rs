//! Determines when the steps of a program begin and end. Steps are iterations that a program repeats, such as training
//! or decoding steps.
//!
//! A program marks only the beginning of each step. Traces of other tools may also contain the end of each step. If the
//! end of a step is unknown, the step lasts until any thread of the process begins the next step, or until the window
//! closes. In a run without steps, windows count as steps.

use super::rows::{Row, WindowEdge};

/// Times of the steps of a run, collected from rows; 24 bytes are stored per step. See the module's documentation.
#[derive(Clone, Debug, Default)]
pub struct StepSpans {
    /// Time at which each step began, and the time at which the step ended, if this time is known.
    steps: Vec<(u64, Option<u64>)>,
    /// Windows as pairs of the opening time and the closing time.
    windows: Vec<(u64, u64)>,
    opened: Option<u64>,
    /// Latest time in any launch or activity.
    latest: u64,
}

impl StepSpans {
    /// Processes a row of the run. Rows about steps and windows are used, and the times of launches and activities. All
    /// other rows are ignored.
    pub fn add_row(&mut self, row: &Row<'_>) {
        match row {
            Row::Step(step) => self.steps.push((step.time.0, step.end.map(|end| end.0))),
            Row::Window { edge: WindowEdge::Open, time } => self.opened = Some(time.0),
            Row::Window { edge: WindowEdge::Close, time } => {
                self.windows.extend(self.opened.take().map(|from| (from, time.0)));
            }
            Row::Launch(launch) => self.latest = self.latest.max(launch.time.0),
            Row::Activity(activity) => self.latest = self.latest.max(activity.end.0),
            _ => {}
        }
    }

    /// Whether the run has any steps. If the run has no steps, [`StepSpans::spans`] returns windows.
    pub fn has_steps(&self) -> bool {
        !self.steps.is_empty()
    }

    /// Returns the steps as (start, end), in order of time. If there are no steps, returns the windows.
    pub fn spans(&self) -> Vec<(u64, u64)> {
        let mut windows = self.windows.clone();
        // If the process was killed, the last window was never closed. An unclosed window ends at the latest time in
        // any launch or activity.
        windows.extend(self.opened.filter(|_| self.has_steps()).map(|from| (from, self.latest.max(from))));
        if !self.has_steps() {
            return windows;
        }
        let mut steps = self.steps.clone();
        steps.sort_unstable();
        windows.sort_unstable_by_key(|(_, to)| *to);
        let close =
            |start: u64| windows.get(windows.partition_point(|(_, to)| *to < start)).map(|(_, to)| *to);
        let next_start = |at: usize| steps.get(at + 1).map(|(start, _)| *start);
        let span = |(at, &(start, end)): (usize, &(u64, Option<u64>))| {
            let until = end.unwrap_or_else(|| {
                let close = close(start).unwrap_or(self.latest);
                next_start(at).unwrap_or(u64::MAX).min(close)
            });
            (start, until.max(start))
        };
        steps.iter().enumerate().map(span).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Nanos, Step, ThreadId};

    fn spans(rows: &[Row<'_>]) -> Vec<(u64, u64)> {
        let mut spans = StepSpans::default();
        rows.iter().for_each(|row| spans.add_row(row));
        spans.spans()
    }

    fn step(time: u64, end: Option<u64>) -> Row<'static> {
        Row::Step(Step { time: Nanos(time), end: end.map(Nanos), thread: ThreadId(1), number: 1, name: "" })
    }

    fn window(edge: WindowEdge, time: u64) -> Row<'static> {
        Row::Window { edge, time: Nanos(time) }
    }

    #[test]
    fn a_step_lasts_until_the_next_step_or_the_end_of_its_window() {
        use WindowEdge::{Close, Open};
        // In this test, the first step began before the window opened, as in a program that starts CUDA in its first
        // step.
        let rows = [
            step(5, None),
            window(Open, 10),
            step(20, None),
            step(30, None),
            window(Close, 50),
            window(Open, 60),
            step(70, None),
            window(Close, 90),
        ];
        assert_eq!(spans(&rows), [(5, 20), (20, 30), (30, 50), (70, 90)]);
    }

    #[test]
    fn a_step_whose_end_is_known_ends_there() {
        assert_eq!(spans(&[step(20, Some(25)), step(10, Some(14))]), [(10, 14), (20, 25)]);
        assert_eq!(spans(&[step(20, Some(7))]), [(20, 20)], "a step that ends before it begins is empty");
    }

    #[test]
    fn windows_count_as_steps_of_a_run_without_steps() {
        use WindowEdge::{Close, Open};
        let rows = [window(Open, 1), window(Close, 2), window(Open, 3), window(Close, 9), window(Open, 10)];
        assert_eq!(spans(&rows), [(1, 2), (3, 9)]);
    }

    #[test]
    fn the_last_step_of_a_killed_process_ends_with_its_last_work() {
        let launch = Row::Launch(crate::record::testing::launch(4, 2));
        assert_eq!(spans(&[window(WindowEdge::Open, 1), step(20, None), launch]), [(20, 40)]);
    }
}
