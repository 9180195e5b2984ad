//! Tests with small runs whose states were computed by hand.

use super::*;
use gpuflame_explain::join::{Launched, Origin, Sink};
use gpuflame_model::profile::SampleSite;
use gpuflame_model::record::testing;
use gpuflame_model::record::*;

type Expected = (u64, u64, State, StateCause);

/// Adds an operation. Times are in us. `call` is the start and end of the launch call.
fn op(rows: &mut StreamRows, stream: u32, call: (u64, u64), start: u64, end: u64) {
    let launched = Launched {
        time: Nanos(call.0 * 1000),
        duration: ((call.1 - call.0) * 1000) as u32,
        context: ContextId::NONE,
    };
    rows.activity(&kernel(stream, start, end), Origin::Launch(launched));
}

fn kernel(stream: u32, start: u64, end: u64) -> Activity {
    Activity {
        stream: StreamId(stream),
        context: GpuContextId(1),
        device: DeviceId(0),
        start: Nanos(start * 1000),
        end: Nanos(end * 1000),
        ..testing::kernel(1, start, end)
    }
}

/// Adds a call at `time` (in us) that makes `stream` wait for the record with id 9 of CUDA event 3.
fn wait(rows: &mut StreamRows, stream: u32, time: u64, sync: Option<SyncId>) {
    rows.host(&Row::Sync(SyncRecord {
        kind: SyncKind::STREAM_WAIT,
        start: Nanos(time * 1000),
        end: Nanos(time * 1000),
        correlation: CorrelationId(50),
        context: GpuContextId(1),
        stream: Some(StreamId(stream)),
        event: Some(EventId(3)),
        sync,
        result: 0,
    }));
}

/// Adds a call at `time` (in us) that records CUDA event 3 on `stream`. The event record has the id 9.
fn record(rows: &mut StreamRows, stream: u32, time: u64) {
    let correlation = CorrelationId(49);
    rows.host(&Row::EventCall(EventCall {
        time: Nanos(time * 1000),
        duration: 1000,
        correlation,
        context: ContextId::NONE,
        event_use: EventUse::Record,
        event: 0,
        stream: 0,
    }));
    rows.host(&Row::EventRecord(EventRecord {
        correlation,
        context: GpuContextId(1),
        stream: StreamId(stream),
        event: EventId(3),
        sync: Some(SyncId(9)),
    }));
}

fn states(rows: StreamRows, options: StateOptions) -> (StateReport, Vec<(u32, Vec<Expected>)>) {
    let mut found: Vec<(u32, Vec<Expected>)> = Vec::new();
    let profile = Profile::default();
    let report = reconstruct_states(rows, &profile, options, &|_| false, &mut |key, interval| {
        if found.last().is_none_or(|(stream, _)| *stream != key.2.0) {
            found.push((key.2.0, Vec::new()));
        }
        let last = found.last_mut().expect("one was added");
        last.1.push((interval.start / 1000, interval.end / 1000, interval.state, interval.cause));
    });
    (report.expect("there is work"), found)
}

fn of_stream(rows: StreamRows, stream: u32) -> Vec<Expected> {
    let (_, found) = states(rows, StateOptions::default());
    found.into_iter().find(|(number, _)| *number == stream).expect("the stream has states").1
}

use State::{Finished, Idle, Pending, Running, Waiting};
use StateCause as By;

#[test]
fn in_order_work_runs_without_a_gap_and_delays_name_the_predecessor() {
    let mut rows = StreamRows::default();
    op(&mut rows, 13, (90, 92), 100, 150);
    op(&mut rows, 13, (94, 96), 150, 170);
    op(&mut rows, 14, (95, 97), 100, 200);
    let (report, found) = states(rows, StateOptions::default());
    assert_eq!(found[0], (13, vec![(100, 170, Running, By::None), (170, 200, Finished, By::None)]));
    // Launching the first operation takes 10 us. The second operation waits for the end of the first operation, which
    // takes 56 us.
    let delays = &report.streams[0].delays;
    assert_eq!(delays.nanos, [10_000, 56_000]);
    assert_eq!(delays.by_cause, [(By::InOrder, 56_000), (By::LaunchLatency, 10_000)].into());
    assert_eq!(report.streams[0].max_queue, 2);
}

#[test]
fn a_gap_is_idle_before_the_call_and_pending_after_it() {
    let mut rows = StreamRows::default();
    op(&mut rows, 13, (90, 92), 100, 110);
    op(&mut rows, 13, (140, 143), 149, 160);
    let expected = [
        (100, 110, Running, By::None),
        (110, 140, Idle, By::HostLate),
        (140, 149, Pending, By::LaunchLatency),
        (149, 160, Running, By::None),
    ];
    assert_eq!(of_stream(rows, 13), expected);
}

#[test]
fn a_stream_waits_for_the_work_before_the_event() {
    let mut rows = StreamRows::default();
    op(&mut rows, 13, (90, 92), 100, 300);
    record(&mut rows, 13, 95);
    // The CUDA event does not wait for work launched after the event record.
    op(&mut rows, 13, (97, 98), 300, 400);
    wait(&mut rows, 14, 99, Some(SyncId(9)));
    op(&mut rows, 14, (120, 122), 303, 310);
    let expected = [
        (100, 120, Idle, By::HostLate),
        (120, 300, Waiting, By::Event),
        (300, 303, Pending, By::LaunchLatency),
        (303, 310, Running, By::None),
        (310, 400, Finished, By::None),
    ];
    assert_eq!(of_stream(rows, 14), expected);
}

