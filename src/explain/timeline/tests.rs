//! Tests `Timeline` with two kinds of input rows. Some tests contain a drawing: text that shows the rows, with the
//! expected charges below them. Other tests use random rows, and compare the timeline's times with a simple
//! implementation that marks every nanosecond.
//!
//! A column of a drawing represents 5 us. So work that begins within two columns after its launch call counts as begun
//! without delay. The lines of a drawing have these meanings:
//!
//! ```text
//! window     [---]           a window, from bracket to bracket
//! calls      aaa b           launch calls; `sync` calls have no duration
//! gpu 0         AAA BB       work, by the letter of its call; work without a call has no launch
//! because 0  LLL###h#..      busy #, host late h, launch latency l, dependency d, unknown u; capitals
//!                            before a window's first work; . after the last
//! charged 0  aaa   b         blamed call: a letter, ? without a launch, ! launched outside
//! ```

use std::collections::BTreeMap;

use super::*;
use crate::join::{Join, Limits};
use gpuflame_model::profile::{Cause, DeviceTime};
use gpuflame_model::record::testing::{Rng, kernel, launch};
use gpuflame_model::record::{ContextId, GraphId, Launch, Nanos, Step, ThreadId};

const COLUMN: u64 = 5_000;
/// Time in ns that the first column represents. The first column is not at 0 ns, because a time of 0 would mean "not
/// collected".
const ORIGIN: u64 = 1_000_000_000;

/// Rows and expected results that a drawing shows.
#[derive(Default)]
struct Drawing {
    rows: Vec<Row<'static>>,
    /// Expected idle time, by device, culprit's stack and cause.
    idle: BTreeMap<(u32, SampleSite, String), u64>,
    /// Expected window time, busy time and idle time of each device.
    times: BTreeMap<u32, (u64, u64, u64)>,
}

fn time(column: usize) -> u64 {
    ORIGIN + column as u64 * COLUMN
}

/// Returns each sequence of equal letters in a line of a drawing, as (letter, first column, end column).
fn runs(text: &str) -> Vec<(char, usize, usize)> {
    let mut found: Vec<(char, usize, usize)> = Vec::new();
    for (column, letter) in text.chars().enumerate().filter(|(_, letter)| *letter != ' ') {
        match found.last_mut() {
            Some((last, _, end)) if *last == letter && *end == column => *end += 1,
            _ => found.push((letter, column, column + 1)),
        }
    }
    found
}

fn id(letter: char) -> u32 {
    100 + u32::from(letter.to_ascii_lowercase() as u8 - b'a')
}

impl Drawing {
    fn read(text: &str) -> Self {
        let (mut drawing, mut because) = (Self::default(), BTreeMap::new());
        for line in text.lines().filter(|line| line.len() > 12) {
            let (name, columns) = line.split_at(12);
            let (what, number) = name.trim().split_once(' ').unwrap_or((name.trim(), "0"));
            let device: u32 = number.parse().unwrap();
            match what {
                "window" => drawing.windows(columns),
                "calls" => drawing.calls(columns, id, true),
                "sync" => drawing.calls(columns, id, false),
                "outside" => drawing.calls(columns, |_| ContextId::OUTSIDE.0, true),
                "gpu" => drawing.work(columns, device),
                "because" => drop(because.insert(device, columns.to_owned())),
                "charged" => drawing.charged(device, &because[&device], columns),
                _ => panic!("what is a row of {what}?"),
            }
        }
        drawing
    }

    fn windows(&mut self, columns: &str) {
        for (column, letter) in columns.char_indices() {
            let edge = match letter {
                '[' => WindowEdge::Open,
                ']' => WindowEdge::Close,
                _ => continue,
            };
            let column = column + usize::from(edge == WindowEdge::Close);
            self.rows.push(Row::Window { edge, time: Nanos(time(column)) });
        }
    }

    fn calls(&mut self, columns: &str, context: fn(char) -> u32, says_how_long: bool) {
        for (letter, from, to) in runs(columns) {
            let duration = if says_how_long { (time(to) - time(from)) as u32 } else { 0 };
            let call = launch(id(letter), context(letter));
            self.rows.push(Row::Launch(Launch { time: Nanos(time(from)), duration, ..call }));
        }
    }

