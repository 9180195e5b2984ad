//! Guards the sums against impossible times. Impossible times arise if the system clock is set while gpuflame records,
//! or if an activity record contains a time at which the GPU ran nothing. The guard prevents such times from being
//! summed as GPU time.
//!
//! On each visit, the collector compares the system clock, on which the times of GPU work are based, with a steady
//! clock, which is never set. If the system clock was set forward, the window closes at the time of the change. The
//! window opens again at the time to which the clock was set. If the system clock was set back, the window closes at
//! the time of the change. The window opens again when the clock has reached the time of the change again. Therefore a
//! time that the clock shows twice is counted only once, and windows cover only time that has really passed.

use gpuflame_model::record::{Nanos, Row, WindowEdge};
use gpuflame_os::clocks::ClockPair;

/// Maximum difference in ns (ten minutes) between the times of an activity and the times that the system clock has
/// shown. Real differences are smaller, because CUPTI's clock deviates from the system clock by less, and the GPU runs
/// no work ten minutes ahead of the clock.
const MAX_CLOCK_DISTANCE_NS: u64 = 600_000_000_000;
/// Minimum deviation in ns between the two clocks at which gpuflame assumes that the system clock was set. Gradual
/// corrections of the system clock, for example by NTP, stay below this minimum.
const MIN_CLOCK_STEP_NS: u64 = 100_000_000;

/// Detects changes of the system clock and impossible times.
#[derive(Debug, Default)]
pub(super) struct ClockGuard {
    last: Option<ClockPair>,
    /// Earliest and latest time that the system clock has shown so far.
    range: Option<(u64, u64)>,
    /// If the clock was set back, the time at which the window opens again; otherwise `None`.
    resumes: Option<u64>,
    forward: u64,
    back: u64,
}

impl ClockGuard {
    /// Compares the system clock with the steady clock. If the system clock was set, returns the resulting window
    /// edges. If the clock was not set, the returned list is usually empty.
    pub(super) fn check(&mut self, now: ClockPair) -> Vec<Row<'static>> {
        let (from, to) = self.range.unwrap_or((now.time, now.time));
        self.range = Some((from.min(now.time), to.max(now.time)));
        let Some(last) = self.last.replace(now) else { return Vec::new() };
        // The time that the system clock would show if it had not been set.
        let expected = last.time.saturating_add(now.steady.saturating_sub(last.steady));
        if now.time.abs_diff(expected) < MIN_CLOCK_STEP_NS {
            return self.resume(now.time).into_iter().collect();
        }
        let close = (self.resumes.is_none()).then(|| window_edge(WindowEdge::Close, expected));
        if now.time > expected {
            self.forward += now.time - expected;
            let open = self
                .resume(now.time)
                .or_else(|| self.resumes.is_none().then(|| window_edge(WindowEdge::Open, now.time)));
            return close.into_iter().chain(open).collect();
        }
        self.back += expected - now.time;
        self.resumes.get_or_insert(expected);
        close.into_iter().collect()
    }

    /// After the clock was set back, returns the edge that opens the window again. This edge is returned as soon as the
    /// clock has reached the time that it showed before the change.
    fn resume(&mut self, time: u64) -> Option<Row<'static>> {
        self.resumes.take_if(|at| *at <= time).map(|_| window_edge(WindowEdge::Open, time))
    }

    /// Whether it is possible that an activity ran from `start` to `end`.
    pub(super) fn is_possible(&self, start: Nanos, end: Nanos) -> bool {
        self.range.is_none_or(|(from, to)| {
            start.0.saturating_add(MAX_CLOCK_DISTANCE_NS) >= from
                && end.0 <= to.saturating_add(MAX_CLOCK_DISTANCE_NS)
        })
    }

    /// Returns the ledger line about changes of the system clock, or `None` if the clock was not set.
    pub(super) fn ledger_line(&self) -> Option<String> {
        let seconds = |nanos: u64| nanos as f64 / 1e9;
        (self.forward + self.back > 0).then(|| {
            format!(
                "clock: the system clock was set forward by {:.3} s and back by {:.3} s; skipped time is in \
                 no window, and idle time is unknown until the clock reaches the old time again",
                seconds(self.forward),
                seconds(self.back)
            )
        })
    }
}

