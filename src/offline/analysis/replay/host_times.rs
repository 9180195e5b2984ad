//! Finds the replayed times of host events that are not the begin or end of a call, for example the begin of a step.
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
    /// Last begin or end of a call before this time. If the time has a thread with calls, only the calls of this thread
    /// count.
    before: Option<Anchor>,
    /// First begin or end of a call after this time. If the time has a thread with calls, only the calls of this thread
    /// count.
    after: Option<Anchor>,
    /// End of the recorded run, if this time has no thread and is not before the end of the run.
    run_end: Option<u64>,
}

impl HostTime {
    /// Finds the calls before and after each time in `times`, which are in ns since 1970. For a time on a thread that
    /// makes calls, only the calls of this thread count. For all other times, the calls of all threads count. If a time
    /// has no thread and comes after all moments, the replay keeps the distance from the end of the run to this time.
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

    /// Returns the time of this host event in the recorded run, in ns since 1970.
    pub fn recorded(&self) -> u64 {
        self.time
    }

    /// Returns the replayed time of this host event in a schedule, in ns since 1970. Returns `None` if the run has no
    /// calls.
    ///
    /// The replay keeps the distance between the host event and the moment before it. If the moments before and after
    /// the host event are closer together in the replay than in the recorded run, all distances between them are
    /// reduced by the same factor.
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

/// If the call at `after` waited for a call on another thread, returns the end of the call on the other thread. Returns
/// `None` if the call at `after` waited for no call, or if the call on the other thread ended after `time`.
fn hand_off(path: &CriticalPath, after: Anchor, time: u64) -> Option<Anchor> {
    let edge = path.deciding_edge(after.moment).filter(|edge| edge.kind == EdgeKind::HandOff)?;
    let moment = edge.from as usize;
    let end = path.moments()[moment].time;
    (end <= time).then_some(Anchor { moment, time: end })
}
