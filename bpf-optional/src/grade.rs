//! Measures how often other tools match a stack to the wrong launch, because these tools match by order or by time. All
//! launches in this measurement have correlation ids, so it is known which stack belongs to which launch.

use std::collections::HashMap;

use crate::probed_launches::{Launch, ProbedLaunches};
use crate::recorded_launches::{LaunchId, RecordedLaunches};

/// Method with which a tool matches stacks to launches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MatchMethod {
    /// The nth stack is matched to the nth launch of the process. The tutorial by eunomia uses this method if the
    /// number of stacks equals the number of launches.
    Order,
    /// A stack is matched to the launch whose time is nearest to the time of the stack, at most 10 ms away. The
    /// tutorial by eunomia uses this method if the number of stacks differs from the number of launches.
    Nearest,
}

/// Number of launches that a method has matched, and how many of these matches are wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Grade {
    pub(crate) launches: u64,
    /// Number of launches that the method has matched with the stack of another launch.
    pub(crate) wrong_launches: u64,
    /// Number of launches that were matched with a stack that differs from their own stack. The GPU work of these
    /// launches appears under the wrong stack.
    pub(crate) wrong_stacks: u64,
    pub(crate) nanos: u64,
    /// Total time in ns of the GPU work that appears under the wrong stack.
    pub(crate) wrong_nanos: u64,
}

const TOLERANCE_NS: u64 = 10_000_000;

/// Grades a method by comparing its matches with the right matches. `ahead` is `CLOCK_REALTIME` minus
/// `CLOCK_MONOTONIC`, in ns. With this exact difference, times are converted from one clock to the other.
pub(crate) fn grade(
    probed: &ProbedLaunches,
    inside: &RecordedLaunches,
    ahead: i64,
    way: MatchMethod,
) -> Grade {
    let mut processes: HashMap<u32, Vec<(LaunchId, &Launch)>> = HashMap::new();
    for launch in probed.launches.iter().filter(|launch| !launch.nested) {
        let Some(correlation) = launch.correlation else { continue };
        let id = (launch.pid, correlation);
        if inside.launches.get(&id).is_some_and(|recorded| recorded.work.is_some()) {
            processes.entry(launch.pid).or_default().push((id, launch));
        }
    }
    let mut grade = Grade::default();
    for mut probes in processes.into_values() {
        probes.sort_by_key(|(_, launch)| launch.time);
        grade_process(&probes, inside, ahead, way, &mut grade);
    }
    grade
}

fn grade_process(
    probes: &[(LaunchId, &Launch)],
    inside: &RecordedLaunches,
    ahead: i64,
    way: MatchMethod,
    grade: &mut Grade,
) {
    let stack_of: HashMap<LaunchId, u32> = probes.iter().map(|(id, launch)| (*id, launch.stack)).collect();
    let mut launches: Vec<(u64, LaunchId)> =
        probes.iter().map(|(id, _)| (inside.launches[id].time, *id)).collect();
    launches.sort_unstable();
    for (at, (time, id)) in launches.iter().enumerate() {
        let matched = match way {
            MatchMethod::Order => Some(probes[at].0),
            MatchMethod::Nearest => find_nearest(probes, *time as i64 - ahead),
        };
        let nanos = inside.launches[id].work.as_ref().map_or(0, |(_, nanos)| *nanos);
        let is_other_stack = matched.map(|matched| stack_of[&matched]) != Some(stack_of[id]);
        grade.launches += 1;
        grade.nanos += nanos;
        grade.wrong_launches += u64::from(matched != Some(*id));
        grade.wrong_stacks += u64::from(is_other_stack);
        grade.wrong_nanos += if is_other_stack { nanos } else { 0 };
    }
}

fn find_nearest(probes: &[(LaunchId, &Launch)], time: i64) -> Option<LaunchId> {
    let at = probes.partition_point(|(_, launch)| (launch.time as i64) < time);
    let near = &probes[at.saturating_sub(1)..probes.len().min(at + 1)];
    let distance = |launch: &Launch| (launch.time as i64).abs_diff(time);
    let (id, launch) = near.iter().min_by_key(|(_, launch)| distance(launch))?;
    (distance(launch) <= TOLERANCE_NS).then_some(*id)
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;
    use crate::recorded_launches::RecordedLaunch;

    /// Returns three launches, as seen by the probes and as recorded by the library. The probes see launch 1 before
    /// launch 2, but the library records launch 2 before launch 1.
    fn crossed() -> (ProbedLaunches, RecordedLaunches) {
        let (mut probed, mut inside) = (ProbedLaunches::default(), RecordedLaunches::default());
        for (id, probe, recorded, nanos) in [(1, 100, 900, 30), (2, 200, 300, 70), (3, 5_000, 5_100, 100)] {
            probed.launches.push(Launch {
                time: probe,
                pid: 7,
                tid: id,
                cpu: 0,
                comm: 0,
                probe: 0,
                stack: id,
                correlation: Some(id),
                nested: false,
            });
            let (stack, work) = (Rc::default(), Some((String::new(), nanos)));
            inside
                .launches
                .insert((7, id), RecordedLaunch { time: recorded, tid: id, stack, is_complete: true, work });
        }
        (probed, inside)
    }

    #[test]
    fn overlapping_calls_are_matched_wrongly_by_order_and_by_nearest_time() {
        let (probed, inside) = crossed();
        let grade_by = |way| {
            let grade = grade(&probed, &inside, 0, way);
            (grade.launches, grade.wrong_launches, grade.wrong_nanos, grade.nanos)
        };
        assert_eq!(grade_by(MatchMethod::Order), (3, 2, 100, 200));
        // The library recorded launch 1 at the time 900. Of all probe hits, the hit of probe 2 at the time 200 is
        // nearest to 900.
        assert_eq!(grade_by(MatchMethod::Nearest), (3, 1, 30, 200));
    }
}
