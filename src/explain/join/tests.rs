//! Tests the join with hand-made rows, and compares it with a brute-force implementation on shuffled rows.

use std::collections::HashMap;

use super::*;
use gpuflame_model::record::testing::{Rng, alias, kernel, launch};
use gpuflame_model::record::{ContextId, DeviceId, GraphId, GraphNodeId, OutsideLaunches};

/// A sink that stores all activities, and all launches without an activity.
#[derive(Default)]
struct Seen {
    activities: Vec<(Activity, Origin)>,
    pending: Vec<CorrelationId>,
    outside: Vec<Activity>,
}

impl Sink for Seen {
    fn activity(&mut self, activity: &Activity, origin: Origin) {
        self.activities.push((*activity, origin));
    }

    fn pending(&mut self, id: CorrelationId, _: Launched) {
        self.pending.push(id);
    }

    fn outside(&mut self, activity: &Activity, _: Launched) {
        self.outside.push(*activity);
    }
}

impl Seen {
    /// Returns the received activities, as pairs of start time and context (or the reason why there is no context).
    fn summary(&self) -> Vec<(u64, Result<u32, Missing>)> {
        self.activities.iter().map(|(a, origin)| (a.start.0, origin.context().map(|c| c.0))).collect()
    }
}

fn run(limits: Limits, rows: &[Row<'_>]) -> (Seen, Tally) {
    let (mut join, mut seen) = (Join::new(limits), Seen::default());
    for row in rows {
        join.push(row, &mut seen);
    }
    let before = join.tally;
    let tally = join.final_tally(&mut seen);
    assert_eq!(join.tally, before);
    assert!(before.launches.open() + before.activities.open() <= (rows.len() as u64));
    check(&seen, &tally);
    (seen, tally)
}

/// Checks invariants that hold for every sequence of rows.
fn check(seen: &Seen, tally: &Tally) {
    let (l, a) = (tally.launches, tally.activities);
    assert_eq!(l.open(), 0, "{tally:?}");
    assert_eq!(a.open(), 0, "{tally:?}");
    assert_eq!(l.seen, l.matched + l.pending + l.outside);
    assert_eq!(a.seen, a.matched + a.launched_before + a.device_graph + a.no_stack + a.outside);
    assert_eq!(l.seen, l.parts().iter().map(|(_, count)| count).sum::<u64>());
    assert_eq!(a.seen, a.parts().iter().map(|(_, count)| count).sum::<u64>());
    assert_eq!(l.pending, seen.pending.len() as u64);
    assert_eq!(a.outside, seen.outside.len() as u64);
    assert_eq!(a.seen - a.outside, seen.activities.len() as u64);
    let untimed = seen.activities.iter().filter(|(a, _)| a.duration().is_none()).count();
    assert_eq!(a.untimed, untimed as u64);
}

/// Returns small limits for tests: one page of 64 recent ids, two waiting and two running launches, and three orphans.
fn small() -> Limits {
    Limits { recent: 64, waiting: 2, running: 2, orphans: 3 }
}

const OUTSIDE: u32 = ContextId::OUTSIDE.0;
const NONE: u32 = ContextId::NONE.0;

#[test]
fn launches_and_activities_match_in_either_order() {
    let rows = [
        Row::Launch(launch(1, 11)),
        Row::Activity(kernel(1, 100, 110)),
        Row::Activity(kernel(2, 120, 130)),
        Row::Launch(launch(2, 12)),
    ];
    let (seen, tally) = run(Limits::default(), &rows);
    assert_eq!(seen.summary(), [(100, Ok(11)), (120, Ok(12))]);
    assert_eq!((tally.launches.matched, tally.activities.matched), (2, 2));
}

#[test]
fn all_kernels_of_a_graph_belong_to_its_launch_which_counts_once() {
    let rows = [
        Row::Activity(kernel(5, 100, 110)),
        Row::Activity(kernel(5, 110, 120)),
        Row::Launch(launch(5, 11)),
        Row::Activity(kernel(5, 120, 130)),
    ];
    let (seen, tally) = run(Limits::default(), &rows);
    assert_eq!(seen.summary(), [(100, Ok(11)), (110, Ok(11)), (120, Ok(11))]);
    assert_eq!((tally.launches.seen, tally.launches.matched, tally.activities.matched), (1, 1, 3));
}

#[test]
fn activities_with_impossible_ids_are_counted_separately_in_any_order() {
    let window = Row::Window { edge: WindowEdge::Open, time: Nanos(1) };
    let absurd = |id| Row::Activity(kernel(id, 500, 510));
    // An activity whose id is close to the id of a launch may belong to a launch that was lost, or that was made before
    // recording began.
    let near = [absurd(70_000), absurd(99)];
    let far = [absurd(0x8000_0064), absurd(1 << 31), absurd(3 << 30)];
    let launches = [Row::Launch(launch(100, 11)), Row::Launch(launch(200, 12))];
    for (first, then) in [(&launches[..], &far[..]), (&far, &launches)] {
        let rows: Vec<_> = [&window].into_iter().chain(first).chain(then).chain(&near).cloned().collect();
        let (seen, tally) = run(Limits { orphans: 8, ..Limits::default() }, &rows);
        assert_eq!(seen.summary().len(), near.len(), "{:?}", seen.summary());
        let Activities { seen, of_no_call, no_stack, launched_before, .. } = tally.activities;
        assert_eq!((seen, of_no_call, no_stack, launched_before), (2, 3, 1, 1));
    }
    // In this test case, the tracer does not report many of the calls. In this test case, an activity that was launched
    // after unreported calls arrives before its launch.
    let late = (1 << 30) + 300;
    let told = |on, time| Row::CallbacksSwitched { on, time: Nanos(time) };
    let mut rows = vec![window.clone()];
    rows.extend_from_slice(&launches);
    rows.extend([told(false, 1000), told(true, 9000)]);
    rows.extend([Row::Activity(kernel(late, 9500, 9510)), Row::Launch(launch(late, 13))]);
    let activities = run(Limits { orphans: 8, ..Limits::default() }, &rows).1.activities;
    assert_eq!((activities.matched, activities.outside, activities.of_no_call), (1, 0, 0));
    // It is unknown how other tools assign the ids in their traces.
    let rows: Vec<_> = launches.iter().chain(&far).cloned().collect();
    assert_eq!(run(Limits::default(), &rows).1.activities.of_no_call, 0);
}

#[test]
fn a_duplicate_activity_counts_once_and_parts_of_a_copy_count_separately() {
    let part = |start| Row::Activity(kernel(5, start, start + 10));
    let untimed = Row::Activity(kernel(6, 0, 0));
    let delivered = [part(100), part(100), part(110), part(120), part(120), untimed.clone(), untimed];
    for before in 0..=delivered.len() {
        let mut rows = delivered.to_vec();
        rows.splice(before..before, [Row::Launch(launch(5, 11)), Row::Launch(launch(6, 12))]);
        let (seen, tally) = run(Limits { orphans: 8, ..Limits::default() }, &rows);
        let mut found = seen.summary();
        found.sort_unstable();
        assert_eq!(
            found,
            [(0, Ok(12)), (0, Ok(12)), (100, Ok(11)), (110, Ok(11)), (120, Ok(11))],
            "{before}"
        );
        assert_eq!((tally.activities.seen, tally.activities.repeated), (5, 2), "{before}");
    }
}

/// Two activities have no launch row: launch 7 was lost, and launch 5 is in a range of launches outside of windows. The
/// last two activities were launched by the GPU itself.
#[test]
fn duplicates_without_a_launch_count_once() {
    let part = |id, start| Row::Activity(kernel(id, start, start + 10));
    let node = |start| {
        let (graph, graph_node) = (GraphId(3), GraphNodeId(9));
        Row::Activity(Activity { graph, graph_node, device_launched: true, ..kernel(0, start, start + 10) })
    };
    let delivered =
        [part(5, 100), part(5, 110), part(7, 120), part(7, 130), part(0, 140), node(150), node(160)];
    let range = Row::Outside(OutsideLaunches {
        first: CorrelationId(5),
        last: CorrelationId(5),
        count: 1,
        over: Nanos(90),
    });
    let all: Vec<_> = delivered.iter().flat_map(|row| [row, row]).chain(&delivered).cloned().collect();
    for orphans in [1, 100] {
        for before in 0..=all.len() {
            let mut rows = all.clone();
            rows.insert(before, range.clone());
            rows.insert(0, Row::Launch(launch(4, 11)));
            let (seen, tally) = run(Limits { orphans, ..Limits::default() }, &rows);
            let sum = |times: &mut dyn Iterator<Item = &Activity>| times.map(|a| a.start.0).sum::<u64>();
            let Activities { outside, no_stack, launched_before, device_graph, repeated, .. } =
                tally.activities;
            if orphans == 100 || before == 0 {
                assert_eq!((outside, sum(&mut seen.outside.iter())), (2, 210), "{before}");
            }
            // If there is room for only one orphan, the join may stop waiting for an activity's launch before the range
            // with its id arrives.
            assert_eq!(outside + no_stack, 4, "{before}");
            assert_eq!((launched_before, device_graph), (3, 2), "{before}: three copies with the id 0");
            assert_eq!(repeated, 2 * 6, "{before}");
        }
    }
}

/// One call may launch work on several GPUs at the same time.
#[test]
fn activities_on_two_gpus_are_not_duplicates() {
    let on = |device, start| Activity { device: DeviceId(device), ..kernel(5, start, start + 10) };
    let rows = [on(0, 300), on(1, 300), on(1, 300)].map(Row::Activity);
    for before in 0..=rows.len() {
        let mut rows = rows.to_vec();
        rows.insert(before, Row::Launch(launch(5, 11)));
        let (seen, tally) = run(Limits::default(), &rows);
        assert_eq!((seen.summary().len(), tally.activities.seen, tally.activities.repeated), (2, 2, 1));
    }
}

/// A buffer contains runs of graph nodes on several streams, in any order. The buffer of graph node runs is then
/// delivered again, and one node runs a second time, as in a loop.
#[test]
fn graph_nodes_delivered_again_count_once_in_any_order() {
    let node = |id, node: u64, start| {
        let graph_node = GraphNodeId(node);
        Row::Activity(Activity { graph: GraphId(3), graph_node, ..kernel(id, start, start + 10) })
    };
    let buffer: Vec<_> = (0..4000).map(|n| node(5 + n as u32 % 7, n % 100, 100 + 10 * n)).collect();
    let mut rows: Vec<_> = (5..12).map(|id| Row::Launch(launch(id, 11))).collect();
    rows.extend(buffer.iter().chain(&buffer).cloned());
    let (seen, tally) = run(Limits::default(), &rows);
    assert_eq!((seen.summary().len(), tally.activities.seen, tally.activities.repeated), (4000, 4000, 4000));
}

#[test]
fn an_alias_resolves_to_the_launch_around_it_in_every_order() {
    let rows = [Row::Launch(alias(8, 7)), Row::Launch(launch(7, 11)), Row::Activity(kernel(8, 100, 110))];
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let (seen, tally) = run(Limits::default(), &order.map(|i| rows[i].clone()));
        assert_eq!(seen.summary(), [(100, Ok(11))], "order {order:?}");
        let l = tally.launches;
        assert_eq!((l.seen, l.matched, l.aliases), (1, 1, 1), "order {order:?}");
    }
}

