//! Tests with jobs whose schedules were computed by hand. Times are in seconds for pipelines, and in us for ranks.

use super::report::{PartKind, Share, SlowdownReport};
use super::*;

fn report(model: &JobModel) -> SlowdownReport {
    slowdown_report(model, usize::MAX)
}

fn assert_near(found: f64, expected: f64) {
    assert!((found - expected).abs() < 1e-6 * expected.abs().max(1.0), "{found} is not {expected}");
}

/// Returns the parts of one kind, sorted by name, as (name, slowdown if only this part keeps its measured durations,
/// saved seconds).
fn parts(report: &SlowdownReport, kind: PartKind) -> Vec<(String, f64, f64)> {
    let of_kind = report.parts.iter().filter(|part| part.part == kind);
    let mut parts: Vec<_> =
        of_kind.map(|part| (part.name.clone(), part.slowdown, part.saved / 1e9)).collect();
    parts.sort_by(|a, b| a.0.cmp(&b.0));
    parts
}

fn assert_parts(report: &SlowdownReport, kind: PartKind, expected: &[(&str, f64, f64)]) {
    let found = parts(report, kind);
    for (name, slowdown, saved) in expected {
        let part = found.iter().find(|part| part.0 == *name);
        let part = part.unwrap_or_else(|| panic!("no {name}: {found:?}"));
        assert_near(part.1, *slowdown);
        assert_near(part.2, *saved);
    }
}

fn op(worker: (u32, u32), kind: PipelineKind, sequence: u32, start: f64, end: f64) -> PipelineOp {
    let (replica, stage) = worker;
    let is_of_chunk = kind.word().contains("compute");
    PipelineOp {
        replica,
        stage,
        rank: 10 + replica + stage,
        step: 7,
        kind,
        sequence,
        chunk: if is_of_chunk { 0 } else { -1 },
        global_chunk: if is_of_chunk { stage as i32 } else { -1 },
        start,
        duration: end - start,
    }
}

use PipelineKind as Kind;

/// Returns the operations of two data-parallel ranks with one pipeline stage:
///
/// ```text
/// rank 10   forward 0 to 2, backward 2 to 6,  gradients 6 to 12 (it waits), clip 12 to 12.5, optimizer to 13
/// rank 11   forward 0 to 4, backward 4 to 11, gradients 11 to 12,           clip 12 to 12.5, optimizer to 13
/// ```
fn two_replicas() -> Vec<PipelineOp> {
    let mut ops = Vec::new();
    for (replica, forward, backward) in [(0, 2.0, 6.0), (1, 4.0, 11.0)] {
        ops.extend([
            op((replica, 0), Kind::ForwardCompute, 0, 0.0, forward),
            op((replica, 0), Kind::BackwardCompute, 0, forward, backward),
            op((replica, 0), Kind::GradsReduceScatter, 0, backward, 12.0),
            op((replica, 0), Kind::OptimizerClipMainGrad, 0, 12.0, 12.5),
            op((replica, 0), Kind::Optimizer, 0, 12.5, 13.0),
        ]);
    }
    ops
}

#[test]
fn the_replica_that_the_other_one_waits_for_is_the_worst_worker() {
    let model = pipeline_model(&two_replicas(), 1).unwrap();
    let report = report(&model);
    // The even durations, in seconds: forward 3, backward 5.5, gradients 1, clip 0.5, optimizer 0.5.
    assert_near(report.steps[0].measured / 1e9, 13.0);
    assert_near(report.simulated / 1e9, 13.0);
    assert_near(report.ideal / 1e9, 10.5);
    assert_near(report.error_percent, 0.0);
    assert_eq!(report.last_stage, None, "one stage");
    let Share { share, saved, slowdown, members } = report.worst_workers.clone().unwrap();
    // If rank 11 has even durations, rank 10 computes for 6 s and rank 11 computes for 8.5 s. The step then takes the
    // same time as with even durations on all ranks.
    assert_eq!(members, [11]);
    assert_near(share, 1.0);
    assert_near(saved / 1e9, 2.5);
    assert_near(slowdown, 13.0 / 10.5);
    assert_parts(&report, PartKind::Worker, &[("10", 1.0, 0.0), ("11", 13.0 / 10.5, 2.5)]);
    // With even forward passes, rank 11 computes for 3 + 7 s instead of 4 + 7 s. With even backward passes, rank 11
    // computes for 4 + 5.5 s.
    let kinds = [
        ("forward-compute", 11.5 / 10.5, 1.0),
        ("backward-compute", 12.0 / 10.5, 1.5),
        ("optimizer", 1.0, 0.0),
    ];
    assert_parts(&report, PartKind::Kind, &kinds);
}

