//! Measures how reliably stacks can be matched to kernels by time, as other tools do. The measurement uses launches
//! whose ids are known.

use std::collections::HashMap;

use crate::inside::{Id, Inside};
use crate::launched::{Launch, Seen};

/// Method of matching stacks to launches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// The nth stack belongs to the nth launch of the process. The tutorial does this if there are as many stacks as
    /// launches.
    Order,
    /// A stack belongs to the launch nearest in time, at most 10 ms away. The tutorial does this if the numbers
    /// differ.
    Nearest,
}

/// Result of a method.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Grade {
    pub(crate) launches: u64,
    /// Number of launches matched to the stack of another launch.
    pub(crate) wrong_launches: u64,
    /// Number of such launches for which the two stacks differ, so that their work is drawn in the wrong place.
    pub(crate) wrong_stacks: u64,
    pub(crate) nanos: u64,
    /// GPU time of the work drawn in the wrong place, in ns.
    pub(crate) wrong_nanos: u64,
}

const TOLERANCE: u64 = 10_000_000;

/// Grades a method. `ahead` is how much the realtime clock is ahead of the monotonic clock; the method receives this
/// exact value.
pub(crate) fn grade(seen: &Seen, inside: &Inside, ahead: i64, way: Way) -> Grade {
    let mut processes: HashMap<u32, Vec<(Id, &Launch)>> = HashMap::new();
    for launch in seen.launches.iter().filter(|launch| !launch.nested) {
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

fn grade_process(probes: &[(Id, &Launch)], inside: &Inside, ahead: i64, way: Way, grade: &mut Grade) {
    let stack_of: HashMap<Id, u32> = probes.iter().map(|(id, launch)| (*id, launch.stack)).collect();
    let mut launches: Vec<(u64, Id)> = probes.iter().map(|(id, _)| (inside.launches[id].time, *id)).collect();
    launches.sort_unstable();
    for (at, (time, id)) in launches.iter().enumerate() {
        let tied = match way {
            Way::Order => Some(probes[at].0),
            Way::Nearest => nearest(probes, *time as i64 - ahead),
        };
        let nanos = inside.launches[id].work.as_ref().map_or(0, |(_, nanos)| *nanos);
        let is_other_stack = tied.map(|tied| stack_of[&tied]) != Some(stack_of[id]);
        grade.launches += 1;
        grade.nanos += nanos;
        grade.wrong_launches += u64::from(tied != Some(*id));
        grade.wrong_stacks += u64::from(is_other_stack);
        grade.wrong_nanos += if is_other_stack { nanos } else { 0 };
    }
}

fn nearest(probes: &[(Id, &Launch)], time: i64) -> Option<Id> {
    let at = probes.partition_point(|(_, launch)| (launch.time as i64) < time);
    let near = &probes[at.saturating_sub(1)..probes.len().min(at + 1)];
    let distance = |launch: &Launch| (launch.time as i64).abs_diff(time);
    let (id, launch) = near.iter().min_by_key(|(_, launch)| distance(launch))?;
    (distance(launch) <= TOLERANCE).then_some(*id)
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;
    use crate::inside::Recorded;

    /// Returns two threads whose calls begin in the order 1, 2 and are recorded inside in the order 2, 1.
    fn crossed() -> (Seen, Inside) {
        let (mut seen, mut inside) = (Seen::default(), Inside::default());
        for (id, probe, recorded, nanos) in [(1, 100, 900, 30), (2, 200, 300, 70), (3, 5_000, 5_100, 100)] {
            seen.launches.push(Launch {
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
                .insert((7, id), Recorded { time: recorded, tid: id, stack, is_whole: true, work });
        }
        (seen, inside)
    }

    #[test]
    fn overlapping_calls_are_matched_wrongly_by_order_and_by_nearest_time() {
        let (seen, inside) = crossed();
        let grade_by = |way| {
            let grade = grade(&seen, &inside, 0, way);
            (grade.launches, grade.wrong_launches, grade.wrong_nanos, grade.nanos)
        };
        assert_eq!(grade_by(Way::Order), (3, 2, 100, 200));
        // Launch 1, at 900, is nearest to probe 2, at 200.
        assert_eq!(grade_by(Way::Nearest), (3, 1, 30, 200));
    }
}