#[test]
fn both_ids_of_a_launch_may_have_activities() {
    let rows = [
        Row::Launch(alias(8, 7)),
        Row::Launch(launch(7, 11)),
        Row::Activity(kernel(8, 100, 110)),
        Row::Activity(kernel(7, 110, 120)),
    ];
    let (seen, tally) = run(Limits::default(), &rows);
    assert_eq!(seen.summary(), [(100, Ok(11)), (110, Ok(11))]);
    assert_eq!(tally.launches.matched, 1);
}

#[test]
fn aliases_in_a_cycle_have_no_stack() {
    let rows = [
        Row::Launch(alias(1, 2)),
        Row::Launch(alias(2, 1)),
        Row::Activity(kernel(1, 100, 110)),
        Row::Activity(kernel(2, 110, 120)),
    ];
    let (seen, _) = run(Limits::default(), &rows);
    assert_eq!(seen.summary(), [(100, Err(Missing::NoStack)), (110, Err(Missing::NoStack))]);
}

#[test]
fn an_id_before_the_first_launch_was_launched_before_recording() {
    let rows = [
        Row::Activity(kernel(99, 100, 110)),
        Row::Launch(launch(100, 11)),
        Row::Activity(kernel(101, 120, 130)),
        Row::Launch(launch(102, 12)),
    ];
    let (seen, tally) = run(Limits::default(), &rows);
    assert_eq!(seen.summary(), [(100, Err(Missing::LaunchedBefore)), (120, Err(Missing::NoStack))]);
    assert_eq!((tally.activities.launched_before, tally.activities.no_stack), (1, 1));
    assert_eq!(seen.pending.len(), 2);
}