    fn work(&mut self, columns: &str, device: u32) {
        for (letter, from, to) in runs(columns) {
            let work = kernel(id(letter), time(from), time(to));
            // The letter `G` is a graph; any other letter is the launch of one kernel.
            let graph = GraphId(u32::from(letter == 'G'));
            self.rows.push(Row::Activity(Activity { device: DeviceId(device), graph, ..work }));
        }
    }

    fn charged(&mut self, device: u32, because: &str, charged: &str) {
        let times = self.times.entry(device).or_default();
        let charged = charged.chars().chain(std::iter::repeat(' '));
        for (because, charged) in because.chars().zip(charged).filter(|(because, _)| *because != ' ') {
            times.0 += COLUMN;
            if because == '#' {
                times.1 += COLUMN;
                continue;
            }
            times.2 += COLUMN;
            let place = match charged {
                '?' | ' ' => SampleSite::Missing(Missing::NoStack),
                '!' => SampleSite::Missing(Missing::Outside),
                letter => SampleSite::Context(ContextId(id(letter))),
            };
            *self.idle.entry((device, place, because.to_string())).or_default() += COLUMN;
        }
    }

    /// Passes the rows through the join and the timeline in the given order, and compares the result with the expected
    /// values.
    #[track_caller]
    fn check(&self, rows: &[Row<'_>]) {
        let profile = account(rows, Limits::default());
        let mut idle = BTreeMap::new();
        for sample in profile.samples(&IDLE) {
            let cause = sample.leaf.frames().find_map(|leaf_frame| match leaf_frame {
                LeafFrame::Idle(cause) => Some(letter(cause)),
                _ => None,
            });
            let (place, because) = match (sample.root_mark, cause) {
                (None, Some(cause)) => (sample.site, cause.to_owned()),
                (Some(RootMark::Opening), Some(cause)) => (sample.site, cause.to_uppercase()),
                (Some(RootMark::Closing), None) => (SampleSite::Missing(Missing::NoStack), ".".to_owned()),
                _ => panic!("{sample:?}"),
            };
            let key = (sample.device.unwrap().0, place, because);
            assert!(idle.insert(key, sample.amount()).is_none(), "an idle sample occurred twice");
        }
        assert_eq!(idle, self.idle);
        let times = profile.times().iter().map(|t| (t.device.0, (t.window, t.busy, t.idle)));
        assert_eq!(times.collect::<BTreeMap<_, _>>(), self.times);
    }
}

fn letter(cause: Cause) -> &'static str {
    match cause {
        Cause::HostLate => "h",
        Cause::LaunchLatency => "l",
        Cause::Dependency => "d",
        Cause::Unknown => "u",
    }
}