/// Returns the operations of two stages with two microbatches. `docs/stragglers.md` shows the schedule.
fn two_stages() -> Vec<PipelineOp> {
    let (first, last) = ((0, 0), (0, 1));
    vec![
        op(first, Kind::ForwardCompute, 0, 0.0, 1.0),
        op(first, Kind::ForwardCompute, 1, 1.0, 2.0),
        op(first, Kind::ForwardSend, 0, 1.0, 1.5),
        op(first, Kind::ForwardSend, 1, 2.0, 4.0),
        op(first, Kind::BackwardRecv, 0, 1.0, 8.0),
        op(first, Kind::BackwardRecv, 1, 10.0, 14.0),
        op(first, Kind::BackwardCompute, 0, 8.0, 10.0),
        op(first, Kind::BackwardCompute, 1, 14.0, 16.0),
        op(first, Kind::OptimizerClipMainGrad, 0, 16.0, 16.5),
        op(first, Kind::Optimizer, 0, 16.5, 17.5),
        op(last, Kind::ForwardRecv, 0, 0.0, 1.5),
        op(last, Kind::ForwardRecv, 1, 3.5, 4.0),
        op(last, Kind::ForwardCompute, 0, 1.5, 3.5),
        op(last, Kind::ForwardCompute, 1, 7.5, 9.5),
        op(last, Kind::BackwardCompute, 0, 3.5, 7.5),
        op(last, Kind::BackwardCompute, 1, 9.5, 13.5),
        op(last, Kind::BackwardSend, 0, 7.5, 8.0),
        op(last, Kind::BackwardSend, 1, 13.5, 14.0),
        op(last, Kind::OptimizerClipMainGrad, 0, 13.5, 16.5),
        op(last, Kind::Optimizer, 0, 16.5, 17.5),
    ]
}

#[test]
fn evening_out_a_slow_last_stage_can_remove_more_than_the_slowdown() {
    let model = pipeline_model(&two_stages(), 1).unwrap();
    let report = report(&model);
    assert_near(report.steps[0].measured / 1e9, 17.5);
    assert_near(report.simulated / 1e9, 17.5);
    assert_near(report.ideal / 1e9, 16.0);
    let last = report.last_stage.clone().unwrap();
    assert_near(last.saved / 1e9, 3.0);
    assert_near(last.share, 2.0);
    assert_eq!(last.members, [1]);
    assert_parts(&report, PartKind::Stage, &[("1", last.slowdown, 3.0)]);
}

#[test]
fn messages_that_move_nothing_wait_for_no_other_worker() {
    // Some frameworks also record sends on the first stage that have no matching receive and move no data.
    let mut ops = two_stages();
    ops.push(op((0, 0), Kind::BackwardSend, 0, 10.0, 10.0));
    ops.push(op((0, 0), Kind::BackwardSend, 1, 16.0, 16.0));
    let report = report(&pipeline_model(&ops, 1).unwrap());
    assert_near(report.simulated / 1e9, 17.5);
}