#[test]
fn launched_before_recording_is_detected_when_ids_wrap() {
    let first = u32::MAX - 1;
    let rows = [
        Row::Launch(launch(first, 11)),
        Row::Launch(launch(2, 12)),
        Row::Activity(kernel(first - 1, 100, 110)),
        Row::Activity(kernel(1, 110, 120)),
        Row::Activity(kernel(2, 120, 130)),
    ];
    let (seen, _) = run(Limits::default(), &rows);
    let expected = [(120, Ok(12)), (100, Err(Missing::LaunchedBefore)), (110, Err(Missing::NoStack))];
    assert_eq!(seen.summary(), expected);
}

#[test]
fn after_three_billion_launches_no_activity_counts_as_launched_before() {
    let mut rows: Vec<_> = (0..12).map(|i| Row::Launch(launch(5 + i * (1 << 28), 11))).collect();
    rows.push(Row::Activity(kernel(6 + (11 << 28), 100, 110)));
    rows.push(Row::Activity(kernel(4 + (11 << 28), 110, 120)));
    let (seen, _) = run(Limits::default(), &rows);
    assert_eq!(seen.summary(), [(100, Err(Missing::NoStack)), (110, Err(Missing::NoStack))]);
}

#[test]
fn without_any_launch_the_first_windows_opening_separates_earlier_work() {
    let rows = [
        Row::Window { edge: WindowEdge::Open, time: Nanos(50) },
        Row::Window { edge: WindowEdge::Open, time: Nanos(500) },
        Row::Activity(kernel(1, 40, 60)),
        Row::Activity(kernel(2, 60, 70)),
    ];
    let (seen, _) = run(Limits::default(), &rows);
    assert_eq!(seen.summary(), [(40, Err(Missing::LaunchedBefore)), (60, Err(Missing::NoStack))]);
}

