//! Takes snapshots of the sums at any time. The figures in a snapshot must add up, and a snapshot must not affect later
//! results.

use gpuflame_explain::symbolize::{SymbolizeOptions, Symbolizer};
use gpuflame_explain::{Explain, Ledger, Options, Snapshot};
use gpuflame_export::{self as export, ActivityTable, FOLDED, Root, SVG};
use gpuflame_model::profile::Profile;
use gpuflame_model::profile::views::{GPU, IDLE, MEMORY, WAITS};
use gpuflame_model::record::{
    Activity, Allocation, ContextFlags, ContextId, CopyDetail, CopyKind, CorrelationId, Detail, DeviceId,
    Frame, GpuContextId, GraphId, GraphNodeId, KernelDetail, LabelId, Launch, Loss, MemoryCall, MemoryKind,
    ModuleEpoch, NameId, Nanos, OutsideLaunches, Row, StreamId, ThreadId, Wait, WindowEdge,
};

const SNAPSHOTS: usize = 1_000;
const LAUNCHES: u32 = 20_000;
/// Id of the first launch.
const FIRST: u32 = 1_000;

/// A generator of random numbers that are the same in every run (xorshift64*).
struct Rng(u64);

impl Rng {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) % limit
    }
}

/// Stacks of the launches, leaf first. Each number in a stack is the index of a frame label.
const STACKS: [[u32; 3]; 5] = [[3, 1, 0], [3, 2, 0], [4, 1, 0], [4, 2, 0], [3, 2, 1]];

fn frames() -> Vec<[Frame; 3]> {
    STACKS.iter().map(|stack| stack.map(|label| Frame::label(LabelId(label)))).collect()
}

/// Returns the rows of a run of 4 threads on 2 devices. The run includes every kind of row:
/// - activities that arrive before their launch, long after their launch, or never;
/// - activities without a launch, activities whose record arrives under two ids, and activities outside of windows;
/// - nodes of graphs that were created, cloned, destroyed, or never announced.
fn rows(frames: &[[Frame; 3]]) -> Vec<Row<'_>> {
    let rng = &mut Rng(0x9e37_79b9_7f4a_7c15);
    let mut rows = vec![Row::Process { id: 7, name: "program" }];
    for (id, text) in (0..).zip(["main", "step", "load", "cudaLaunchKernel", "cudaGraphLaunch"]) {
        rows.push(Row::Label { id: LabelId(id), text });
    }
    for (id, text) in (1..).zip(["_Z4gemmIfEvPT_", "add", "norm"]) {
        rows.push(Row::Name { id: NameId(id), text });
    }
    for thread in 0..4 {
        rows.push(Row::Thread { id: ThreadId(thread), name: "worker" });
        for (at, frames) in (0..).zip(frames) {
            let id = ContextId(ContextId::FIRST.0 + thread * STACKS.len() as u32 + at);
            let flags = ContextFlags(if at == 4 { ContextFlags::CUT } else { 0 });
            rows.push(Row::Context { id, thread: ThreadId(thread), flags, frames });
        }
    }
    let mut is_open = true;
    rows.push(Row::Window { edge: WindowEdge::Open, time: Nanos(900) });
    // Rows that are pushed later, each with the index of the launch after which it is pushed.
    let mut later: Vec<(u32, Row<'_>)> = Vec::new();
    for number in 0..LAUNCHES {
        let (ready, rest) = later.into_iter().partition(|(when, _)| *when <= number);
        later = rest;
        rows.extend(Vec::from_iter::<Vec<_>>(ready).into_iter().map(|(_, row)| row));
        let time = Nanos(1_000 + u64::from(number) * 100);
        let (id, within) = (CorrelationId(FIRST + 2 * number + 1), CorrelationId(FIRST + 2 * number));
        let context = ContextId(ContextId::FIRST.0 + rng.below(20) as u32);
        let context = match rng.below(50) {
            0 => ContextId::NONE,
            _ => context,
        };
        let is_outside = rng.below(50) == 0;
        let graph = GraphId(number / 100 + 1);
        if number % 100 == 0 {
            made(&mut rows, graph, context);
        }
        if is_outside {
            rows.push(Row::Outside(OutsideLaunches { first: within, last: id, count: 1, over: time }));
        } else {
            rows.push(Row::Launch(Launch { time, duration: 40, correlation: within, within, context }));
        }
        if rng.below(3) == 0 && !is_outside {
            rows.push(Row::Launch(Launch { time, duration: 40, correlation: id, within, context }));
        }
        for _ in 0..rng.below(3) {
            let strange =
                CorrelationId(if rng.below(9) == 0 { number % FIRST } else { 2 * LAUNCHES + number });
            let on = [id, within, strange][rng.below(3) as usize];
            let activity = Row::Activity(activity(rng, on, time, graph));
            let late = [0, 1, 5, 400, 15_000][rng.below(5) as usize];
            later.push((number + late, activity));
        }
        match rng.below(40) {
            0 => rows.push(Row::Wait(Wait { time, duration: 9, correlation: id, context })),
            1 => rows.push(Row::Loss { loss: Loss::RangesDropped, count: 2 }),
            2 => {
                is_open = !is_open;
                let edge = if is_open { WindowEdge::Open } else { WindowEdge::Close };
                rows.push(Row::Window { edge, time });
            }
            3..8 => {
                let allocated = Some(Allocation { memory: MemoryKind::DEVICE, bytes: 1 + rng.below(999) });
                let allocated = allocated.filter(|_| rng.below(2) == 0);
                let address = rng.below(30);
                rows.push(Row::Memory(MemoryCall { time, correlation: id, context, address, allocated }));
            }
            _ => {}
        }
    }
    rows
}

