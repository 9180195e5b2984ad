//! Computes when a recording window must be open, if the settings define a schedule. This module only computes. The
//! caller passes the program's progress, and gets the change that is due (opening or closing the window).
//!
//! ```text
//! run      from the start; or while a flag file exists; or between two signals
//!   cycle    GPUFLAME_DELAY, then GPUFLAME_DURATION, GPUFLAME_REPEAT times
//!     window   the second part of a cycle, while GPUFLAME_STEPS are in progress and no limit is reached
//! ```
//!
//! Steps and time are counted from the beginning of the run. A window that has reached a limit stays closed until the
//! next window opens, in the next cycle or run.

use std::ops::Range;
use std::time::Duration;

/// The part of the settings that determines when windows open and close.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WindowPlan {
    /// Time before each window opens, counted from the beginning of its cycle.
    pub delay: Duration,
    /// Duration of each window; `None`: the window stays open until the end of the run.
    pub duration: Option<Duration>,
    /// Maximum number of windows per run, if windows have a duration; 0: no limit.
    pub repeat: u64,
    /// Steps during which a window may be open, counted from 1. `None`: windows may be open during all steps and before
    /// the first step.
    pub steps: Option<Range<u64>>,
    /// Maximum number of launches per window. A window closes when it reaches this number of launches.
    pub max_launches: Option<u64>,
    /// Maximum number of bytes that are written to files while a window is open. A window closes when it reaches this
    /// number of bytes.
    pub max_bytes: Option<u64>,
}

/// Progress of the recorded program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunProgress {
    /// Time since a fixed moment, which the caller has chosen.
    pub time: Duration,
    /// Number of steps that have begun so far.
    pub steps: u64,
    /// Number of launches seen so far.
    pub launches: u64,
    /// Number of bytes written to files so far.
    pub bytes: u64,
}

/// A change that is due: the window must be opened or closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowChange {
    /// A window opens.
    Open,
    /// The window closes.
    Close,
    /// The window closes, and the next window opens immediately.
    Next,
}

/// Identifies a window by the number of its run and the number of its cycle within the run.
type WindowId = (u64, u64);

/// State of the schedule: the current run and the open window.
#[derive(Debug, Default)]
pub struct Schedule {
    plan: WindowPlan,
    /// Progress at the beginning of the current run; `None` if no run is in progress.
    run: Option<RunProgress>,
    runs: u64,
    /// The open window, and the progress when it opened; `None` if no window is open.
    open: Option<(WindowId, RunProgress)>,
    /// The most recent window that reached a limit. A window that has reached a limit is not opened again.
    exhausted: Option<WindowId>,
}

impl Schedule {
    /// Creates a schedule in which no run has begun.
    pub fn new(plan: WindowPlan) -> Self {
        Self { plan, ..Self::default() }
    }

    /// Begins a run. If there is a current run, the new run replaces it.
    pub fn begin(&mut self, now: RunProgress) {
        self.run = Some(now);
        self.runs += 1;
    }

    /// Ends the current run of the schedule.
    pub fn end(&mut self) {
        self.run = None;
    }

    /// Whether a run is in progress.
    pub fn is_running(&self) -> bool {
        self.run.is_some()
    }

    /// Returns the change that is due now; `None` if the window need not be opened or closed.
    pub fn next_change(&mut self, now: RunProgress) -> Option<WindowChange> {
        if let Some((id, opened)) = self.open
            && self.plan.has_reached_limit(opened, now)
        {
            self.exhausted = Some(id);
        }
        let wanted = self.window(now).filter(|id| self.exhausted != Some(*id));
        let was = self.open.map(|(id, _)| id);
        if wanted == was {
            return None;
        }
        self.open = wanted.map(|id| (id, now));
        Some(match (was, wanted) {
            (None, _) => WindowChange::Open,
            (Some(_), None) => WindowChange::Close,
            (Some(_), Some(_)) => WindowChange::Next,
        })
    }

    /// Returns the time after which a change may be due even if the program makes no progress (steps, launches or
    /// writes) until then. Returns `None` if no change becomes due by time alone.
    pub fn time_to_next_change(&self, now: RunProgress) -> Option<Duration> {
        self.plan.time_to_next_change(now.time.saturating_sub(self.run?.time))
    }

