//! Compares the sums of `Aggregate` with results that were computed by hand. Also measures two figures on which the
//! design depends: the rows processed per second, and the bytes per cell.

use super::*;
use crate::join::Join;
use gpuflame_model::record::testing::{Rng, copy, kernel, launch, named, set};
use gpuflame_model::record::{
    ContextFlags, CopyKind, Frame, GraphId, LabelId, MemoryKind, ModuleEpoch, NameId, Row, ThreadId, Work,
};

fn on(device: u32, activity: Activity) -> Activity {
    Activity { device: DeviceId(device), ..activity }
}

/// Joins `rows`, adds up the joined rows, and returns the sums as a profile.
fn profile_of(rows: &[Row<'_>]) -> Profile {
    let (mut join, mut sums) = (Join::default(), Aggregate::default());
    rows.iter().for_each(|row| join.push(row, &mut sums));
    join.final_tally(&mut sums);
    let mut profile = Profile::default();
    sums.fill(&mut profile);
    profile
}

fn site(context: u32) -> SampleSite {
    SampleSite::Context(ContextId(context))
}

fn gemm() -> Leaf {
    Leaf::work(Work::Kernel(NameId(1)))
}

#[test]
fn one_cell_for_each_context_work_and_device() {
    let profile = profile_of(&[
        Row::Launch(launch(1, 11)),
        Row::Launch(launch(2, 12)),
        Row::Launch(launch(3, 11)),
        Row::Activity(kernel(1, 100, 110)),
        Row::Activity(kernel(3, 120, 125)),
        Row::Activity(kernel(2, 200, 207)),
        Row::Activity(on(1, kernel(2, 300, 301))),
        Row::Activity(copy(1, CopyKind::HTOD, 4096, 400, 450)),
    ]);
    let cells: Vec<_> = profile
        .samples(&GPU)
        .iter()
        .map(|s| (s.site, s.leaf, s.device.unwrap().0, s.count(), s.amount(), s.values[2]))
        .collect();
    let copied = Leaf::work(Work::Copy(CopyKind::HTOD));
    let expected = [
        (site(11), gemm(), 0, 2, 15, 0),
        (site(11), copied, 0, 1, 50, 4096),
        (site(12), gemm(), 0, 1, 7, 0),
        (site(12), gemm(), 1, 1, 1, 0),
    ];
    assert_eq!(cells, expected);
}

#[test]
fn many_kinds_of_work_are_summed_separately() {
    // In this test, kernel n, launched by context c on device d, takes 1000 c + 10 n + d ns.
    let kinds = || (11..=310).flat_map(|c| (1..=3).flat_map(move |n| (0..2).map(move |d| (c, n, d))));
    let took = |(c, n, d): (u32, u32, u32)| u64::from(1000 * c + 10 * n + d);
    let mut rows = Vec::new();
    for round in 0..3 {
        for (at, kind) in kinds().enumerate() {
            let (id, (c, n, d)) = (round * 1800 + at as u32 + 1, kind);
            rows.push(Row::Launch(launch(id, c)));
            rows.push(Row::Activity(on(d, named(n, kernel(id, 1, 1 + took(kind))))));
        }
    }
    let mut found: Vec<_> = profile_of(&rows).samples(&GPU).to_vec();
    assert_eq!(found.len(), 1800);
    for (c, n, d) in kinds() {
        let leaf = Leaf::work(Work::Kernel(NameId(n)));
        let is_it = |s: &Sample| (s.site, s.leaf, s.device) == (site(c), leaf, Some(DeviceId(d)));
        let at = found.iter().position(is_it).expect("each is there");
        let sample = found.swap_remove(at);
        assert_eq!((sample.count(), sample.amount()), (3, 3 * took((c, n, d))));
    }
}

#[test]
fn a_graph_node_has_a_place_for_each_launch_and_creation() {
    let node = |id, created, start| {
        Row::Activity(Activity { created: Some(created), ..kernel(id, start, start + 1) })
    };
    let (two, three) = (Created::Context(ContextId(2)), Created::Context(ContextId(3)));
    let device =
        Activity { created: Some(two), device_launched: true, graph: GraphId(4), ..kernel(99, 500, 505) };
    let profile = profile_of(&[
        Row::Launch(launch(1, 11)),
        Row::Launch(launch(2, 12)),
        node(1, two, 100),
        node(1, two, 110),
        node(1, three, 120),
        node(2, two, 200),
        node(2, Created::BeforeRecording, 210),
        Row::Activity(device),
    ]);
    let cells: Vec<_> = profile.samples(&GPU).iter().map(|s| (s.site, s.count(), s.amount())).collect();
    let site = |launch, created| SampleSite::Node { launch, created };
    let (eleven, twelve) = (Ok(ContextId(11)), Ok(ContextId(12)));
    let expected = [
        (site(eleven, two), 2, 2),
        (site(eleven, three), 1, 1),
        (site(twelve, two), 1, 1),
        (site(twelve, Created::BeforeRecording), 1, 1),
        (site(Err(Missing::DeviceGraph), two), 1, 5),
    ];
    assert_eq!(cells, expected);
}

#[test]
fn missing_stacks_untimed_and_pending_work_get_their_own_cells() {
    let profile = profile_of(&[
        Row::Activity(kernel(9, 50, 55)),
        Row::Launch(launch(10, 11)),
        Row::Launch(launch(11, 0)),
        Row::Launch(launch(12, 1)),
        Row::Launch(launch(13, 11)),
        Row::Activity(kernel(13, 100, 0)),
        Row::Activity(kernel(11, 200, 203)),
        Row::Activity(kernel(12, 210, 290)),
        Row::Activity(kernel(14, 300, 304)),
    ]);
    let cells: Vec<_> =
        profile.samples(&GPU).iter().map(|s| (s.site, s.leaf, s.count(), s.amount())).collect();
    let expected = [
        (site(11), Leaf::untimed(Work::Kernel(NameId(1))), 1, 0),
        (site(11), Leaf::PENDING, 1, 0),
        (SampleSite::Missing(Missing::LaunchedBefore), gemm(), 1, 5),
        (SampleSite::Missing(Missing::NoStack), gemm(), 2, 7),
    ];
    assert_eq!(cells, expected);
}

#[test]
fn statistics_are_per_work_and_device_and_skip_untimed_activities() {
    let mut rows = vec![Row::Launch(launch(1, 11))];
    rows.extend((1..=100).map(|i| Row::Activity(kernel(1, 1000, 1000 + i))));
    rows.push(Row::Activity(kernel(1, 1000, 0)));
    rows.push(Row::Activity(on(1, kernel(1, 1000, 1_000_000))));
    rows.push(Row::Activity(set(1, 64, 1000, 1008)));
    let profile = profile_of(&rows);
    let [first, second, fill] = profile.works() else { panic!("{:?}", profile.works()) };
    assert_eq!((first.work, first.device), (Work::Kernel(NameId(1)), DeviceId(0)));
    assert_eq!((first.weight.count, first.weight.nanos), (100, 5050));
    assert_eq!((first.min, first.max, first.percentiles), (1, 100, [50, 95, 99]));
    assert_eq!((second.device, second.min, second.max), (DeviceId(1), 999_000, 999_000));
    assert_eq!(second.percentiles, [999_000; 3], "no percentile is outside the measured range");
    assert_eq!((fill.work, fill.weight.bytes), (Work::Set, 64));
}

/// Returns the rows of launches that have one kernel each. Each group of rows has 1,000 launches followed by their
/// 1,000 activities, as if a tracer had delivered the activities in buffers. The launches are of `names` different
/// kernels, and are made at `contexts` different call sites.
fn traffic(launches: u32, contexts: u64, names: u64) -> Vec<Row<'static>> {
    let (mut rows, mut rng) = (Vec::with_capacity(2 * launches as usize), Rng::new(3));
    for from in (0..launches).step_by(1000) {
        let ids = from..from + 1000;
        rows.extend(ids.clone().map(|id| Row::Launch(launch(id, 2 + rng.below(contexts) as u32))));
        rows.extend(ids.map(|id| {
            let start = 1_000_000 + u64::from(id) * 3000;
            let name = rng.below(names) as u32;
            Row::Activity(named(name, kernel(id, start, start + 500 + rng.below(2000))))
        }));
    }
    rows
}