#[test]
fn operations_that_do_not_fit_each_other_are_refused() {
    let refused = |ops: &[PipelineOp]| pipeline_model(ops, 1).unwrap_err().0;
    assert_eq!(refused(&[]), "no operations");
    let mut twice = two_replicas();
    twice.push(twice[0]);
    assert_eq!(refused(&twice), "steps or data-parallel ranks have different operations");
    twice.push(twice[5]);
    assert_eq!(refused(&twice), "an operation occurs twice in one step of one worker");
    let mut far = two_replicas();
    far[9].replica = 60_000;
    assert_eq!(refused(&far), "steps or data-parallel ranks have different operations");
    far[9].replica = u32::MAX - 1;
    assert_eq!(refused(&far), "more than 65536 stages or data-parallel ranks");
    let missing = two_replicas()[..9].to_vec();
    assert_eq!(refused(&missing), "steps or data-parallel ranks have different operations");
    let mut other = two_replicas();
    other[9].sequence = 5;
    let expected = "step 7: optimizer 5 of rank 11 is not once in every step and data-parallel rank";
    assert_eq!(refused(&other), expected);
    let mut endless = two_replicas();
    endless[3].duration = f64::INFINITY;
    assert_eq!(refused(&endless), "step 7: optimizer-clip-main-grad has no usable time");
    let mut one_sided = two_stages();
    one_sided.retain(|op| op.kind != Kind::ForwardRecv);
    assert_eq!(refused(&one_sided), "message 0 of forward-compute from stage 0 has one side");
    let mut few = two_stages();
    few.retain(|op| (op.kind, op.sequence) != (Kind::BackwardRecv, 0));
    assert!(refused(&few).contains("one side"), "{}", refused(&few));
}

#[test]
fn a_small_slowdown_is_not_decomposed() {
    let mut ops = two_replicas();
    for op in &mut ops {
        // Rank 10 computes for 8.5 s, and rank 11 computes for 8.6 s.
        let late = if op.replica == 1 { 0.1 } else { 0.0 };
        (op.start, op.duration) = match op.kind {
            Kind::ForwardCompute => (0.0, 3.0),
            Kind::BackwardCompute => (3.0, 5.5 + late),
            Kind::GradsReduceScatter => (8.5 + late, 1.1 - late),
            Kind::OptimizerClipMainGrad => (9.6, 0.5),
            _ => (10.1, 0.5),
        };
    }
    let report = report(&pipeline_model(&ops, 1).unwrap());
    assert_near(report.slowdown(), 10.6 / 10.55);
    assert_eq!((report.parts.len(), report.worst_workers), (0, None));
}

/// Returns two ranks whose clocks are 11.5 s apart. The times are in us after `begin`, the begin of the step:
///
/// ```text
/// rank 0   work for 10, gather from 10 to 40, work for 20,          reduce from 60 to 65
/// rank 1   work for 20, idle for 10, gather from 30 to 40, work for 10, reduce from 50 to 65
/// ```
fn two_ranks(steps: u64) -> Vec<RankTimeline> {
    let mut ranks = [0, 1].map(|rank| RankTimeline { rank, steps, ..RankTimeline::default() });
    for step in 0..3 {
        for (rank, timeline) in ranks.iter_mut().enumerate() {
            let begin = 65 * step + 11_500_000 * rank as i64;
            let at = |micros: i64| (begin + micros) * 1000;
            let (gather, reduce) = if rank == 0 { (10, 60) } else { (30, 50) };
            let one = |name: &str, start, end| TimedCollective {
                name: name.to_owned(),
                start: at(start),
                end: at(end),
            };
            timeline.collectives.extend([one("gather", gather, 40), one("reduce", reduce, 65)]);
            timeline.work.extend([(at(0), at(gather.min(20))), (at(40), at(reduce))]);
        }
    }
    ranks.to_vec()
}

