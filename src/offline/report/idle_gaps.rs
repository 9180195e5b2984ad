//! Idle time of each GPU, divided by cause, as slices of the timeline.
//!
//! Idle time is attributed by the same rules as the sums of idle time (`gpuflame_explain::timeline`). A gap is a time
//! in which no work ran on a GPU. A gap is attributed to the launch of the work that ended the gap. Only those parts of
//! a gap are counted as idle in which a window was open.

use std::collections::BTreeMap;

use gpuflame_explain::join::Launched;
use gpuflame_explain::timeline::gap_causes;
use gpuflame_model::profile::{Cause, Profile};
use gpuflame_model::record::{ContextId, DeviceId, Nanos, WindowEdge};

use super::timeline_slices::Slice;

/// Names of the causes of idle time, as in `gpuflame top --by idle`. The name index of a slice is an index into this
/// list.
pub(super) const CAUSES: [&str; 6] =
    ["host_late", "launch_latency", "dependency", "before_the_first", "after_the_last", "unknown"];

const BEFORE_THE_FIRST: u32 = 3;
const AFTER_THE_LAST: u32 = 4;

/// An operation on a GPU.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeviceWork {
    pub(super) start: u64,
    pub(super) end: u64,
    /// Launch of the operation; `None` if it is unknown or outside all windows.
    pub(super) launched: Option<Launched>,
    pub(super) is_outside: bool,
}

/// Returns the idle time of each GPU between `from` and `to`, in order of time.
pub(super) fn idle_gaps(
    work: BTreeMap<DeviceId, Vec<DeviceWork>>,
    profile: &Profile,
    (from, to): (u64, u64),
) -> BTreeMap<DeviceId, Vec<Slice>> {
    if profile.idle_doubt().is_some() {
        return BTreeMap::new();
    }
    let windows = Windows::new(profile);
    let inside = |slice: &Slice| slice.start < to && slice.end > from;
    let cut = |slice: Slice| Slice::new(slice.start.max(from), slice.end.min(to), slice.name());
    let gaps_of = |work| gaps_of_device(work, &windows).into_iter().filter(inside).map(cut).collect();
    work.into_iter().map(|(device, work)| (device, gaps_of(work))).collect()
}

/// Time ranges in which a window was open. If this list is empty, idle time is counted for the whole run.
struct Windows(Vec<(u64, u64)>);

impl Windows {
    fn new(profile: &Profile) -> Self {
        let mut spans: Vec<(u64, u64)> = Vec::new();
        for &(edge, Nanos(time)) in profile.windows() {
            let open = spans.last_mut().filter(|span| span.1 == u64::MAX);
            match (edge, open) {
                (WindowEdge::Open, None) => spans.push((time, u64::MAX)),
                (WindowEdge::Close, Some(span)) => span.1 = time.max(span.0),
                _ => {}
            }
        }
        Self(spans)
    }

    /// Returns the parts of `from..to` in which a window was open.
    fn parts(&self, from: u64, to: u64) -> Vec<(u64, u64)> {
        let parts = |spans: &[(u64, u64)]| {
            let cut = spans.iter().map(|span| (span.0.max(from), span.1.min(to)));
            cut.filter(|(from, to)| from < to).collect()
        };
        if self.0.is_empty() {
            return parts(&[(from, to)]);
        }
        let first = self.0.partition_point(|span| span.1 <= from);
        let count = self.0[first..].partition_point(|span| span.0 < to);
        parts(&self.0[first..first + count])
    }

    fn last_close(&self) -> u64 {
        self.0.last().map_or(0, |span| if span.1 == u64::MAX { 0 } else { span.1 })
    }
}