/// Adds rows that create a CUDA graph of 8 nodes, instantiate this graph, and destroy the previous graph.
fn made(rows: &mut Vec<Row<'_>>, graph: GraphId, context: ContextId) {
    let first = u64::from(graph.0) * 16;
    for node in first..first + 8 {
        rows.push(Row::GraphNode { graph, node: GraphNodeId(node), context });
    }
    let copy = GraphId(graph.0 + (1 << 20));
    for node in first..first + 8 {
        rows.push(Row::GraphClone { graph: copy, node: GraphNodeId(node + 8), original: GraphNodeId(node) });
    }
    rows.push(Row::GraphEnd { graph: GraphId(graph.0 - 1) });
}

fn activity(rng: &mut Rng, correlation: CorrelationId, time: Nanos, graph: GraphId) -> Activity {
    let start = time.0 + rng.below(3_000);
    let end = if rng.below(30) == 0 { 0 } else { start + 1 + rng.below(200) };
    let kernel = KernelDetail {
        name: NameId(1 + rng.below(3) as u32),
        grid: [1; 3],
        block: [32, 1, 1],
        registers: 8,
        static_shared: 0,
        dynamic_shared: 0,
    };
    let copy = CopyDetail {
        kind: CopyKind::HTOD,
        from: MemoryKind(1),
        to: MemoryKind(3),
        peers: None,
        bytes: 64,
        is_async: true,
        copies: 1,
    };
    let is_node = rng.below(4) == 0;
    Activity {
        correlation,
        device: DeviceId(rng.below(2) as u32),
        context: GpuContextId(1),
        stream: StreamId(rng.below(3) as u32),
        channel: None,
        start: Nanos(start),
        end: Nanos(end),
        graph: GraphId(if is_node { graph.0 + (1 << 20) } else { 0 }),
        graph_node: GraphNodeId(match rng.below(20) {
            _ if !is_node => 0,
            // The id of the node is lower than all ids that were announced.
            0 => 5,
            other => u64::from(graph.0) * 16 + other,
        }),
        source_node: GraphNodeId(0),
        device_launched: is_node && rng.below(9) == 0,
        created: None,
        detail: if rng.below(5) == 0 { Detail::Copy(copy) } else { Detail::Kernel(kernel) },
    }
}

/// Returns the content of every file that is written on exit, and of the table of activities.
fn files(profile: &Profile) -> Vec<Vec<u8>> {
    let root = vec![Root::Thread, Root::Device, Root::Stream];
    let options = export::Options { root, ..export::Options::default() };
    let mut files = vec![Vec::new()];
    export::write_csv(profile, &mut files[0]).unwrap();
    for view in [&GPU, &IDLE, &WAITS, &MEMORY] {
        for format in [&FOLDED, &SVG] {
            let mut file = Vec::new();
            format.draw(profile, view, &options, &mut file).unwrap();
            files.push(file);
        }
    }
    assert!(
        files.iter().all(|file| file.len() > 100),
        "{:?}",
        files.iter().map(Vec::len).collect::<Vec<_>>()
    );
    files
}

/// Counts of the rows that have been pushed so far. The test counts the rows itself, without the code that it tests.
#[derive(Default)]
struct Pushed {
    launches: u64,
    activities: u64,
    ranges_dropped: u64,
    /// Number of records that were dropped. Each row contains the total number up to that row, and not the increase.
    dropped: u64,
}

impl Pushed {
    fn add(&mut self, row: &Row<'_>) {
        match row {
            Row::Launch(launch) => self.launches += u64::from(launch.correlation == launch.within),
            Row::Outside(launches) => self.launches += u64::from(launches.count),
            Row::Activity(_) => self.activities += 1,
            Row::Loss { count, .. } => self.ranges_dropped += count,
            _ => {}
        }
    }