#[test]
fn launches_outside_windows_are_only_counted() {
    let rows = [
        Row::Launch(launch(1, OUTSIDE)),
        Row::Launch(launch(2, 11)),
        Row::Launch(launch(3, OUTSIDE)),
        Row::Activity(kernel(1, 100, 0)),
        Row::Activity(kernel(2, 110, 120)),
    ];
    let (seen, tally) = run(Limits::default(), &rows);
    assert_eq!(seen.summary(), [(110, Ok(11))]);
    assert_eq!(seen.outside.len(), 1);
    assert!(seen.pending.is_empty(), "a launch outside a window is not pending");
    assert_eq!((tally.launches.outside, tally.launches.matched), (2, 1));
    assert_eq!((tally.activities.outside, tally.activities.untimed), (1, 0));
}

#[test]
fn a_launch_without_a_stack_matches_but_its_activity_is_shown_without_a_stack() {
    let rows = [Row::Launch(launch(1, NONE)), Row::Activity(kernel(1, 100, 110))];
    let (seen, tally) = run(Limits::default(), &rows);
    assert_eq!(seen.summary(), [(100, Err(Missing::NoStack))]);
    assert!(matches!(seen.activities[0].1, Origin::Launch(Launched { time: Nanos(10), .. })));
    assert_eq!((tally.launches.matched, tally.launches.pending), (1, 0));
    assert_eq!((tally.activities.matched, tally.activities.no_stack), (0, 1));
}