fn account(rows: &[Row<'_>], limits: Limits) -> Profile {
    let (mut join, mut timeline) = (Join::new(limits), Timeline::default());
    for row in rows {
        join.push(row, &mut timeline);
        timeline.row(row);
    }
    join.final_tally(&mut timeline);
    let mut profile = Profile::default();
    timeline.fill(&mut profile);
    profile
}

/// Checks a drawing with its rows in the drawn order, and also in random orders.
#[track_caller]
fn check(text: &str) {
    let drawing = Drawing::read(text);
    drawing.check(&drawing.rows);
    for seed in 1..20 {
        let (edges, mut rest): (Vec<_>, Vec<_>) =
            drawing.rows.iter().cloned().partition(|row| matches!(row, Row::Window { .. }));
        Rng::new(seed).shuffle(&mut rest, 100);
        // The edges of windows stay in order, but they may all arrive before all other rows, or all after all other
        // rows.
        drawing.check(&[edges.clone(), rest.clone()].concat());
        drawing.check(&[rest, edges].concat());
    }
}

#[test]
fn a_gap_is_charged_to_the_launch_that_ended_it() {
    check(
        "
window      [-----------------------]
calls        a         bb
gpu 0          AAAA       BBBB
because 0   HLL####hhhhlll####.......
charged 0   aaa    bbbbbbb
",
    );
}

#[test]
fn a_gap_before_work_launched_in_time_is_a_dependency_wait() {
    check(
        "
window      [-----------------------------]
calls       ab     c               d
gpu 0        AAAAA  BBB       CCC        DD
because 0   L#####dd###ddddddd###hhlllddd##
charged 0   a     bb   ccccccc   dddddddd
",
    );
}

#[test]
fn a_device_is_idle_when_none_of_its_streams_is_busy() {
    check(
        "
window      [--------------------------]
calls       abc       d  e
gpu 0        AAAAAA       EEEE
gpu 0         BBBB
gpu 0          CCCCCCC   DDDD
because 0   L#########lll#####..........
charged 0   a         ddd
",
    );
}

#[test]
fn each_device_is_accounted_separately() {
    check(
        "
window      [--------------------]
calls       a b     c
gpu 0        AAAA     CC
gpu 1          BBBBBBBBBBBB
because 0   L####hhhll##..........
charged 0   a    ccccc
because 1   HHL############.......
charged 1   bbb
",
    );
}

#[test]
fn work_may_outlast_its_window_and_begin_after_it() {
    check(
        "
window      [--------]      [-------------]
outside               x
calls        a    b              c      d
gpu 0          AA    BBBB  XXXX    CC       DDDD
because 0   HLL##hlll####   ###hhll##hhhlll ####
charged 0   aaa  bbbb          cccc  dddddd
",
    );
}

#[test]
fn work_launched_outside_keeps_a_device_busy_and_is_charged_separately() {
    check(
        "
window      [---]     [---------------]
outside          y z
calls        a
gpu 0          AA    YY   ZZ
because 0   HLL##     #ddd##...........
charged 0   aaa        !!!
",
    );
}

#[test]
fn the_cause_is_unknown_without_a_launch_or_with_contradicting_clocks() {
    check(
        "
window      [------------------]
calls       a            b   c
gpu 0        AA    QQ   BB C
because 0   L##uuuu##hhh##u#....
charged 0   a  ????  bbb  c
",
    );
}

#[test]
fn a_synchronous_call_is_in_flight_until_its_work_begins() {
    check(
        "
window      [------------------]
calls       a
sync           b
gpu 0        AAA       BB
because 0   L###lllllll##.......
charged 0   a   bbbbbbb
",
    );
}

#[test]
fn gaps_inside_a_graph_wait_for_the_graph() {
    check(
        "
window      [-----------------]
calls       g
gpu 0         GGG GG   GGGG
because 0   LL###d##ddd####....
charged 0   gg   g  ggg
",
    );
}

#[test]
fn idle_time_of_a_window_without_work_is_not_charged() {
    check(
        "
window      [--]  [-----]
calls               a
gpu 0                AA
because 0   ....  HHL##..
charged 0         aaa
",
    );
}

#[test]
fn without_windows_time_counts_from_the_first_work_to_the_last() {
    check(
        "
calls       a    b
gpu 0         AA    BB
because 0     ##hlll##
charged 0       bbbb
",
    );
}

/// Returns the busy and idle time of device 0, which must be the only device. Also checks that busy and idle time add
/// up to the time in which a window was open.
fn only(profile: &Profile) -> DeviceTime {
    let [time] = profile.times() else { panic!("{:?}", profile.times()) };
    assert_eq!(time.window, time.busy + time.idle, "{time:?}");
    assert_eq!(profile.samples(&IDLE).iter().map(Sample::amount).sum::<u64>(), time.idle);
    *time
}

fn window(edge: WindowEdge, time: u64) -> Row<'static> {
    Row::Window { edge, time: Nanos(time) }
}

#[test]
fn sums_match_the_oracle_for_rows_in_any_order() {
    for seed in 1..300 {
        let mut rng = Rng::new(seed);
        // For each nanosecond: whether a window is open, whether recorded work runs, and whether work runs that was
        // launched outside of windows.
        let (mut open, mut busy, mut outside) = ([false; 4000], [false; 4000], [false; 4000]);
        let (mut edges, mut rows, mut at) = (Vec::new(), Vec::new(), 1 + rng.below(500) as usize);
        while at < 3500 {
            let close = at + rng.below(600) as usize;
            open[at..close.min(4000)].fill(true);
            edges.push(window(WindowEdge::Open, at as u64));
            edges.push(window(WindowEdge::Close, close.min(4000) as u64));
            at = close + rng.below(300) as usize;
        }
        for id in 2..40_u32 {
            let (start, length) = (1 + rng.below(3800) as usize, rng.below(100) as usize);
            let recorded = id == 2 || rng.below(3) > 0;
            let marks = if recorded { &mut busy } else { &mut outside };
            marks[start..start + length].fill(true);
            let context = if recorded { id } else { ContextId::OUTSIDE.0 };
            let call = Launch { time: Nanos(1 + rng.below(4000)), ..launch(id, context) };
            rows.push(Row::Launch(call));
            rows.push(Row::Activity(kernel(id, start as u64, (start + length) as u64)));
        }
        rng.shuffle(&mut rows, 100);
        edges.append(&mut rows);
        let time = only(&account(&edges, Limits::default()));
        let count = |what: &dyn Fn(usize) -> bool| (0..4000).filter(|&at| what(at)).count() as u64;
        assert_eq!(time.window, count(&|at| open[at] || busy[at]), "seed {seed}");
        assert_eq!(time.busy, count(&|at| busy[at] || open[at] && outside[at]), "seed {seed}");
    }
}