    fn counted(&self) -> [(Loss, u64); 2] {
        [(Loss::LaunchesDropped, self.dropped), (Loss::ActivitiesDropped, 2 * self.dropped)]
    }

    fn check(&self, ledger: &Ledger, profile: &Profile) {
        for sum in ledger.sums() {
            assert!(sum.holds(), "{sum}");
        }
        let (launches, activities) = (ledger.tally.launches, ledger.tally.activities);
        assert_eq!(ledger.launches().total, self.launches + self.dropped);
        assert_eq!(ledger.activities().total, self.activities + 2 * self.dropped);
        assert_eq!(launches.seen, launches.matched + launches.pending + launches.outside);
        assert_eq!(ledger.lost(Loss::RangesDropped), self.ranges_dropped);
        let shown: u64 = profile.samples(&GPU).iter().map(|sample| sample.count()).sum();
        assert_eq!(shown, activities.seen - activities.outside + launches.pending);
        let worked: u64 = ledger.devices.iter().map(|device| device.work.count).sum();
        assert_eq!(worked, activities.seen - activities.outside - activities.untimed);
    }
}

/// Pushes all rows, and takes `snapshots` snapshots while it pushes them. Returns the final ledger, the files, and the
/// table of all activities.
fn explain(rows: &[Row<'_>], options: Options, snapshots: usize) -> (Ledger, Vec<Vec<u8>>) {
    let mut explain = Explain::new(options);
    let mut symbolizer = Symbolizer::new(SymbolizeOptions::default());
    let mut table = ActivityTable::new(Vec::new(), str::to_owned).unwrap();
    let (mut pushed, mut taken) = (Pushed::default(), 0);
    for (at, row) in rows.iter().enumerate() {
        table.row(row);
        explain.push(row, &mut table);
        pushed.add(row);
        if at % 500 == 0 {
            explain.flushed();
            pushed.dropped += 1;
        }
        if at * snapshots / rows.len() < (at + 1) * snapshots / rows.len() {
            let snapshot = explain.snapshot(&pushed.counted(), &mut ());
            symbolizer.name(snapshot.profile);
            pushed.check(&snapshot.ledger, snapshot.profile);
            taken += 1;
        }
    }
    assert_eq!(taken, snapshots);
    let snapshot = explain.snapshot(&pushed.counted(), &mut table);
    symbolizer.name(snapshot.profile);
    pushed.check(&snapshot.ledger, snapshot.profile);
    let mut files = files(snapshot.profile);
    files.push(table.finish().unwrap());
    (snapshot.ledger, files)
}

#[test]
fn a_thousand_snapshots_mid_run_add_up_and_do_not_change_the_result() {
    let frames = frames();
    let rows = rows(&frames);
    for options in
        [Options::default(), Options { by_stream: true, merge_threads: true, ..Options::default() }]
    {
        let (ledger, files) = explain(&rows, options, 0);
        let tally = ledger.tally;
        let parts = [&tally.launches.parts()[..], &tally.activities.parts(), &ledger.nodes.parts()].concat();
        let absent: Vec<_> = parts.iter().filter(|(_, count)| *count == 0).collect();
        assert!(absent.is_empty(), "the rows have none of {absent:?}");
        let (with, files_with) = explain(&rows, options, SNAPSHOTS);
        assert_eq!(with, ledger);
        for (file, without) in files_with.iter().zip(&files) {
            assert!(file == without, "{}", String::from_utf8_lossy(file));
        }
    }
}

const MANY: u32 = 6_000;

/// Returns the rows for launches from `MANY` stacks of 20 frames on two threads. Each stack launches a different
/// kernel, and every seventh stack launches three times. Every 1,000th stack creates a node of a CUDA graph that runs
/// much later. Some activities arrive before their launch, and some never arrive.
fn many<'a>(frames: &'a [Vec<Frame>], names: &'a [String]) -> Vec<Row<'a>> {
    let mut rows = vec![Row::Window { edge: WindowEdge::Open, time: Nanos(900) }];
    for (id, text) in (0..).zip(["cudaLaunchKernel", "cudaGraphLaunch"]) {
        rows.push(Row::Label { id: LabelId(id), text });
    }
    let ran = |name, correlation, start: u64, nanos: u64| {
        let rng = &mut Rng(1);
        let activity = activity(rng, CorrelationId(correlation), Nanos(start), GraphId(0));
        let Detail::Kernel(kernel) = activity.detail else { panic!("{activity:?}") };
        let detail = Detail::Kernel(KernelDetail { name: NameId(name), ..kernel });
        let (start, end) = (Nanos(start), Nanos(start + nanos));
        Activity { graph: GraphId(0), graph_node: GraphNodeId(0), start, end, detail, ..activity }
    };
    let mut correlation = FIRST;
    for (number, frames) in (0..MANY).zip(frames) {
        let (id, thread) = (ContextId(ContextId::FIRST.0 + number), ThreadId(number % 2));
        let flags = ContextFlags::default();
        rows.push(Row::Thread { id: thread, name: "worker" });
        rows.push(Row::Context { id, thread, flags, frames });
        rows.push(Row::Name { id: NameId(number), text: &names[number as usize] });
        let graph = GraphId(number / 1_000 + 1);
        if number % 1_000 == 0 {
            rows.push(Row::GraphNode { graph, node: GraphNodeId(u64::from(number) + 10), context: id });
        }
        for turn in 0..if number % 7 == 0 { 3 } else { 1 } {
            correlation += 1;
            let time = Nanos(u64::from(correlation) * 1_000);
            let launch = Row::Launch(Launch {
                time,
                duration: 40,
                correlation: CorrelationId(correlation),
                within: CorrelationId(correlation),
                context: id,
            });
            let nanos = 1 + u64::from(number * 31 % 97) * (1 + turn);
            let work = ran(number, correlation, time.0 + 50, nanos);
            let node = GraphNodeId(u64::from(number / 1_000 * 1_000) + 10);
            match number % 50 {
                0 => rows.push(launch),
                1 => rows.extend([Row::Activity(work), launch]),
                2 => rows.push(Row::Activity(Activity { correlation: CorrelationId(7), ..work })),
                3 => rows.extend([launch, Row::Activity(Activity { graph, graph_node: node, ..work })]),
                _ => rows.extend([launch, Row::Activity(work)]),
            }
        }
    }
    rows
}

/// Returns the total GPU time of the activities in `rows`, in ns.
fn nanos_of(rows: &[Row<'_>]) -> u64 {
    let nanos = rows.iter().map(|row| if let Row::Activity(it) = row { it.end.0 - it.start.0 } else { 0 });
    nanos.sum()
}

/// Returns the total GPU time of the folded stacks that contain `label`, in ns.
fn nanos_under(folded: &str, label: &str) -> u64 {
    let lines = folded.lines().filter(|line| !line.starts_with('#') && line.contains(label));
    lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
}

#[test]
fn snapshots_add_up_under_a_low_memory_ceiling() {
    let frames: Vec<Vec<Frame>> = (0..u64::from(MANY))
        .map(|number| {
            let code = (0..19).map(|depth| Frame::native(number * 64 + depth + 1, ModuleEpoch(0)));
            std::iter::once(Frame::label(LabelId((number % 2) as u32))).chain(code).collect()
        })
        .collect();
    let names: Vec<String> = (0..MANY).map(|number| format!("a_kernel_with_a_long_name_{number}")).collect();
    let rows = many(&frames, &names);
    for snapshots in [1, 200] {
        let mut explain = Explain::new(Options { ceiling: Some(2 << 20), ..Options::default() });
        let mut symbolizer = Symbolizer::new(SymbolizeOptions::default());
        let mut pushed = Pushed::default();
        for (at, row) in rows.iter().enumerate() {
            explain.push(row, &mut ());
            pushed.add(row);
            if at % 100 == 0 {
                explain.fit(0);
            }
            if (at * snapshots / rows.len()) == (at + 1) * snapshots / rows.len() {
                continue;
            }
            let Snapshot { profile, ledger } = explain.snapshot(&[], &mut ());
            symbolizer.name(profile);
            pushed.check(&ledger, profile);
            let mut folded = Vec::new();
            FOLDED.draw(profile, &GPU, &export::Options::default(), &mut folded).unwrap();
            let folded = String::from_utf8(folded).unwrap();
            assert_eq!(nanos_under(&folded, ""), nanos_of(&rows[..=at]), "after {at} rows");
            assert!(!folded.contains("kernel without a name"), "{folded}");
            assert_eq!(ledger.others.stacks.1, nanos_under(&folded, "[other stacks]"));
            assert_eq!(ledger.others.kernels.1, nanos_under(&folded, "[GPU_Kernel][other kernels]"));
            if at + 1 == rows.len() {
                assert!(folded.contains("[other stacks];cudaLaunchKernel;[GPU_Kernel]"), "{folded}");
                for loss in [Loss::StacksNotKeptApart, Loss::KernelsNotKeptApart] {
                    assert!(ledger.lost(loss) > 1_000, "{:?}", ledger.losses);
                }
            }
        }
    }
}