#[test]
fn activities_without_usable_times_still_find_their_launch() {
    let times = [(0, 0), (0, 10), (100, 0), (100, 90)];
    let mut rows = vec![Row::Launch(launch(1, 11))];
    rows.extend(times.map(|(start, end)| Row::Activity(kernel(1, start, end))));
    let (seen, tally) = run(Limits::default(), &rows);
    assert!(seen.activities.iter().all(|(_, origin)| origin.context() == Ok(ContextId(11))));
    assert_eq!((tally.activities.matched, tally.activities.untimed), (4, 4));
}

#[test]
fn an_activity_that_began_before_its_launch_is_counted_as_early() {
    let rows = [Row::Launch(launch(10, 11)), Row::Activity(kernel(10, 99, 200))];
    assert_eq!(run(Limits::default(), &rows).1.activities.early, 1);
}

#[test]
fn a_launch_with_an_id_in_use_shadows_the_older_one() {
    let rows = [
        Row::Launch(launch(1, 11)),
        Row::Launch(launch(1, 12)),
        Row::Activity(kernel(1, 100, 110)),
        Row::Launch(launch(1, 13)),
    ];
    let (seen, tally) = run(Limits::default(), &rows);
    assert_eq!(seen.summary(), [(100, Ok(12))]);
    assert_eq!((tally.launches.matched, tally.launches.pending), (1, 2));
}

#[test]
fn an_unmatched_launch_waits_longer_than_a_matched_one() {
    let mut rows =
        vec![Row::Launch(launch(1, 11)), Row::Launch(launch(2, 12)), Row::Activity(kernel(2, 90, 95))];
    for id in 3..66 {
        rows.extend([Row::Launch(launch(id, 20)), Row::Activity(kernel(id, 100, 110))]);
    }
    rows.push(Row::Activity(kernel(1, 200, 210)));
    rows.push(Row::Activity(kernel(2, 210, 220)));
    let (seen, tally) = run(small(), &rows);
    let last = &seen.summary()[64..];
    assert_eq!(last, [(200, Ok(11)), (210, Err(Missing::NoStack))]);
    assert_eq!(tally.launches.pending, 0);
}

#[test]
fn the_launch_of_a_graph_waits_for_more_kernels() {
    let node = |start| Activity { graph: GraphId(3), ..kernel(1, start, start + 1) };
    let mut rows = vec![Row::Launch(launch(1, 11)), Row::Activity(node(50))];
    for id in 2..200 {
        rows.extend([Row::Launch(launch(id, 20)), Row::Activity(kernel(id, 100, 110))]);
    }
    rows.push(Row::Activity(node(60)));
    assert_eq!(run(small(), &rows).0.summary().last(), Some(&(60, Ok(11))));
}

#[test]
fn an_alias_is_kept_for_as_long_as_its_launch() {
    let mut rows = vec![Row::Launch(alias(2, 1)), Row::Launch(launch(1, 11))];
    for id in 3..200 {
        rows.extend([Row::Launch(launch(id, 20)), Row::Activity(kernel(id, 100, 110))]);
    }
    rows.push(Row::Activity(kernel(2, 200, 210)));
    assert_eq!(run(small(), &rows).0.summary().last(), Some(&(200, Ok(11))));
}

#[test]
fn rows_that_wait_too_long_are_evicted_with_a_reason() {
    let (mut join, mut seen) = (Join::new(small()), Seen::default());
    (128..192 + 32).for_each(|id| join.push_launch(&launch(id, 11), &mut seen));
    assert_eq!(
        join.tally().launches.open(),
        32 + 2 * 2,
        "half a page, and two generations of waiting launches"
    );
    (0..8).for_each(|id| join.push_activity(&kernel(id, 100, 110), &mut seen));
    assert_eq!(join.tally().activities.open(), 3);
    assert_eq!(seen.summary(), [(100, Err(Missing::LaunchedBefore)); 5]);
    assert_eq!(join.tally().launches.open(), 32, "waiting activities displace waiting launches");
    let tally = join.final_tally(&mut seen);
    check(&seen, &tally);
}