/// Returns activities of 7 ns each that begin every 10 ns, starting at 1,000 ns. All returned activities belong to one
/// graph, and their launches are unknown.
fn steady(count: u64) -> Vec<Row<'static>> {
    let work = |at| Activity { graph: GraphId(1), ..kernel(1, 1000 + at * 10, 1007 + at * 10) };
    (0..count).map(|at| Row::Activity(work(at))).collect()
}

#[test]
fn nearly_ordered_rows_are_accounted_exactly() {
    let mut rows = vec![window(WindowEdge::Open, 500), Row::Launch(launch(1, 11))];
    let mut work = steady(500_000);
    Rng::new(1).shuffle(&mut work, 10_000);
    rows.append(&mut work);
    rows.push(window(WindowEdge::Close, 5_002_000));
    let time = only(&account(&rows, Limits::default()));
    let expected = (5_001_500, 3_500_000, 0, 0);
    assert_eq!((time.window, time.busy, time.late, time.late_count), expected);
    assert_eq!((time.first, time.last), (Nanos(1000), Nanos(1000 + 499_999 * 10 + 7)));
}

#[test]
fn forty_threads_may_deliver_ten_thousand_records_each_in_turn() {
    // Forty threads launch one after another. The tracer delivers each thread's buffer when this buffer is full.
    let (threads, records) = (40, 10_000);
    let mut rows = vec![Row::Launch(launch(1, 11))];
    for round in 0..4 {
        for thread in 0..threads {
            rows.extend((0..records).map(|at| {
                let start = 1_000 + 10 * (thread + threads * (at + records * round));
                Row::Activity(kernel(1, start, start + 7))
            }));
        }
    }
    let (mut join, mut timeline) = (Join::default(), Timeline::default());
    rows.iter().for_each(|row| join.push(row, &mut timeline));
    assert!(timeline.heap_bytes() <= 32 * device::MAX_STRETCHES + (1 << 20), "{}", timeline.heap_bytes());
    let mut profile = Profile::default();
    timeline.fill(&mut profile);
    let time = only(&profile);
    assert_eq!((time.busy, time.late_count), (7 * 4 * threads * records, 0));
}

#[test]
fn late_rows_are_counted_and_bound_the_error() {
    let mut rows = vec![Row::Launch(launch(1, 11))];
    rows.append(&mut steady(200_000));
    rows.extend([(1001, 1011), (1017, 1019)].map(|(start, end)| Row::Activity(kernel(1, start, end))));
    let time = only(&account(&rows, Limits::default()));
    assert_eq!((time.busy, time.late, time.late_count), (1_400_000, 12, 2));
}

#[test]
fn one_window_per_step_does_not_grow_memory_and_stays_exact() {
    let (mut join, mut timeline) = (Join::default(), Timeline::default());
    let mut most = 0;
    for step in 0..100_000_u64 {
        let at = 1_000 + step * 100;
        let rows = [
            window(WindowEdge::Open, at),
            Row::Launch(Launch { time: Nanos(at + 5), ..launch(step as u32, 11) }),
            Row::Activity(kernel(step as u32, at + 20, at + 50)),
            window(WindowEdge::Close, at + 90),
        ];
        for row in &rows {
            join.push(row, &mut timeline);
            timeline.row(row);
        }
        if step == 20_000 {
            most = timeline.heap_bytes();
        }
    }
    assert_eq!(timeline.heap_bytes(), most);
    // A device that had no work so far was idle in all earlier windows.
    let rows = [
        window(WindowEdge::Open, 20_000_000),
        Row::Activity(Activity { device: DeviceId(1), ..kernel(99_999, 20_000_010, 20_000_020) }),
        window(WindowEdge::Close, 20_000_100),
    ];
    for row in &rows {
        join.push(row, &mut timeline);
        timeline.row(row);
    }
    join.final_tally(&mut timeline);
    let mut profile = Profile::default();
    timeline.fill(&mut profile);
    let times: Vec<_> = profile.times().iter().map(|t| (t.window, t.busy, t.idle)).collect();
    assert_eq!(times, [(9_000_100, 3_000_000, 6_000_100), (9_000_100, 10, 9_000_090)]);
}