#[test]
fn ranks_are_simulated_from_collective_to_collective_on_their_own_clocks() {
    let (model, facts) = ranks_model(&two_ranks(3)).unwrap();
    // The first of the three steps is omitted, because no collective comes before this step.
    assert_eq!((model.size(), facts.one_step_because), ((2, 1, 2), None));
    assert_eq!(facts.clocks.ahead, [0, 11_500_000_000]);
    // The last rank enters `gather` 10 us before the end of `gather`, and `reduce` 5 us before the end of `reduce`.
    assert_eq!((facts.clocks.error, facts.clocks.spread), (10_000, 0));
    let report = report(&model);
    let micros = |found: f64, expected: f64| assert_near(found / 1e3, expected);
    micros(report.steps[0].measured, 65.0);
    micros(report.simulated, 65.0);
    // With even durations, work and idle time before `gather` take 15 + 5 us, and `gather` takes 10 us. Work before
    // `reduce` takes 15 us, and `reduce` takes 5 us.
    micros(report.ideal, 50.0);
    let worst = report.worst_workers.clone().unwrap();
    assert_eq!(worst.members, [1]);
    assert_near(worst.share, 10.0 / 15.0);
    assert_parts(&report, PartKind::Worker, &[("0", 1.1, 5e-6), ("1", 1.2, 10e-6)]);
    // The cases below list, in us, work + idle time before `gather` on ranks 0 and 1, and then work before `reduce` on
    // the slower rank. If work is even, the times before `gather` are 15 and 15 + 10, and work takes 15 us before
    // `reduce`. If idle time is even, the times before `gather` are 10 + 5 and 20 + 5, and work takes 20 us before
    // `reduce`. If only work is as measured, the times before `gather` are 10 + 5 and 20 + 5, and work takes 20 us
    // before `reduce`. If only idle time is as measured, the times before `gather` are 15 and 15 + 10, and work takes
    // 15 us before `reduce`.
    assert_parts(&report, PartKind::Kind, &[("GPU work", 1.2, 10e-6), ("GPU idle", 1.1, 5e-6)]);
}

#[test]
fn without_steps_the_time_from_the_first_to_the_last_collective_is_one_step() {
    for (steps, why) in [
        (0, "the files have no steps"),
        (1, "the files have one step"),
        (4, "6 collectives cannot be divided over 4 steps"),
        (2, "the steps have different collectives"),
    ] {
        let (model, facts) = ranks_model(&two_ranks(steps)).unwrap();
        assert_eq!((model.size(), facts.one_step_because.as_deref()), ((2, 1, 1), Some(why)));
        // The only step lasts from 40 to 195 us.
        assert_near(report(&model).simulated / 1e3, 155.0);
    }
}

#[test]
fn ranks_that_do_not_meet_have_no_slowdown() {
    let refused = |ranks: &[RankTimeline]| ranks_model(ranks).unwrap_err().0;
    let ranks = two_ranks(3);
    assert_eq!(refused(&ranks[..1]), "there is one rank; stragglers are found by comparing ranks");
    let mut fewer = ranks.clone();
    fewer[1].collectives.pop();
    assert_eq!(refused(&fewer), "rank 0 has 6 collectives, rank 1 has 5");
    let mut renamed = ranks.clone();
    renamed[1].collectives[2].name = "scatter".to_owned();
    assert_eq!(refused(&renamed), "collective 2 of rank 0 is gather, that of rank 1 is scatter");
    let mut apart = ranks.clone();
    // Every second collective of rank 1 ends 300 us late, as if other ranks took part in these collectives.
    for (at, one) in apart[1].collectives.iter_mut().enumerate() {
        let late = if at % 2 == 0 { 300_000 } else { 0 };
        (one.start, one.end) = (one.start - 400_000, one.end + late);
    }
    assert!(refused(&apart).starts_with("the ranks leave collectives 300 us apart"), "{}", refused(&apart));
    let mut silent = ranks.clone();
    silent.iter_mut().for_each(|rank| rank.collectives.clear());
    assert_eq!(refused(&silent), "no rank runs a collective");
    let mut single = ranks;
    single.iter_mut().for_each(|rank| rank.collectives.truncate(1));
    assert!(refused(&single).starts_with("there is one collective"), "{}", refused(&single));
}

#[test]
fn collectives_that_overlap_follow_the_last_one_that_has_ended() {
    let mut ranks = two_ranks(0);
    for rank in &mut ranks {
        // Another stream runs a small collective that begins 5 us after `gather` begins.
        let gather = rank.collectives[2].clone();
        rank.collectives.insert(
            3,
            TimedCollective { name: "small".to_owned(), start: gather.start + 5_000, end: gather.end },
        );
    }
    let (model, _) = ranks_model(&ranks).unwrap();
    assert_near(report(&model).simulated / 1e3, 155.0);
}