    /// Whether a window is open that may reach a limit of launches or bytes. The caller should check the progress often
    /// while such a window is open.
    pub fn is_limited(&self) -> bool {
        self.open.is_some() && (self.plan.max_launches.is_some() || self.plan.max_bytes.is_some())
    }

    fn window(&self, now: RunProgress) -> Option<WindowId> {
        let run = self.run?;
        let cycle = self.plan.cycle(now.time.saturating_sub(run.time))?;
        let steps = now.steps.saturating_sub(run.steps);
        let is_wanted = self.plan.steps.as_ref().is_none_or(|wanted| wanted.contains(&steps));
        is_wanted.then_some((self.runs, cycle))
    }
}

impl WindowPlan {
    /// Returns the duration of one cycle (delay and window), in ns. Returns `None` if windows have no duration and
    /// therefore stay open.
    fn length(&self) -> Option<u128> {
        self.duration.map(|duration| (self.delay + duration).as_nanos().max(1))
    }

    /// Returns the number of the cycle whose window is open at the time `elapsed` after the beginning of the run.
    /// Returns `None` if no window is open at the time `elapsed`.
    fn cycle(&self, elapsed: Duration) -> Option<u64> {
        let elapsed = elapsed.as_nanos();
        let (cycle, within) = match self.length() {
            Some(length) => (elapsed / length, elapsed % length),
            None => (0, elapsed),
        };
        let cycle = u64::try_from(cycle).unwrap_or(u64::MAX);
        let is_over = self.duration.is_some() && self.repeat != 0 && cycle >= self.repeat;
        (!is_over && within >= self.delay.as_nanos()).then_some(cycle)
    }

    fn time_to_next_change(&self, elapsed: Duration) -> Option<Duration> {
        let nanos = |nanos: u128| Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        let (elapsed, delay) = (elapsed.as_nanos(), self.delay.as_nanos());
        let Some(length) = self.length() else {
            return (elapsed < delay).then(|| nanos(delay - elapsed));
        };
        let (cycle, within) = (elapsed / length, elapsed % length);
        if self.repeat != 0 && cycle >= u128::from(self.repeat) {
            return None;
        }
        Some(nanos(if within < delay { delay - within } else { length - within }))
    }