fn window_edge(edge: WindowEdge, time: u64) -> Row<'static> {
    Row::Window { edge, time: Nanos(time) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600_000_000_000;

    /// Passes readings of both clocks to a new guard. A reading is a pair: seconds since noon (system clock), and
    /// seconds since the machine started (steady clock). Returns the guard and the window edges that it has produced.
    fn check_all(moments: &[(f64, f64)]) -> (ClockGuard, Vec<(WindowEdge, f64)>) {
        let (mut guard, mut edges) = (ClockGuard::default(), Vec::new());
        for (time, steady) in moments {
            let nanos = |seconds: &f64| (seconds * 1e9) as u64;
            for row in guard.check(ClockPair { time: nanos(time) + 12 * HOUR, steady: nanos(steady) }) {
                let Row::Window { edge, time } = row else { panic!("{row:?}") };
                edges.push((edge, (time.0 - 12 * HOUR) as f64 / 1e9));
            }
        }
        (guard, edges)
    }

    #[test]
    fn gradual_clock_corrections_are_ignored() {
        let (guard, edges) = check_all(&[(0.0, 7.0), (1.0, 8.0), (2.05, 9.0), (3.0, 10.0)]);
        assert_eq!((edges, guard.ledger_line()), (vec![], None));
    }

    #[test]
    fn a_forward_clock_step_is_excluded_from_the_window() {
        let (guard, edges) = check_all(&[(0.0, 7.0), (3601.0, 8.0), (3602.0, 9.0)]);
        assert_eq!(edges, [(WindowEdge::Close, 1.0), (WindowEdge::Open, 3601.0)]);
        assert!(
            guard
                .ledger_line()
                .unwrap()
                .starts_with("clock: the system clock was set forward by 3600.000 s and back by 0.000 s")
        );
    }

    #[test]
    fn after_a_backward_step_the_window_reopens_once_the_clock_catches_up() {
        let (guard, edges) =
            check_all(&[(5.0, 0.0), (-3594.0, 1.0), (-100.0, 3495.0), (5.5, 3600.5), (7.0, 3602.0)]);
        assert_eq!(edges, [(WindowEdge::Close, 6.0), (WindowEdge::Open, 7.0)]);
        assert!(
            guard
                .ledger_line()
                .unwrap()
                .starts_with("clock: the system clock was set forward by 0.000 s and back by 3600.000 s")
        );
    }

    #[test]
    fn a_clock_set_back_and_forward_again_reopens_the_window() {
        let (_, edges) = check_all(&[(5.0, 0.0), (-3594.0, 1.0), (7.0, 2.0), (8.0, 3.0)]);
        assert_eq!(edges, [(WindowEdge::Close, 6.0), (WindowEdge::Open, 7.0)]);
    }

    #[test]
    fn activities_over_ten_minutes_from_any_clock_reading_are_impossible() {
        let (guard, _) = check_all(&[(0.0, 7.0), (1.0, 8.0)]);
        let is_possible =
            |start: u64, end: u64| guard.is_possible(Nanos(12 * HOUR + start), Nanos(12 * HOUR + end));
        assert!(is_possible(0, 601_000_000_000));
        assert!(!is_possible(0, 601_000_000_001));
        assert!(guard.is_possible(Nanos(12 * HOUR - MAX_CLOCK_DISTANCE_NS), Nanos(12 * HOUR)));
        assert!(!guard.is_possible(Nanos(12 * HOUR - MAX_CLOCK_DISTANCE_NS - 1), Nanos(12 * HOUR)));
        assert!(!guard.is_possible(Nanos(1), Nanos(300)));
    }
}