#[test]
fn a_wait_with_an_unknown_end_explains_only_the_time_after_delivery() {
    let mut rows = StreamRows::default();
    op(&mut rows, 13, (90, 92), 100, 300);
    wait(&mut rows, 14, 99, None);
    op(&mut rows, 14, (120, 122), 303, 310);
    let expected = [
        (100, 120, Idle, By::HostLate),
        (120, 132, Pending, By::LaunchLatency),
        (132, 303, Waiting, By::Event),
        (303, 310, Running, By::None),
    ];
    assert_eq!(of_stream(rows, 14), expected);
}

#[test]
fn work_after_the_default_stream_waits_for_it() {
    let mut rows = StreamRows::default();
    op(&mut rows, 7, (90, 92), 100, 300);
    op(&mut rows, 14, (120, 122), 301, 310);
    let expected = [
        (100, 120, Idle, By::HostLate),
        (120, 132, Pending, By::LaunchLatency),
        (132, 301, Pending, By::DefaultStream),
        (301, 310, Running, By::None),
    ];
    assert_eq!(of_stream(rows, 14), expected);
}

#[test]
fn delays_without_another_cause_are_of_the_processors_only_while_other_streams_run() {
    let mut rows = StreamRows::default();
    op(&mut rows, 13, (90, 92), 100, 300);
    op(&mut rows, 14, (120, 122), 250, 260);
    op(&mut rows, 15, (120, 122), 350, 360);
    let cause =
        |found: Vec<Expected>| found.into_iter().find(|one| one.0 == 132).map(|one| (one.1, one.2, one.3));
    assert_eq!(cause(of_stream(rows, 14)), Some((250, Pending, By::OtherStreams)));
    let mut rows = StreamRows::default();
    op(&mut rows, 13, (90, 92), 100, 300);
    op(&mut rows, 15, (120, 122), 350, 360);
    assert_eq!(cause(of_stream(rows, 15)), Some((350, Pending, By::Unknown)));
}

#[test]
fn sums_equal_the_shown_part_of_the_window_and_an_unknown_launch_is_unknown() {
    let mut rows = StreamRows::default();
    op(&mut rows, 13, (90, 92), 100, 200);
    rows.activity(&kernel(14, 150, 180), Origin::Missing(Missing::LaunchedBefore));
    let options = StateOptions { from: Some(20_000), to: Some(90_000), step: Some(35_000) };
    let (report, found) = states(rows, options);
    assert_eq!(
        found,
        [
            (13, vec![(120, 190, Running, By::None)]),
            (
                14,
                vec![
                    (120, 150, Idle, By::Unknown),
                    (150, 180, Running, By::None),
                    (180, 190, Finished, By::None)
                ]
            ),
        ]
    );
    assert_eq!(report.devices, [(DeviceId(0), [(1, 40_000), (2, 30_000)].into())]);
    let rows: Vec<_> =
        report.series[0].1.iter().map(|row| (row.busy_ns, row.stream_ns, row.queue_ns)).collect();
    assert_eq!(rows, [(35_000, 40_000, 40_000), (35_000, 60_000, 60_000)]);
}

/// Adds a launch that has the launch context `context`, and the launched operation, which runs on stream 13. Times are
/// in us.
fn launch(rows: &mut StreamRows, context: u32, call: (u64, u64), start: u64, end: u64) {
    let launched = Launched {
        time: Nanos(call.0 * 1000),
        duration: ((call.1 - call.0) * 1000) as u32,
        context: ContextId(context),
    };
    rows.matched(launched, false);
    rows.activity(&kernel(13, start, end), Origin::Launch(launched));
}

/// The stream is idle from 110 to 140 us. The idle time consists of 5 us after the first launch, 15 us in another call,
/// and 10 us between that call and the late launch.
#[test]
fn idle_time_is_charged_to_calls_and_to_pauses_of_at_least_10_us_between_them() {
    let (mut rows, mut profile) = (StreamRows::with_culprits(), Profile::default());
    for id in 10..13 {
        let (id, thread) = (ContextId(id), ThreadId(1));
        profile.push(&Row::Context { id, thread, flags: ContextFlags(0), frames: &[] });
    }
    launch(&mut rows, 10, (90, 92), 100, 110);
    let call = HostCallSpan { ended: Nanos(130_000), duration: 15_000, context: ContextId(12) };
    rows.host(&Row::HostCallSpan(call));
    launch(&mut rows, 11, (140, 143), 149, 160);
    let mut longest = Vec::new();
    let report =
        reconstruct_states(rows, &profile, StateOptions::default(), &|_| false, &mut |_, interval| {
            longest.extend(interval.culprit);
        });
    let between = |after, before| SampleSite::Between {
        after: ContextId(after),
        thread: None,
        before: ContextId(before),
    };
    let sums = report.unwrap().streams.remove(0).culprits;
    let sums: Vec<_> = sums.iter().map(|one| (one.nanos, one.gaps, one.site)).collect();
    let by_call = SampleSite::Context(ContextId(12));
    assert_eq!(sums, [(15_000, 1, by_call), (10_000, 0, between(12, 11)), (5_000, 0, between(10, 12))]);
    assert_eq!(longest, [by_call]);
}