    fn has_reached_limit(&self, opened: RunProgress, now: RunProgress) -> bool {
        let is_past =
            |most: Option<u64>, from: u64, to: u64| most.is_some_and(|most| to.saturating_sub(from) >= most);
        is_past(self.max_launches, opened.launches, now.launches)
            || is_past(self.max_bytes, opened.bytes, now.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(seconds: u32) -> RunProgress {
        RunProgress { time: seconds * SECOND, ..RunProgress::default() }
    }

    fn begun(plan: WindowPlan) -> Schedule {
        let mut schedule = Schedule::new(plan);
        assert_eq!(schedule.next_change(at(0)), None, "there is no run");
        schedule.begin(at(0));
        schedule
    }

    /// Returns each change that is due at one of `seconds`, paired with that second.
    fn changes(schedule: &mut Schedule, seconds: Range<u32>) -> Vec<(u32, WindowChange)> {
        seconds.filter_map(|second| Some((second, schedule.next_change(at(second))?))).collect()
    }

    #[test]
    fn without_a_plan_one_window_covers_the_whole_run() {
        let mut schedule = begun(WindowPlan::default());
        assert_eq!(changes(&mut schedule, 0..100), [(0, WindowChange::Open)]);
        assert_eq!(schedule.time_to_next_change(at(100)), None);
        schedule.end();
        assert_eq!(changes(&mut schedule, 100..110), [(100, WindowChange::Close)]);
    }

    #[test]
    fn windows_match_the_delay_duration_and_repeat_count() {
        let plan =
            WindowPlan { delay: 3 * SECOND, duration: Some(2 * SECOND), repeat: 2, ..WindowPlan::default() };
        let mut schedule = begun(plan);
        let expected = [
            (3, WindowChange::Open),
            (5, WindowChange::Close),
            (8, WindowChange::Open),
            (10, WindowChange::Close),
        ];
        assert_eq!(changes(&mut schedule, 0..40), expected);
        let patience = |second| schedule.time_to_next_change(at(second));
        assert_eq!([patience(0), patience(3), patience(4)], [3, 2, 1].map(|seconds| Some(seconds * SECOND)));
        assert_eq!([patience(5), patience(9), patience(10)], [Some(3 * SECOND), Some(SECOND), None]);
    }

    #[test]
    fn without_a_delay_windows_follow_each_other_directly() {
        let mut schedule =
            begun(WindowPlan { duration: Some(2 * SECOND), repeat: 3, ..WindowPlan::default() });
        let expected = [
            (0, WindowChange::Open),
            (2, WindowChange::Next),
            (4, WindowChange::Next),
            (6, WindowChange::Close),
        ];
        assert_eq!(changes(&mut schedule, 0..40), expected);
    }

    #[test]
    fn a_late_check_skips_windows_that_are_over() {
        let mut schedule =
            begun(WindowPlan { delay: SECOND, duration: Some(SECOND), repeat: 3, ..WindowPlan::default() });
        assert_eq!(schedule.next_change(at(1)), Some(WindowChange::Open));
        // In this test, the schedule was not checked at second 2, at which the first window should have closed. At
        // second 3, the second window begins.
        assert_eq!(schedule.next_change(at(3)), Some(WindowChange::Next));
        assert_eq!(schedule.next_change(at(77)), Some(WindowChange::Close));
    }

    #[test]
    fn steps_count_from_the_start_of_their_run() {
        let mut schedule = Schedule::new(WindowPlan { steps: Some(2..4), ..WindowPlan::default() });
        let at = |steps| RunProgress { steps, ..RunProgress::default() };
        schedule.begin(at(10));
        let changes: Vec<_> = (10..16).map(|steps| schedule.next_change(at(steps))).collect();
        assert_eq!(changes, [None, None, Some(WindowChange::Open), None, Some(WindowChange::Close), None]);
        schedule.end();
        assert_eq!(schedule.next_change(at(16)), None);
        schedule.begin(at(16));
        assert_eq!(
            [schedule.next_change(at(17)), schedule.next_change(at(18))],
            [None, Some(WindowChange::Open)]
        );
        // A new run begins a new window, so the old window closes.
        schedule.begin(at(18));
        assert_eq!(schedule.next_change(at(18)), Some(WindowChange::Close));
        assert_eq!(schedule.next_change(at(20)), Some(WindowChange::Open));
    }

    #[test]
    fn a_window_that_reached_its_launch_limit_stays_closed_until_the_next_window() {
        let plan = WindowPlan {
            duration: Some(10 * SECOND),
            repeat: 0,
            max_launches: Some(100),
            ..WindowPlan::default()
        };
        let mut schedule = begun(plan);
        let at = |second, launches| RunProgress { launches, ..at(second) };
        assert_eq!(schedule.next_change(at(0, 50)), Some(WindowChange::Open));
        assert!(schedule.is_limited());
        assert_eq!(schedule.next_change(at(1, 149)), None);
        assert_eq!(schedule.next_change(at(2, 150)), Some(WindowChange::Close));
        assert!(!schedule.is_limited());
        assert_eq!(schedule.next_change(at(9, 999)), None);
        assert_eq!(schedule.next_change(at(10, 1000)), Some(WindowChange::Open));
        assert_eq!(schedule.next_change(at(20, 1099)), Some(WindowChange::Next));
        assert_eq!(schedule.next_change(at(21, 1198)), None, "the window counts from its own beginning");
        schedule.begin(at(22, 1198));
        assert_eq!(schedule.next_change(at(22, 1198)), Some(WindowChange::Next));
    }

    #[test]
    fn a_window_closes_at_its_byte_limit() {
        let mut schedule = begun(WindowPlan { max_bytes: Some(1000), ..WindowPlan::default() });
        let at = |bytes| RunProgress { bytes, ..RunProgress::default() };
        assert_eq!(schedule.next_change(at(5)), Some(WindowChange::Open));
        assert_eq!(
            [schedule.next_change(at(1004)), schedule.next_change(at(1005))],
            [None, Some(WindowChange::Close)]
        );
    }
}