#[test]
fn each_distinct_context_and_kernel_name_costs_under_200_bytes() {
    let (mut join, mut sums, mut profile) = (Join::default(), Aggregate::default(), Profile::default());
    // Process all rows once before the measurement, so that every kernel name and its histogram exist.
    for row in traffic(100_000, 10, 50) {
        join.push(&row, &mut sums);
    }
    let warm = sums.heap_bytes() + profile.heap_bytes();
    for context in 2..100_002_u32 {
        // Each stack has thirty frames. Three of the frames differ between call sites, as in a program with many
        // templates.
        let mut frames: Vec<_> = (0..30).map(|i| Frame::native(0x1000 + i, ModuleEpoch(0))).collect();
        for (i, frame) in frames.iter_mut().take(3).enumerate() {
            *frame =
                Frame::native(0x10_0000 + u64::from(context / 100) + i as u64 * 0x10_0000, ModuleEpoch(0));
        }
        frames[0] = Frame::native(0x80_0000 + u64::from(context % 100), ModuleEpoch(0));
        frames.insert(0, Frame::label(LabelId(1)));
        let id = ContextId(1000 + context);
        profile.push(&Row::Context { id, thread: ThreadId(1), flags: ContextFlags(0), frames: &frames });
        let correlation = 1_000_000 + context;
        join.push(&Row::Launch(launch(correlation, id.0)), &mut sums);
        let start = 1 + u64::from(correlation) * 3000;
        join.push(&Row::Activity(named(context % 50, kernel(correlation, start, start + 900))), &mut sums);
    }
    let each = (sums.heap_bytes() + profile.heap_bytes() - warm) / 100_000;
    eprintln!("{each} bytes for each distinct (context, name, device)");
    assert!(each < 200, "{each} bytes");
}