#[test]
fn work_that_starts_before_its_launch_is_counted_as_early() {
    let rows = [
        Row::Launch(Launch { time: Nanos(5_000), ..launch(1, 11) }),
        Row::Launch(Launch { time: Nanos(9_000), ..launch(2, 11) }),
        Row::Launch(Launch { time: Nanos(9_500), ..launch(3, 11) }),
        Row::Activity(kernel(1, 5_000, 5_100)),
        Row::Activity(kernel(2, 8_400, 8_500)),
        Row::Activity(kernel(3, 9_499, 9_600)),
    ];
    let time = only(&account(&rows, Limits::default()));
    assert_eq!((time.early, time.early_count), (600, 2));
}

#[test]
fn streams_are_summed_separately_and_those_beyond_the_limit_together() {
    let on = |stream: u32, start| Activity {
        context: gpuflame_model::record::GpuContextId(1 + stream % 2),
        stream: gpuflame_model::record::StreamId(stream),
        ..kernel(1, start, start + 10)
    };
    let mut rows = vec![Row::Launch(launch(1, 11))];
    rows.extend((0..10_000).map(|at| Row::Activity(on(at as u32 % 5000, 100 + at * 20))));
    let profile = account(&rows, Limits::default());
    assert_eq!(profile.streams().len(), 4097);
    let named = profile.streams().iter().filter(|stream| stream.stream.is_some());
    assert!(named.clone().all(|stream| (stream.count, stream.nanos) == (2, 20)));
    let others = profile.streams().iter().find(|stream| stream.stream.is_none()).unwrap();
    assert_eq!((others.count, others.nanos), (2 * (5000 - 4096), 20 * (5000 - 4096)));
}

/// Returns the rows of a run that consists of loops. Also returns several times: the opening of the window, the
/// beginning and end of each loop, and the closing of the window. Each loop is described by its stacks, its number of
/// launches, and the pause in ns after the loop. In a loop, a launch with 5 us of work is made every 10 us.
fn loops(loops: &[(&[u32], u64, u64)]) -> (Vec<Row<'static>>, Vec<u64>) {
    const US: u64 = 1_000;
    let (mut at, mut id) = (ORIGIN + 3_000 * US, 0);
    let mut rows = vec![window(WindowEdge::Open, ORIGIN)];
    let mut edges = vec![ORIGIN];
    for &(stacks, count, pause) in loops {
        edges.push(at);
        for number in 0..count {
            let context = stacks[number as usize % stacks.len()];
            let time = at + 10 * US * number;
            rows.push(Row::Launch(Launch { time: Nanos(time), duration: 1_000, ..launch(id, context) }));
            rows.push(Row::Activity(kernel(id, time + 2 * US, time + 7 * US)));
            id += 1;
        }
        edges.push(at + 10 * US * (count - 1) + 7 * US);
        at += 10 * US * count + pause;
    }
    edges.push(at);
    rows.push(window(WindowEdge::Close, at));
    (rows, edges)
}