fn gaps_of_device(mut work: Vec<DeviceWork>, windows: &Windows) -> Vec<Slice> {
    // If several operations begin at the same time, the operation that was launched first ended the gap.
    let call = |it: &DeviceWork| it.launched.map_or((0, 0), |launched| (launched.time.0, launched.duration));
    work.sort_by_key(|it| (it.start, call(it), it.end));
    let mut gaps = Vec::new();
    let mut busy_until = None;
    for it in work.iter().filter(|it| it.start < it.end) {
        let from = match busy_until {
            None if windows.0.is_empty() => it.start,
            known => known.unwrap_or(0),
        };
        for (open, to) in windows.parts(from, it.start) {
            let is_first = open > from || busy_until.is_none();
            let was_launched = to == it.start || !it.is_outside && (1..to).contains(&call(it).0);
            match was_launched {
                true => push_causes(&mut gaps, (open, to), it, is_first),
                false => gaps.push(Slice::new(open, to, AFTER_THE_LAST)),
            }
        }
        busy_until = busy_until.max(Some(it.end));
    }
    let closing = windows.parts(busy_until.unwrap_or(u64::MAX), windows.last_close());
    gaps.extend(closing.into_iter().map(|(from, to)| Slice::new(from, to, AFTER_THE_LAST)));
    gaps
}

fn push_causes(gaps: &mut Vec<Slice>, (from, to): (u64, u64), ended_by: &DeviceWork, is_first: bool) {
    let unknown = Launched { time: Nanos(0), duration: 0, context: ContextId::NONE };
    let mut since = from;
    for (cause, nanos) in gap_causes(from, to, ended_by.start, ended_by.launched.unwrap_or(unknown)) {
        let name = if is_first { BEFORE_THE_FIRST } else { number(cause) };
        if nanos > 0 {
            gaps.push(Slice::new(since, since + nanos, name));
        }
        since += nanos;
    }
}

fn number(cause: Cause) -> u32 {
    let at = CAUSES.iter().position(|word| *word == cause.word());
    at.expect("the list has all causes") as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(start: u64, end: u64, called: u64) -> DeviceWork {
        let launched = Launched { time: Nanos(called), duration: 1_000, context: ContextId::NONE };
        DeviceWork { start, end, launched: Some(launched), is_outside: false }
    }

    fn shown(work: Vec<DeviceWork>, windows: &[(u64, u64)]) -> Vec<(u64, u64, &'static str)> {
        let gaps = gaps_of_device(work, &Windows(windows.to_vec()));
        gaps.iter().map(|it| (it.start, it.end, CAUSES[it.name() as usize])).collect()
    }

    #[test]
    fn a_gap_is_divided_by_the_launch_that_ended_it() {
        // The call begins at 50,000 ns and returns at 51,000 ns. The launch latency ends 10,000 ns after the call
        // returns.
        let all = vec![work(10_000, 20_000, 5_000), work(80_000, 90_000, 50_000)];
        let gaps = [
            (20_000, 50_000, "host_late"),
            (50_000, 61_000, "launch_latency"),
            (61_000, 80_000, "dependency"),
        ];
        assert_eq!(shown(all, &[]), gaps);
    }

    #[test]
    fn overlapping_work_has_no_gap_and_unknown_launches_have_no_cause() {
        let unknown = DeviceWork { launched: None, ..work(90_000, 95_000, 0) };
        let all = vec![work(10_000, 60_000, 5_000), work(15_000, 20_000, 6_000), unknown];
        assert_eq!(shown(all, &[]), [(60_000, 90_000, "unknown")]);
    }

    #[test]
    fn only_time_in_windows_counts() {
        let all = vec![work(10_000, 20_000, 8_000), work(50_000, 60_000, 48_000)];
        let windows = [(5_000, 30_000), (45_000, 70_000)];
        let gaps = [
            (5_000, 8_000, "before_the_first"),
            (8_000, 10_000, "before_the_first"),
            (20_000, 30_000, "after_the_last"),
            (45_000, 48_000, "before_the_first"),
            (48_000, 50_000, "before_the_first"),
            (60_000, 70_000, "after_the_last"),
        ];
        assert_eq!(shown(all, &windows), gaps);
    }
}