#[test]
fn ids_on_a_displaced_page_are_still_found() {
    let rows = [
        Row::Launch(launch(1000, 11)),
        Row::Activity(kernel(3, 100, 110)),
        Row::Launch(launch(3, 12)),
        Row::Launch(launch(4, 13)),
        Row::Activity(kernel(4, 120, 130)),
        Row::Activity(kernel(1000, 140, 150)),
    ];
    let (seen, tally) = run(small(), &rows);
    assert_eq!(seen.summary(), [(100, Ok(12)), (120, Ok(13)), (140, Ok(11))]);
    assert_eq!(tally.launches.matched, 3);
}

#[test]
fn an_activity_waits_for_its_launch_after_its_page_is_displaced() {
    let mut rows = vec![Row::Launch(launch(1, 11)), Row::Activity(kernel(5, 100, 110))];
    rows.extend((64..72).map(|id| Row::Activity(kernel(id, 200, 210))));
    rows.push(Row::Launch(launch(5, 12)));
    let (seen, _) = run(Limits { orphans: 9, ..small() }, &rows);
    assert_eq!(seen.summary()[0], (100, Ok(12)));
}

#[test]
fn previewing_the_final_tally_changes_nothing() {
    let (mut join, mut seen) = (Join::new(small()), Seen::default());
    // At this point, launch 3 has no activity, and the kernel of launch 2 still waits for its launch. Launch 3 and the
    // kernel of launch 2 are matched by later rows.
    join.push_launch(&launch(3, 11), &mut seen);
    join.push_activity(&kernel(2, 100, 110), &mut seen);
    for _ in 0..3 {
        let mut given_up = Seen::default();
        let tally = join.final_tally(&mut given_up);
        check(&given_up, &tally);
        assert_eq!(given_up.pending, [CorrelationId(3)]);
        assert_eq!(given_up.summary(), [(100, Err(Missing::LaunchedBefore))]);
    }
    join.push_launch(&launch(2, 12), &mut seen);
    join.push_activity(&kernel(3, 120, 130), &mut seen);
    assert_eq!(seen.summary(), [(100, Ok(12)), (120, Ok(11))]);
    let mut given_up = Seen::default();
    let tally = join.final_tally(&mut given_up);
    assert_eq!((tally.launches.matched, tally.activities.matched), (2, 2));
    assert_eq!((given_up.pending.len(), given_up.activities.len()), (0, 0));
}

#[test]
fn an_activity_in_an_outside_range_is_outside_unless_its_launch_is_recorded() {
    let range = |first, last, count| {
        let (first, last) = (CorrelationId(first), CorrelationId(last));
        Row::Outside(record::OutsideLaunches { first, last, count, over: Nanos(95) })
    };
    let rows = [
        Row::Launch(launch(3, 11)),
        Row::Activity(kernel(5, 100, 110)),
        Row::Activity(kernel(12, 120, 130)),
        range(4, 8, 2),
        Row::Activity(kernel(8, 140, 150)),
        Row::Launch(launch(6, 12)),
        Row::Activity(kernel(6, 160, 170)),
        Row::Activity(kernel(3, 180, 190)),
        Row::Activity(kernel(9, 200, 210)),
        range(4, 9, 1),
    ];
    let (seen, tally) = run(Limits::default(), &rows);
    let outside: Vec<_> = seen.outside.iter().map(|activity| activity.start.0).collect();
    assert_eq!(outside, [100, 140, 200]);
    assert_eq!(seen.summary(), [(160, Ok(12)), (180, Ok(11)), (120, Err(Missing::NoStack))]);
    assert_eq!((tally.launches.seen, tally.launches.outside, tally.launches.matched), (5, 3, 2));
    assert_eq!((tally.activities.outside, tally.activities.no_stack), (3, 1), "launch 12 was dropped");
}

/// Outcome of the join that is expected for a simulated run.
#[derive(Default)]
struct Truth {
    activities: HashMap<u64, Result<u32, Missing>>,
    outside: usize,
    pending: usize,
}