/// Returns the busy and idle time of device 0, with start-up and shutdown separate from the steady part. Also checks
/// that the samples of the idle view add up to the same idle time.
fn in_parts(rows: &[Row<'_>]) -> DeviceTime {
    let (mut join, mut timeline) = (Join::default(), Timeline::default().with_steady_part());
    for row in rows {
        join.push(row, &mut timeline);
        timeline.row(row);
        if let Row::Step(step) = row {
            timeline.add_step(step);
        }
    }
    join.final_tally(&mut timeline);
    let mut profile = Profile::default();
    timeline.fill(&mut profile);
    let time = only(&profile);
    for (mark, idle) in [(RootMark::StartUp, time.start_up.idle), (RootMark::Shutdown, time.shutdown.idle)] {
        let samples = profile.samples(&IDLE).iter().filter(|sample| sample.root_mark == Some(mark));
        assert_eq!(samples.map(Sample::amount).sum::<u64>(), idle);
    }
    assert_eq!(time.start_up.window() + time.steady().window() + time.shutdown.window(), time.window);
    time
}

fn windows_of_parts(time: &DeviceTime) -> [u64; 3] {
    [time.start_up.window(), time.steady().window(), time.shutdown.window()]
}

#[test]
fn start_up_and_shutdown_are_exact_in_runs_that_are_accounted_for_while_they_last() {
    // In the second and third case, the loops before and after the longest loop are so long that their time is
    // accounted for before the run ends.
    for (before, count, after) in [(10, 200, 10), (100_000, 200_000, 90_000), (200_000, 100_000, 50_000)] {
        let (rows, edges) =
            loops(&[(&[10], before, 5_000_000), (&[20, 21, 21], count, 7_000_000), (&[30], after, 900_000)]);
        let time = in_parts(&rows);
        let longest = if before > count { 1 } else { 3 };
        let (begin, end) = (edges[longest], edges[longest + 1]);
        let expected = [begin - edges[0], end - begin, edges[7] - end];
        assert_eq!(windows_of_parts(&time), expected, "{before} launches before");
        let busy = |count: u64| 5_000 * count;
        let parts = match longest {
            1 => [0, before, count + after],
            _ => [before, count, after],
        };
        assert_eq!([time.start_up.busy, time.steady().busy, time.shutdown.busy], parts.map(busy));
    }
}

#[test]
fn steps_divide_a_run_and_a_run_without_repetition_is_not_divided() {
    let (mut rows, edges) = loops(&[(&[10], 50, 5_000_000), (&[20], 4, 7_000_000), (&[30], 1, 900_000)]);
    // Add two steps with two launches each. The second step ends before the last launch is made.
    for (number, time) in [(1, edges[3] - 1_000), (2, edges[3] + 19_000)] {
        let (time, end) = (Nanos(time), Some(Nanos(time + 20_000)));
        rows.insert(1, Row::Step(Step { time, end, thread: ThreadId(1), number, name: "" }));
    }
    let time = in_parts(&rows);
    let (begin, end) = (edges[3] - 1_000, edges[4]);
    assert_eq!(windows_of_parts(&time), [begin - edges[0], end - begin, edges[7] - end]);
    let (rows, edges) = loops(&[(&[10], 1, 5_000_000), (&[20], 2, 900_000)]);
    assert_eq!(windows_of_parts(&in_parts(&rows)), [0, edges[5] - edges[0], 0]);
}

/// Returns the rows of a training run, the time of its first launch, and the time at which its last GPU work ends. Each
/// step launches one forward stack four times, one backward stack twice, and each of two more stacks once. The first
/// step takes 31 ms, because code is loaded between the forward and the backward pass. All further steps take 1 ms.
fn training_with_a_long_first_step(steps: u64) -> (Vec<Row<'static>>, [u64; 2]) {
    const US: u64 = 1_000;
    let begin = ORIGIN + 6_000_000 * US;
    let (mut at, mut id) = (begin, 0);
    let mut rows = vec![window(WindowEdge::Open, ORIGIN)];
    for step in 0..steps {
        for stack in [10, 10, 10, 10, 20, 20, 30, 40] {
            if step == 0 && stack == 20 {
                at += 30_000 * US;
            }
            rows.push(Row::Launch(Launch { time: Nanos(at), duration: 1_000, ..launch(id, stack) }));
            // The forward kernels are short. The forward kernels are less than half of all kernels, and take less than
            // half of the GPU time.
            let nanos = if stack == 10 { US } else { 4 * US };
            rows.push(Row::Activity(kernel(id, at + 2 * US, at + 2 * US + nanos)));
            (at, id) = (at + 10 * US, id + 1);
        }
        at += 920 * US;
    }
    for stack in 50..58 {
        rows.push(Row::Launch(Launch { time: Nanos(at), duration: 1_000, ..launch(id, stack) }));
        rows.push(Row::Activity(kernel(id, at + 2 * US, at + 3 * US)));
        id += 1;
    }
    rows.push(window(WindowEdge::Close, at + 1_000_000 * US));
    (rows, [begin, at - 930 * US + 6 * US])
}

#[test]
fn a_loop_is_found_if_its_longest_stack_is_launched_several_times_in_a_long_first_step() {
    let (rows, [begin, end]) = training_with_a_long_first_step(25);
    let time = in_parts(&rows);
    assert_eq!(windows_of_parts(&time)[..2], [begin - ORIGIN, end - begin]);
}

#[test]
fn finding_the_steady_part_uses_no_memory_per_launch() {
    let (mut join, mut timeline) = (Join::default(), Timeline::default().with_steady_part());
    let (rows, _) = loops(&[(&[10, 11], 400_000, 1)]);
    let mut most = 0;
    for (at, row) in rows.iter().enumerate() {
        join.push(row, &mut timeline);
        timeline.row(row);
        if at == rows.len() / 2 {
            most = timeline.heap_bytes();
        }
    }
    assert!(timeline.heap_bytes() <= most, "{} after {most}", timeline.heap_bytes());
}

#[test]
#[ignore = "a measurement; .ci/long runs it"]
fn the_timelines_cost_compared_with_the_join_is_printed() {
    let (mut rows, mut rng) = (Vec::new(), Rng::new(3));
    for id in 0..1_000_000_u32 {
        let start = 1_000_000 + u64::from(id) * 3000;
        rows.push(Row::Launch(Launch { time: Nanos(start - 4000), ..launch(id, 2 + id % 500) }));
        rows.push(Row::Activity(kernel(id, start, start + 500 + rng.below(2000))));
    }
    let rate = |sink: &mut dyn Sink| {
        let (mut join, began) = (Join::default(), std::time::Instant::now());
        let mut sink = sink;
        rows.iter().for_each(|row| join.push(row, &mut sink));
        rows.len() as f64 / began.elapsed().as_secs_f64() / 1e6
    };
    for _ in 0..5 {
        let (alone, both) = (rate(&mut None::<Timeline>), rate(&mut Timeline::default()));
        eprintln!("{alone:.1} M rows/s through the join, {both:.1} with a timeline: {:.2}", both / alone);
    }
}

#[test]
fn idle_time_between_calls_is_charged_to_the_launching_threads_samples() {
    let us = |micros: u64| Nanos(ORIGIN + micros * 1000);
    let mut timeline = Timeline::default();
    timeline.row(&Row::Window { edge: WindowEdge::Open, time: us(0) });
    assert!(timeline.is_in_window(us(0)) && !timeline.is_in_window(Nanos(ORIGIN - 1)));
    for (at, context) in [(0, 100), (1000, 101)] {
        timeline.add_launch(ThreadId(1), (us(at), us(at + 5)), ContextId(context));
    }
    // Samples of another thread have no effect. Samples of the launching thread before or after the gap (20 to 1000 us)
    // have no effect either.
    for (at, thread, context) in
        [(15, 1, 9), (200, 1, 7), (500, 2, 9), (600, 1, 7), (800, 1, 8), (1015, 1, 9)]
    {
        let (thread, context) = (ThreadId(thread), ContextId(context));
        timeline.add_sample(&CpuSample { time: us(at), period: 300_000, thread, context });
    }
    for (at, context) in [(0, 100), (1000, 101)] {
        let launched = Launched { time: us(at), duration: 5000, context: ContextId(context) };
        timeline.activity(&kernel(context, us(at + 10).0, us(at + 20).0), Origin::Launch(launched));
    }
    let mut profile = Profile::default();
    timeline.fill(&mut profile);
    let late = profile
        .samples(&IDLE)
        .iter()
        .filter(|sample| sample.leaf == Leaf::new(&[LeafFrame::Idle(Cause::HostLate)]));
    let found: BTreeMap<_, _> = late.map(|sample| (sample.site, (sample.amount(), sample.count()))).collect();
    let between = SampleSite::Between { after: ContextId(100), thread: None, before: ContextId(101) };
    let expected = [
        (SampleSite::Context(ContextId(7)), (600_000, 1)),
        (SampleSite::Context(ContextId(8)), (300_000, 0)),
        (between, (80_000, 0)),
    ];
    assert_eq!(found, BTreeMap::from(expected));
}