#[test]
fn memory_does_not_grow_with_the_number_of_launches() {
    let (mut join, mut sums) = (Join::default(), Aggregate::default());
    let mut at_one = 0;
    for round in 0..4_u32 {
        for mut row in traffic(200_000, 100, 20) {
            match &mut row {
                Row::Launch(l) => {
                    l.correlation.0 += round * 200_000;
                    l.within = l.correlation;
                }
                Row::Activity(a) => {
                    a.correlation.0 += round * 200_000;
                    a.start.0 += u64::from(round) * 600_000_000;
                    a.end.0 += u64::from(round) * 600_000_000;
                }
                _ => {}
            }
            join.push(&row, &mut sums);
        }
        let now = join.heap_bytes() + sums.heap_bytes();
        if round == 1 {
            at_one = now;
        }
        assert!(round < 2 || now.abs_diff(at_one) < 4096, "{at_one} bytes became {now}");
    }
    assert_eq!(join.tally().activities.matched, 800_000);
}

#[test]
#[ignore = "a measurement; .ci/long runs it"]
fn join_and_aggregate_process_over_5_million_rows_per_second() {
    let rows = traffic(1_000_000, 500, 40);
    // The test uses the fastest of several measurements, because other processes may slow down a measurement.
    let mut best: f64 = 0.0;
    for _ in 0..8 {
        let (mut join, mut sums) = (Join::default(), Aggregate::default());
        let began = std::time::Instant::now();
        rows.iter().for_each(|row| join.push(row, &mut sums));
        join.final_tally(&mut sums);
        let rate = rows.len() as f64 / began.elapsed().as_secs_f64() / 1e6;
        let held = (join.heap_bytes() + sums.heap_bytes()) as f64 / f64::from(1 << 20);
        eprintln!("{rate:.1} M rows/s, {held:.1} MiB held, {} bytes an activity", size_of::<Activity>());
        best = best.max(rate);
    }
    assert!(best > 5.0, "{best:.1} M rows/s");
}

#[test]
fn copies_with_usable_times_are_summed_by_path() {
    let pinned = |activity: Activity| match activity.detail {
        Detail::Copy(copy) => {
            let copy = CopyDetail { from: MemoryKind::PINNED, to: MemoryKind::DEVICE, ..copy };
            Activity { detail: Detail::Copy(copy), ..activity }
        }
        _ => activity,
    };
    let (mut join, mut sums) = (Join::default(), Aggregate::default().with_squares());
    for activity in [
        pinned(copy(1, CopyKind::HTOD, 100, 10, 30)),
        pinned(copy(2, CopyKind::HTOD, 200, 40, 45)),
        pinned(copy(3, CopyKind::HTOD, 400, 50, 0)),
        copy(4, CopyKind::HTOD, 800, 60, 61),
    ] {
        join.push(&Row::Activity(activity), &mut sums);
    }
    join.final_tally(&mut sums);
    let (_, mut copies) = sums.take_details();
    copies.sort_by_key(|(path, _)| *path);
    let weights: Vec<_> = copies.iter().map(|(path, weight)| (path.from, *weight)).collect();
    let pinned = (MemoryKind::PINNED, Weight { count: 2, nanos: 25, bytes: 300 });
    assert!(weights.contains(&pinned) && weights.len() == 2, "{weights:?}");
}