/// Returns the rows of a simulated run with `launches` calls, whose ids begin at `first`. The run has gaps between ids,
/// second ids, graphs, launches whose work never ran, and activities without a launch. Each activity has a different
/// start time.
fn play(rng: &mut Rng, first: u32, launches: u32) -> (Vec<Row<'static>>, Truth) {
    let (mut rows, mut truth) = (Vec::new(), Truth::default());
    let (mut id, mut start) = (first, 1_u64 << 40);
    for _ in 0..rng.below(20) {
        start += 10;
        let early = first.wrapping_sub(1 + rng.below(1000) as u32);
        rows.push(Row::Activity(kernel(early, start, start + 5)));
        truth.activities.insert(start, Err(Missing::LaunchedBefore));
    }
    for _ in 0..launches {
        let call = id;
        let context = [NONE, OUTSIDE, 11, 12, 13][rng.below(5) as usize];
        rows.push(Row::Launch(launch(call, context)));
        let nested = rng.below(3) == 0;
        if nested {
            id = id.wrapping_add(1);
            rows.push(Row::Launch(alias(id, call)));
        }
        let count = [0, 1, 1, 1, 5][rng.below(5) as usize];
        for _ in 0..count {
            start += 10;
            let graph = GraphId(u32::from(count > 1));
            let carried = if nested && rng.below(2) == 0 { id } else { call };
            rows.push(Row::Activity(Activity { graph, ..kernel(carried, start, start + 5) }));
            match context {
                OUTSIDE => truth.outside += 1,
                NONE => drop(truth.activities.insert(start, Err(Missing::NoStack))),
                context => drop(truth.activities.insert(start, Ok(context))),
            }
        }
        truth.pending += usize::from(count == 0 && context != OUTSIDE);
        id = id.wrapping_add(1);
        if rng.below(10) == 0 {
            start += 10;
            rows.push(Row::Activity(kernel(id, start, start + 5)));
            truth.activities.insert(start, Err(Missing::NoStack));
            id = id.wrapping_add(1);
        }
    }
    (rows, truth)
}

fn check_against(truth: &Truth, seen: &Seen) {
    let got: HashMap<_, _> = seen.summary().into_iter().collect();
    assert_eq!(got.len(), seen.activities.len(), "an activity was delivered twice");
    assert_eq!(got, truth.activities);
    assert_eq!((seen.outside.len(), seen.pending.len()), (truth.outside, truth.pending));
}

#[test]
fn pairs_match_the_oracle_for_rows_in_any_order() {
    for seed in 1..60 {
        let mut rng = Rng::new(seed);
        let first = if seed % 3 == 0 { u32::MAX - 100 } else { rng.next_u64() as u32 };
        let (mut rows, truth) = play(&mut rng, first, 300);
        rng.shuffle(&mut rows, 2000);
        check_against(&truth, &run(Limits::default(), &rows).0);
    }
}

#[test]
fn small_limits_match_the_oracle_if_rows_are_roughly_in_order() {
    let limits = Limits { recent: 512, waiting: 2000, running: 2000, orphans: 400 };
    for seed in 1..10 {
        let mut rng = Rng::new(seed);
        let (mut rows, truth) = play(&mut rng, u32::MAX - 5_000, 10_000);
        rng.shuffle(&mut rows, 300);
        check_against(&truth, &run(limits, &rows).0);
    }
}

#[test]
fn hostile_rows_never_break_the_sums() {
    for seed in 1..200 {
        let mut rng = Rng::new(seed);
        let mut rows = Vec::new();
        for _ in 0..400 {
            let id = rng.below(20) as u32;
            rows.push(match rng.below(5) {
                0 => Row::Launch(alias(id, rng.below(20) as u32)),
                1 | 2 => Row::Launch(launch(id.wrapping_mul(1 << 29), rng.below(4) as u32)),
                3 => Row::Launch(launch(id, rng.below(4) as u32)),
                _ => {
                    let graph = GraphId(rng.below(2) as u32);
                    Row::Activity(Activity { graph, ..kernel(id, rng.below(3), rng.below(3)) })
                }
            });
        }
        let limit = |rng: &mut Rng| rng.below(6) as usize;
        let [recent, waiting, running, orphans] = std::array::from_fn(|_| limit(&mut rng));
        run(Limits { recent, waiting, running, orphans }, &rows);
    }
}

