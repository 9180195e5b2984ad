//! Finds the replayed times of host events other than the begin or end of a call, for example the begin of a step.
//!
//! ```text
//! recorded   | call |--- 30 us ---^--- 70 us ---| next call |     ^ the step begins
//! what if    the time between both calls is halved: the step begins 15 us after the call
//! ```

use super::super::critical_path::CriticalPath;
use super::super::critical_path::graph::EdgeKind;
use super::Schedule;
use gpuflame_model::record::{IdMap, ThreadId};

/// A moment of the run, given by its position, with its recorded time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Anchor {
    moment: usize,
    time: u64,
}

/// A time on the host, together with the moments before and after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostTime {
    time: u64,
    /// Last call begin or end before this time, on the thread if one is given.
    before: Option<Anchor>,
    /// First call begin or end after this time, on the thread if one is given.
    after: Option<Anchor>,
    /// End of the recorded run, if this time is after the end and after all calls.
    run_end: Option<u64>,
}

impl HostTime {
    /// Finds the calls before and after each time in `times`, which are in ns since 1970. If a time has a thread that
    /// makes calls, only calls of this thread count. If a time has no such thread, the calls of all threads count. If a
    /// time has no thread and comes after all moments, it keeps its distance from the end of the run.
    pub fn find(path: &CriticalPath, times: &[(u64, Option<ThreadId>)]) -> Vec<Self> {
        let calls = path.calls();
        let mut of_thread: IdMap<ThreadId, Vec<Anchor>> =
            times.iter().filter_map(|(_, thread)| Some(((*thread)?, Vec::new()))).collect();
        let mut of_all = Vec::new();
        for (moment, one) in path.moments().iter().enumerate() {
            let Some(call) = calls.get(one.call as usize) else { continue };
            let anchor = Anchor { moment, time: one.time };
            of_all.push(anchor);
            if let Some(of_thread) = of_thread.get_mut(&call.thread) {
                of_thread.push(anchor);
            }
        }
        let end = path.window().1;
        let find = |&(time, thread): &(u64, Option<ThreadId>)| {
            let own = thread.and_then(|thread| of_thread.get(&thread)).filter(|own| !own.is_empty());
            let anchors = own.unwrap_or(&of_all);
            let at = anchors.partition_point(|anchor| anchor.time <= time);
            let (before, after) = (at.checked_sub(1).map(|at| anchors[at]), anchors.get(at).copied());
            let run_end = (thread.is_none() && time >= end).then_some(end);
            let waited_for = after.and_then(|after| hand_off(path, after, time));
            let before =
                waited_for.filter(|end| before.is_none_or(|before| before.time < end.time)).or(before);
            Self { time, before, after, run_end }
        };
        times.iter().map(find).collect()
    }

    /// Returns the recorded time, in ns since 1970.
    pub fn recorded(&self) -> u64 {
        self.time
    }

    /// Returns the replayed time of this host event in a schedule, in ns since 1970. Returns `None` if the run has no
    /// calls.
    ///
    /// A replayed time keeps its distance from the moment before it. If the moments before and after the time are
    /// closer together than in the recorded run, the distance is reduced by the same factor.
    pub fn time_in(&self, schedule: &Schedule) -> Option<u64> {
        if let Some(end) = self.run_end {
            return Some(schedule.window().1.saturating_add(self.time - end));
        }
        match (self.before, self.after) {
            (Some(before), Some(after)) => {
                let (from, to) = (schedule.time(before.moment), schedule.time(after.moment));
                let (old, new) = (after.time - before.time, to.saturating_sub(from));
                let distance = self.time - before.time;
                let distance = match new < old {
                    true => (u128::from(distance) * u128::from(new) / u128::from(old)) as u64,
                    false => distance,
                };
                Some(from.saturating_add(distance))
            }
            (Some(before), None) => {
                Some(schedule.time(before.moment).saturating_add(self.time - before.time))
            }
            (None, Some(after)) => Some(schedule.time(after.moment).saturating_sub(after.time - self.time)),
            (None, None) => None,
        }
    }
}

/// Returns the end of the other thread's call for which the call at `after` waited. Returns `None` if `after` waited
/// for no call, or if that call ended after `time`.
fn hand_off(path: &CriticalPath, after: Anchor, time: u64) -> Option<Anchor> {
    let edge = path.deciding_edge(after.moment).filter(|edge| edge.kind == EdgeKind::HandOff)?;
    let moment = edge.from as usize;
    let end = path.moments()[moment].time;
    (end <= time).then_some(Anchor { moment, time: end })
}