#[test]
fn memory_does_not_grow_with_the_number_of_launches() {
    let limits = Limits { recent: 1000, waiting: 1000, running: 1000, orphans: 100 };
    let (mut join, mut seen) = (Join::new(limits), Nobody);
    let mut at_one = 0;
    for id in 0..200_000_u32 {
        join.push_launch(&launch(id, 11), &mut seen);
        if id % 3 == 0 {
            join.push_activity(&kernel(id, 1, 2), &mut seen);
            join.push_activity(&kernel(id.wrapping_sub(1_000_000), 1, 2), &mut seen);
        }
        if id == 10_000 {
            at_one = join.heap_bytes();
        }
    }
    assert_eq!(join.heap_bytes(), at_one);
}

#[test]
fn a_full_join_uses_at_most_45_mib() {
    let mut join = Join::default();
    for id in 0..1_200_000_u32 {
        join.push_launch(&launch(id, 11), &mut Nobody);
        join.push_activity(&kernel(id + (1 << 30), 1, 2), &mut Nobody);
    }
    let without_graphs = join.heap_bytes();
    assert!(without_graphs <= 37 << 20, "{without_graphs} bytes");
    for id in 1_200_000..2_400_000 {
        join.push_launch(&launch(id, 11), &mut Nobody);
        join.push_activity(&node(id, 1), &mut Nobody);
    }
    assert!(join.heap_bytes() <= 45 << 20, "{} bytes", join.heap_bytes());
}

#[test]
fn graph_launches_are_forgotten_after_a_flush_and_do_not_grow_memory() {
    let mut join = Join::default();
    let mut held = |ids: std::ops::Range<u32>| {
        for id in ids {
            join.push_launch(&launch(id, 11), &mut Nobody);
            join.push_activity(&node(id, 1), &mut Nobody);
            if join.wants_flush() || id % 20_000 == 0 {
                join.flushed();
            }
        }
        join.heap_bytes()
    };
    let (few, many) = (held(0..400_000), held(400_000..4_000_000));
    // The table of recent ids has 262,144 entries of 24 bytes each. In addition, there are two hash tables of 2^14
    // buckets of 33 bytes each.
    assert!(few < (6 << 20) + (2 << 20), "{few}");
    assert_eq!(many, few);
}

#[test]
fn a_graph_launch_is_found_while_its_kernels_keep_arriving() {
    let (mut join, mut seen) = (Join::new(Limits { recent: 64, ..Limits::default() }), Seen::default());
    let mut next = 2;
    let mut others = |join: &mut Join, seen: &mut Seen| {
        for id in next..next + 30_000 {
            join.push_launch(&launch(id, 20), seen);
            join.push_activity(&node(id, 100), seen);
        }
        next += 30_000;
        join.flushed();
    };
    join.push_launch(&launch(1, 11), &mut seen);
    // A launch that still waits for its first activity is kept just as long.
    for at in 50..60 {
        others(&mut join, &mut seen);
        join.push_activity(&node(1, at), &mut seen);
        assert_eq!(seen.summary().last(), Some(&(at, Ok(11))));
    }
    for _ in 0..2 {
        others(&mut join, &mut seen);
    }
    join.push_activity(&node(1, 60), &mut seen);
    join.final_tally(&mut seen);
    assert_eq!(
        seen.summary().last(),
        Some(&(60, Err(Missing::NoStack))),
        "two flushes delivered no activity of the launch"
    );
}

/// Returns an activity that ran a graph node.
fn node(id: u32, start: u64) -> Activity {
    Activity { graph: GraphId(3), ..kernel(id, start, start + 1) }
}

struct Nobody;

impl Sink for Nobody {
    fn activity(&mut self, _: &Activity, _: Origin) {}
    fn pending(&mut self, _: CorrelationId, _: Launched) {}
}
