//! Tests real traces that other tools recorded. Each trace must be readable, the number of operations that are linked
//! with a launch must equal an independent count, and no nanosecond of GPU time may be lost.
//!
//! The numbers were counted with Python's `json` and `decimal`. The traces are not in this repository. The tests look
//! for the traces in the folder `GPUFLAME_TRACES`, or next to the checkout.
use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::command::gpuflame;
use crate::support::{scratch, skip};
use gpuflame_explain::aggregate::Aggregate;
use gpuflame_explain::join::{Join, Launched, Origin, Sink};
use gpuflame_explain::timeline::Timeline;
use gpuflame_export::{self as export, FOLDED, work_name};
use gpuflame_model::profile::views::{GPU, WAITS};
use gpuflame_model::profile::{Profile, Sample};
use gpuflame_model::record::{Activity, CorrelationId, NameId, Row, Work};
use gpuflame_offline::run::{self, ReadOptions};
use gpuflame_traces::import::{self, Kind, LinkReport, Options};
use gpuflame_traces::steps::Ops;
use serde_json::Value;

/// Name of a trace, and these counts:
/// - events;
/// - GPU operations;
/// - linked operations;
/// - operations launched before the trace began;
/// - launches with several operations;
/// - the maximum number of operations of one launch;
/// - nanoseconds of GPU work.
type Counted = (&'static str, u64, u64, u64, u64, u64, u64, u64);

const CHROME: [Counted; 17] = [
    ("b200/eager_trace.json.gz", 24656, 929, 929, 0, 0, 1, 11_665_760),
    ("et-pairs/linear_kineto.json.gz", 86859, 10356, 10356, 0, 0, 1, 370_983_000),
    ("graphs/graph_execution.json.gz", 19289, 423, 423, 0, 25, 15, 156_085_905),
    ("h100/Falconsai_nsfw_image_detection__1016002.json.gz", 5138, 156, 156, 0, 0, 1, 1_225_310),
    ("h100/facebook_timesformer-base-finetuned-k400__1016002.json.gz", 50125, 534, 534, 0, 0, 1, 158_433_174),
    ("kineto-2021/gpu_metrics_input.json", 340, 32, 32, 0, 0, 1, 50_000),
    ("kineto-2021/worker0.1623143566756.pt.trace.json.gz", 75718, 9096, 9096, 0, 0, 1, 602_145_000),
    ("kineto-2023/control.json.gz", 109_123, 9450, 9450, 0, 0, 1, 501_567_000),
    ("kineto-2023/event_sync_trace.json.gz", 149, 6, 6, 0, 0, 1, 372_000),
    ("kineto-2023/rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz", 30, 0, 0, 0, 0, 0, 0),
    ("kineto-2023/rank_not_found.json.gz", 2467, 0, 0, 0, 0, 0, 0),
    ("kineto-2023/test.json.gz", 105_167, 15632, 15018, 614, 12, 502, 963_762_000),
    ("kineto-2024/after_fix_trace.json", 75, 1, 1, 0, 0, 1, 20),
    ("kineto-2024/rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz", 68692, 6095, 6095, 0, 0, 1, 472_454_441),
    ("kineto-mtia/mtia_inference_rank_0.json.gz", 16158, 974, 730, 0, 110, 9, 459_456_313),
    ("kineto-rocm/mi250_minitoy_train_ROCm6_2_kineto.json.gz", 220, 16, 16, 0, 0, 1, 149_042),
    ("kineto-rocm/resnet_act_checkpoint.json.gz", 56451, 3653, 2685, 968, 0, 1, 100_230_072),
];

/// Counts for the eight ranks of `dlrm-8-ranks/dlrm_kineto.tar.gz`, in the order of the ranks.
const DLRM: [Counted; 8] = [
    ("worker0", 3290, 261, 261, 0, 0, 1, 6_851_000),
    ("worker1", 3424, 326, 262, 64, 0, 1, 12_601_000),
    ("worker2", 3268, 262, 262, 0, 0, 1, 4_579_000),
    ("worker3", 3474, 337, 273, 64, 0, 1, 11_042_000),
    ("worker4", 3310, 273, 273, 0, 0, 1, 7_739_000),
    ("worker5", 3250, 261, 261, 0, 0, 1, 7_311_000),
    ("worker6", 3272, 262, 262, 0, 0, 1, 4_628_000),
    ("worker7", 3250, 262, 262, 0, 0, 1, 2_825_000),
];

/// Returns the folder of traces. If there is no such folder, prints why the test is skipped and returns `None`.
pub(crate) fn traces() -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces");
    let folder = std::env::var_os("GPUFLAME_TRACES").map_or(beside, PathBuf::from);
    if !folder.is_dir() {
        skip("there is no folder of real traces (GPUFLAME_TRACES names one)");
        return None;
    }
    Some(folder)
}

/// Reads a trace with `serde_json`. Times stay text, because floating-point numbers would be wrong by up to a quarter
/// of a microsecond.
pub(crate) fn document(path: &Path) -> Value {
    let bytes = fs::read(path).unwrap();
    let text = match path.extension().is_some_and(|ending| ending == "gz") {
        true => {
            let mut text = Vec::new();
            flate2::read::GzDecoder::new(&bytes[..]).read_to_end(&mut text).unwrap();
            text
        }
        false => bytes,
    };
    serde_json::from_str(&with_times_quoted(&String::from_utf8(text).unwrap())).unwrap()
}

fn with_times_quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + text.len() / 8);
    let mut rest = text;
    while let Some(at) =
        [r#""ts":"#, r#""dur":"#].iter().filter_map(|key| Some(rest.find(key)? + key.len())).min()
    {
        let (before, behind) = rest.split_at(at);
        quoted.push_str(before);
        let number = behind.trim_start();
        let end = number.find(|c: char| !matches!(c, '0'..='9' | '.' | '-')).unwrap();
        match end {
            0 => rest = number,
            _ => {
                quoted.push_str(&format!("\"{}\"", &number[..end]));
                rest = &number[end..];
            }
        }
    }
    quoted + rest
}

/// Converts a trace file to folded stacks.
fn explained(path: &Path) -> (LinkReport, Profile, Vec<String>) {
    let (mut join, mut aggregate, mut profile) = (Join::default(), Aggregate::default(), Profile::default());
    let opened = import::open(path).unwrap();
    let linked = import::rows(opened, &Options::default(), &mut |row: &Row<'_>| {
        join.push(row, &mut aggregate);
        profile.push(row);
    })
    .unwrap();
    let activities = join.final_tally(&mut aggregate).activities;
    aggregate.fill(&mut profile);
    assert_eq!(
        activities.matched,
        linked.linked_ops,
        "{}: the join matches every linked operation",
        path.display()
    );
    assert_eq!(activities.launched_before, linked.launched_before_trace, "{}", path.display());
    assert_eq!(
        activities.no_stack,
        linked.ops - linked.linked_ops - linked.launched_before_trace,
        "{}",
        path.display()
    );
    let mut folded = Vec::new();
    FOLDED.draw(&profile, &GPU, &export::Options::default(), &mut folded).unwrap();
    let lines = String::from_utf8(folded).unwrap().lines().map(str::to_owned).collect();
    (linked, profile, lines)
}

fn weights(folded: &[String]) -> u64 {
    folded.iter().map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum()
}

fn check(path: &Path, counted: &Counted) -> Vec<String> {
    let (name, events, ops, with_launch, before, shared, most, nanos) = *counted;
    let (linked, _, folded) = explained(path);
    assert_eq!(linked.counts.events, events, "{name}: events");
    assert_eq!(
        (linked.ops, linked.linked_ops, linked.launched_before_trace),
        (ops, with_launch, before),
        "{name}: linked"
    );
    assert_eq!((linked.multi_op_launches, linked.max_ops_per_launch), (shared, most), "{name}: shared ids");
    assert_eq!(linked.gpu_ns, nanos, "{name}: GPU time");
    assert_eq!(weights(&folded), nanos, "{name}: the sum of the folded weights");
    folded
}

#[test]
fn chrome_traces_are_linked_as_counted_and_lose_no_nanosecond() {
    let Some(folder) = traces() else { return };
    for counted in &CHROME {
        let path = folder.join(counted.0);
        assert_eq!(import::open(&path).unwrap().kind(), Kind::Chrome, "{}", counted.0);
        check(&path, counted);
    }
}

#[test]
fn waits_have_their_calls_and_the_records_of_their_events() {
    let Some(traces) = traces() else { return };
    // Four counts for each trace: event records, event records with a call, calls that make a stream wait, and calls
    // that make the host wait.
    let counted = [
        ("hta-critical/alexnet.json.gz", [20, 20, 20, 21]),
        ("hta-critical/event_sync.json.gz", [1, 1, 0, 4]),
        ("hta-critical/event_sync_multi_stream.json.gz", [3, 3, 1, 4]),
        // Python's `sqlite3` counted these values. The exports have no records of CUDA events.
        ("nsys/h100_2gpu_1s.sqlite", [0, 0, 236, 8]),
        ("nsys/mock.sqlite", [0, 0, 0, 1]),
    ];
    for (name, counts) in counted {
        let path = traces.join(name);
        let read = run::read(path, &ReadOptions::default()).unwrap();
        let profile = read.profile();
        let known = profile.dependencies();
        let host_waits = profile.samples(&WAITS).iter().map(Sample::count).sum();
        assert_eq!([known.event_records, known.record_calls, known.wait_calls, host_waits], counts, "{name}");
    }
}

#[test]
fn operations_launched_before_the_trace_are_marked() {
    let Some(folder) = traces() else { return };
    let counted = CHROME.iter().find(|counted| counted.0.contains("resnet")).unwrap();
    let folded = check(&folder.join(counted.0), counted);
    assert!(folded.iter().any(|line| line.starts_with("[launched before recording];")), "{folded:?}");
}

/// In this trace, each of the 25 graph launches has the same correlation id as up to 15 kernels.
#[test]
fn all_kernels_of_a_graph_launch_are_under_its_call() {
    let Some(folder) = traces() else { return };
    let trace = folder.join("graphs/graph_execution.json.gz");
    let trace = trace.to_str().unwrap();
    let out = scratch("graphs-trace");
    let folded = gpuflame(&out, ["-q", "flamegraph", trace, "--format", "folded"]).ok().stdout;
    let mut by_call: BTreeMap<&str, u64> = BTreeMap::new();
    for line in folded.lines().filter(|line| !line.starts_with("# ")) {
        let (stack, weight) = line.rsplit_once(' ').unwrap();
        let call = stack.split(';').rev().find(|frame| frame.starts_with("hip")).unwrap_or("none");
        *by_call.entry(call).or_default() += weight.parse::<u64>().unwrap();
    }
    let counted = [
        ("hipExtModuleLaunchKernel", 346_637),
        ("hipGraphLaunch", 149_919_755),
        ("hipLaunchKernel", 595_208),
        ("hipMemcpyAsync", 77_399),
        ("hipModuleLaunchKernel", 5_146_906),
    ];
    assert_eq!(by_call, BTreeMap::from(counted));
    let info = gpuflame(&out, ["info", trace]).ok().stdout;
    for (what, count) in [
        ("launches matched", 87),
        ("activities matched", 423),
        ("launches with several activities", 25),
        ("most activities of a launch", 15),
    ] {
        let line = info.lines().find_map(|line| line.strip_prefix(what)).unwrap_or_else(|| panic!("{info}"));
        assert_eq!(line.trim().parse::<u64>(), Ok(count), "{what}");
    }
}

#[test]
fn the_ranks_of_a_job_are_linked_as_counted() {
    let Some(folder) = traces() else { return };
    let unpacked = unpacked_ranks(&folder);
    for entry in unpacked.read_dir().unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let counted = DLRM.iter().find(|counted| name.starts_with(counted.0)).unwrap();
        check(&path, counted);
    }
}

/// Unpacks the eight traces of a job into a folder of this test.
pub(crate) fn unpacked_ranks(folder: &Path) -> PathBuf {
    let unpacked = scratch("ranks-of-a-job");
    let archive = folder.join("dlrm-8-ranks/dlrm_kineto.tar.gz");
    let tar = Command::new("tar").arg("-xzf").arg(archive).arg("-C").arg(&unpacked).status();
    assert!(tar.unwrap().success());
    unpacked.join("dlrm_kineto")
}

#[test]
fn a_launch_is_under_the_python_code_that_made_it() {
    let Some(folder) = traces() else { return };
    let (_, _, folded) = explained(&folder.join("b200/eager_trace.json.gz"));
    let through_torch = folded.iter().filter(|line| line.contains("torch/nn/modules/module.py")).count();
    assert!(through_torch > 100, "only {through_torch} stacks come through torch's modules");
    let line = folded.iter().find(|line| {
        line.contains("aten::linear;aten::addmm;cudaLaunchKernel")
            || line.contains("aten::linear;aten::mm;cudaLaunchKernel")
            || line.contains(";aten::mm;cu")
    });
    assert!(line.is_some(), "no operator between Python and the call");
}

/// The GPU work that HolisticTraceAnalysis analyses. HolisticTraceAnalysis analyses the work that was launched before
/// the last profiler step, and whose launch is in the trace. If the trace has only one step, HolisticTraceAnalysis
/// analyses all GPU work.
#[derive(Default)]
struct LookedAt {
    timeline: Timeline,
    /// Times at which GPU work ran, for each bit mask of kinds. Work counts if its kind is in the bit mask.
    kinds: [Timeline; 8],
    /// Names of the communication kernels.
    communicate: HashSet<NameId>,
    aggregate: Aggregate,
    /// Four values for each launch: its correlation id, and three times in ns. The three times are the duration of the
    /// call, the duration on the GPU, and the time from the end of the call to the start on the GPU.
    launches: Vec<[u64; 4]>,
}

impl Sink for LookedAt {
    fn activity(&mut self, activity: &Activity, origin: Origin) {
        if let Origin::Launch(launched) = origin {
            let duration = u64::from(launched.duration);
            let (start, end) = (activity.start.0, activity.end.0);
            let delay = start.saturating_sub(launched.time.0 + duration);
            self.launches.push([u64::from(activity.correlation.0), duration, end - start, delay]);
        }
        self.timeline.activity(activity, origin);
        let kind = self.kind(activity);
        let with = self.kinds.iter_mut().enumerate().filter(|(mask, _)| mask & kind != 0);
        with.for_each(|(_, timeline)| timeline.activity(activity, origin));
        self.aggregate.activity(activity, origin);
    }

    fn pending(&mut self, id: CorrelationId, launched: Launched) {
        self.timeline.pending(id, launched);
    }
}

const COMPUTATION: usize = 1;
const COMMUNICATION: usize = 2;
const MEMORY: usize = 4;

impl LookedAt {
    fn kind(&self, activity: &Activity) -> usize {
        match activity.work() {
            Work::Kernel(name) if self.communicate.contains(&name) => COMMUNICATION,
            Work::Kernel(_) => COMPUTATION,
            _ => MEMORY,
        }
    }

    /// Returns the total time in which work of any of the kinds in `kinds` ran.
    fn any_of(&self, kinds: usize) -> u64 {
        let mut profile = Profile::default();
        self.kinds[kinds].fill(&mut profile);
        profile.times().iter().map(|time| time.busy).sum()
    }

    /// Returns the total time in which work of each kind in `kinds` ran at the same time, and no work of any other
    /// kind. The time is computed by inclusion and exclusion: the times of unions with subsets of `kinds` are added and
    /// subtracted in turn.
    fn exactly(&self, kinds: usize) -> u64 {
        let all = COMPUTATION | COMMUNICATION | MEMORY;
        let besides = |others: usize| i128::from(self.any_of(all)) - i128::from(self.any_of(others));
        let within = (0..=all).filter(|some| some & !kinds == 0);
        let signed = within.map(|some| match (kinds & !some).count_ones() % 2 {
            0 => besides(all & !some),
            _ => -besides(all & !some),
        });
        u64::try_from(signed.sum::<i128>()).expect("no time is negative")
    }
}

fn looked_at(path: &Path) -> (Vec<[u64; 4]>, Profile) {
    let (looked_at, profile) = all_looked_at(path);
    (looked_at.launches, profile)
}

fn all_looked_at(path: &Path) -> (LookedAt, Profile) {
    let mut steps = Ops::with_steps();
    import::open(path).unwrap().read_parallel(&Options::default(), &mut steps).unwrap();
    let mut begins: Vec<_> = steps.steps.iter().map(|step| step.start as u64).collect();
    begins.sort_unstable();
    // If a trace has a single step, HolisticTraceAnalysis analyses the whole trace.
    let last = begins.last().copied().filter(|_| begins.len() > 1).unwrap_or(u64::MAX);
    let (mut join, mut looked_at, mut profile) = (Join::default(), LookedAt::default(), Profile::default());
    let mut kept = HashSet::new();
    import::rows(import::open(path).unwrap(), &Options::default(), &mut |row: &Row<'_>| {
        match row {
            Row::Name { id, text } if text.starts_with("nccl") => drop(looked_at.communicate.insert(*id)),
            Row::Launch(launch) if launch.time.0 >= last => return,
            Row::Launch(launch) => drop(kept.insert(launch.correlation)),
            Row::Activity(activity) if last < u64::MAX && !kept.contains(&activity.correlation) => return,
            _ => {}
        }
        join.push(row, &mut looked_at);
        looked_at.timeline.row(row);
        profile.push(row);
    })
    .unwrap();
    join.final_tally(&mut looked_at);
    looked_at.timeline.fill(&mut profile);
    looked_at.aggregate.fill(&mut profile);
    (looked_at, profile)
}

/// Returns each analysed trace, with the folder of its golden tables, its rank, and whether its times have fractions of
/// a microsecond. If times have fractions, HolisticTraceAnalysis rounds all starts and ends to whole microseconds
/// before it subtracts them. Each figure of HolisticTraceAnalysis is then wrong by up to 2 us.
fn analysed(folder: &Path) -> Vec<(PathBuf, PathBuf, u32, bool)> {
    let golden = folder.join("golden-hta");
    let kineto =
        |trace: &str, name: &str, rank, rounded| (folder.join(trace), golden.join(name), rank, rounded);
    let mut all = vec![
        kineto("kineto-2023/control.json.gz", "trace_diff_control", 3, false),
        kineto("kineto-2023/test.json.gz", "trace_diff_test", 1, false),
        kineto("kineto-2024/rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz", "ns_resolution", 0, true),
    ];
    for entry in unpacked_ranks(folder).read_dir().unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        let rank = name.strip_prefix("worker").and_then(|rest| rest.split(['_', '.']).next()).unwrap();
        all.push((path.clone(), golden.join("dlrm8"), rank.parse().unwrap(), false));
    }
    assert_eq!(all.len(), 3 + 8);
    all
}

fn rows_of(table: &Path) -> Vec<BTreeMap<String, String>> {
    let mut table = csv::Reader::from_path(table).unwrap();
    table.deserialize().map(|row| row.unwrap()).collect()
}

/// Converts whole microseconds to nanoseconds.
fn nanos(row: &BTreeMap<String, String>, column: &str) -> u64 {
    (row[column].parse::<f64>().unwrap() * 1000.0) as u64
}

#[test]
fn launch_delays_equal_those_of_holistic_trace_analysis() {
    let Some(folder) = traces() else { return };
    for (trace, golden, rank, rounded) in analysed(&folder) {
        let table = rows_of(&golden.join(format!("launch_rank{rank}.csv")));
        let (launches, _) = looked_at(&trace);
        // The table of HolisticTraceAnalysis omits launches of CUDA graphs, in which many operations have the id of one
        // call.
        let mut calls = BTreeMap::<u64, Vec<[u64; 4]>>::new();
        launches.iter().for_each(|launch| calls.entry(launch[0]).or_default().push(*launch));
        calls.retain(|_, launches| launches.len() == 1);
        assert_eq!(calls.len(), table.len(), "{}", trace.display());
        let mut ours: Vec<_> = calls.values().map(|call| [call[0][1], call[0][2], call[0][3]]).collect();
        let mut theirs: Vec<_> = table
            .iter()
            .map(|row| ["cpu_duration", "gpu_duration", "launch_delay"].map(|column| nanos(row, column)))
            .collect();
        if !rounded {
            // The lists of launches from both tools are sorted, because gpuflame renumbers ids, and several threads
            // launch.
            ours.sort_unstable();
            theirs.sort_unstable();
            assert!(ours == theirs, "{}: other launches", trace.display());
            continue;
        }
        // If there is only one launching thread, both lists are in the order of the calls.
        for (ours, theirs) in ours.iter().zip(&theirs) {
            let is_near = ours.iter().zip(theirs).all(|(ours, theirs)| ours.abs_diff(*theirs) <= 2000);
            assert!(is_near, "{ours:?} {theirs:?}, {}", trace.display());
        }
    }
}

#[test]
fn kernel_copy_and_fill_times_equal_those_of_holistic_trace_analysis() {
    let Some(folder) = traces() else { return };
    for (trace, golden, rank, rounded) in analysed(&folder) {
        let mut theirs = BTreeMap::new();
        for row in rows_of(&golden.join("kernel_breakdown_1.csv")) {
            if row["rank"] == rank.to_string() {
                let [sum, least, most, mean] =
                    ["sum (us)", "min (us)", "max (us)", "mean (us)"].map(|column| nanos(&row, column));
                let count = if mean > 0 { (sum as f64 / mean as f64).round() as u64 } else { 0 };
                // gpuflame's names do not contain the kinds of memory, as `Memcpy HtoD (Pinned -> Device)` does.
                let is_memory = row["kernel_type"] == "MEMORY";
                let name = row["name"].split(" (").next().filter(|_| is_memory).unwrap_or(&row["name"]);
                let all = theirs.entry(name.to_owned()).or_insert([0, u64::MAX, 0, 0]);
                *all = [all[0] + sum, all[1].min(least), all[2].max(most), all[3] + count];
            }
        }
        let (_, profile) = looked_at(&trace);
        let mut found = 0;
        for one in profile.works() {
            let name = match one.work {
                Work::Copy(kind) => format!("Memcpy {}", kind.label()),
                Work::Set => "Memset".into(),
                work => work_name(&profile, work).into_owned(),
            };
            let [sum, least, most, count] =
                *theirs.get(&*name).unwrap_or_else(|| panic!("{}: {name}", trace.display()));
            let wrong = if rounded { 2000 } else { 0 };
            let ours = one.weight;
            assert!(ours.nanos.abs_diff(sum) <= wrong * ours.count, "{name}: {ours:?} {sum}");
            let ends_wrong = one.min.abs_diff(least).max(one.max.abs_diff(most));
            assert!(ends_wrong <= wrong, "{name}: {one:?} {least} {most}");
            // If most durations are truncated to 0, the total duration says nothing about the count.
            assert!(rounded || count == ours.count || sum == 0, "{name}: {ours:?} {count}");
            found += 1;
        }
        assert_eq!(found, theirs.len(), "{}", trace.display());
    }
}

#[test]
fn busy_and_idle_time_equal_those_of_holistic_trace_analysis() {
    let Some(folder) = traces() else { return };
    for (trace, golden, rank, rounded) in analysed(&folder) {
        let table = rows_of(&golden.join("temporal.csv"));
        let row = table.iter().find(|row| row["rank"] == rank.to_string()).unwrap();
        let idle = nanos(row, "idle_time(us)");
        let busy = nanos(row, "compute_time(us)") + nanos(row, "non_compute_time(us)");
        let (launches, profile) = looked_at(&trace);
        let [time] = profile.times() else { panic!("{}: not one GPU", trace.display()) };
        // The tolerance is 0.75 us per GPU operation on average.
        let wrong = if rounded { launches.len() as u64 * 1000 } else { 0 };
        assert!(
            time.busy.abs_diff(busy) <= wrong && time.idle.abs_diff(idle) <= wrong,
            "{}: {time:?} {row:?}",
            trace.display()
        );
        assert!(
            (time.busy + time.idle).abs_diff(busy + idle) <= 1000,
            "{}: {time:?} {row:?}",
            trace.display()
        );
    }
}

#[test]
fn overlap_of_kinds_of_work_equals_that_of_holistic_trace_analysis() {
    let Some(folder) = traces() else { return };
    // For each job: the time in ns for each combination of kinds, summed over all ranks, and the number of operations.
    let mut jobs = BTreeMap::<PathBuf, ([u64; 8], usize)>::new();
    for (trace, golden, rank, rounded) in analysed(&folder) {
        let (found, _) = all_looked_at(&trace);
        let of_rank = |name: &str| {
            let table = rows_of(&golden.join(name));
            table.into_iter().find(|row| row["rank"] == rank.to_string()).unwrap()
        };
        let wrong = if rounded { found.launches.len() as u64 * 1000 } else { 0 };
        let compute = nanos(&of_rank("temporal.csv"), "compute_time(us)");
        assert!(found.any_of(COMPUTATION).abs_diff(compute) <= wrong, "{}", trace.display());
        if let Ok(percent) = of_rank("overlap.csv")["comp_comm_overlap_pctg"].parse::<f64>() {
            let both = found.exactly(COMPUTATION | COMMUNICATION)
                + found.exactly(COMPUTATION | COMMUNICATION | MEMORY);
            let ours = 100.0 * both as f64 / found.any_of(COMMUNICATION) as f64;
            // HolisticTraceAnalysis prints percentages with two decimals.
            assert!((ours - percent).abs() <= 0.0051, "{}: {ours} {percent}", trace.display());
        }
        let (sums, operations) = jobs.entry(golden).or_default();
        (1..8).for_each(|kinds| sums[kinds] += found.exactly(kinds));
        *operations += if rounded { found.launches.len() } else { 0 };
    }
    for (golden, (sums, operations)) in jobs {
        let mut theirs = [0; 8];
        for row in rows_of(&golden.join("kernel_breakdown_0.csv")) {
            let bit = |word: &str| match word {
                "COMPUTATION" => COMPUTATION,
                "COMMUNICATION" => COMMUNICATION,
                "MEMORY" => MEMORY,
                other => panic!("{other}"),
            };
            theirs[row["kernel_type"].split(" overlapping ").map(bit).sum::<usize>()] = nanos(&row, "sum");
        }
        let is_near = |(ours, theirs): (&u64, &u64)| ours.abs_diff(*theirs) <= operations as u64 * 1000;
        assert!(sums.iter().zip(&theirs).all(is_near), "{}: {sums:?} {theirs:?}", golden.display());
    }
}

#[test]
fn exposed_communication_equals_that_of_holistic_trace_analysis() {
    let Some(folder) = traces() else { return };
    // For each job, two sums over all ranks, in nanoseconds: exposed communication, and communication that overlaps
    // computation.
    let mut jobs = BTreeMap::<PathBuf, [u64; 2]>::new();
    for (trace, golden, rank, rounded) in analysed(&folder) {
        if rounded {
            continue;
        }
        let flags = ["--by", "comm", "--comm", "nccl", "--as-hta", "--format", "json"];
        let found = gpuflame(&folder, ["top", trace.to_str().unwrap()].iter().chain(&flags)).ok().stdout;
        let found: Value = serde_json::from_str(&found).unwrap();
        let device = |column: &str| found["comm"][0][column].as_u64().unwrap();
        let temporal = rows_of(&golden.join("temporal.csv"));
        let row = temporal.iter().find(|row| row["rank"] == rank.to_string()).unwrap();
        let compute = nanos(row, "compute_time(us)");
        assert!(device("compute_ns").abs_diff(compute) <= 1000, "{}: {found:#}", trace.display());
        let of_stacks = found["comm_stacks"].as_array().unwrap().iter();
        let of_stacks: u64 = of_stacks.map(|row| row["exposed_ns"].as_u64().unwrap()).sum();
        assert!(of_stacks <= device("exposed_ns"), "the first ten stacks exceed the total");
        let [exposed, hidden] = jobs.entry(golden).or_default();
        *exposed += device("exposed_ns");
        *hidden += device("overlapped_ns");
    }
    assert_eq!(jobs.len(), 3);
    for (golden, ours) in jobs {
        let mut theirs = [0; 2];
        for row in rows_of(&golden.join("kernel_breakdown_0.csv")) {
            let kinds = &row["kernel_type"];
            if kinds.contains("COMMUNICATION") {
                theirs[usize::from(kinds.contains("COMPUTATION"))] += nanos(&row, "sum");
            }
        }
        let is_near = ours.iter().zip(theirs).all(|(ours, theirs)| ours.abs_diff(theirs) <= 1000);
        assert!(is_near, "{}: {ours:?} {theirs:?}", golden.display());
    }
}

#[test]
fn the_backward_pass_of_resnet_is_under_the_model() {
    let Some(folder) = traces() else { return };
    let trace = "kineto-2021/worker0.1623143566756.pt.trace.json.gz";
    let under_autograd = gpuflame(&folder, ["flamegraph", trace]).ok().stdout;
    let ran = gpuflame(&folder, ["flamegraph", trace, "--backward", "forward"]).ok();
    assert!(ran.stderr.contains("100.0 % of the GPU time of backward operators"), "{}", ran.stderr);
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(weights(&lines(&under_autograd)), weights(&lines(&ran.stdout)), "no nanosecond is lost");
    let of = |text: &str, is: fn(&str) -> bool| {
        let lines: Vec<_> = text.lines().filter(|line| is(line)).map(str::to_owned).collect();
        weights(&lines)
    };
    // A script in another language computed the expected value: the GPU time below the operators that name a forward
    // thread.
    let is_hung = |line: &str| line.contains(".py(") && line.contains(";[backward];");
    assert_eq!(of(&ran.stdout, is_hung), BACKWARD_OF_RESNET);
    assert_eq!(of(&under_autograd, |line| line.contains("[backward]")), 0);
}

/// GPU time, in ns, below operators with a `Fwd thread id`.
const BACKWARD_OF_RESNET: u64 = 367_618_000;

#[test]
fn the_error_for_other_files_names_their_format() {
    let Some(folder) = traces() else { return };
    for (name, word) in [
        ("perfetto/gpu_compute_launch.textproto", "Perfetto"),
        ("dlrm-8-ranks/dlrm_kineto.tar.gz", "tar archive"),
        ("golden-hta/ns_resolution/temporal.csv", "not a trace"),
    ] {
        let message = import::open(&folder.join(name)).unwrap_err().to_string();
        assert!(message.contains(name) && message.contains(word), "{message}");
        assert!(!message.contains('\n'));
    }
}

#[test]
fn execution_traces_are_recognised() {
    let Some(folder) = traces() else { return };
    for (name, kind) in
        [("et-pairs/linear_et.json.gz", Kind::ExecutionTrace), ("chakra-et/chakra.0.et", Kind::Chakra)]
    {
        assert_eq!(import::open(&folder.join(name)).unwrap().kind(), kind, "{name}");
    }
}

#[test]
fn real_nsys_exports_are_linked_within_each_process() {
    let Some(folder) = traces() else { return };
    for (name, ops, linked, nanos) in [
        ("nsys/h100_2gpu_1s.sqlite", 3442 + 904 + 22, 1632 + 438 + 22, 44_829_522 + 1_880_842_214 + 29_216),
        ("nsys/mock.sqlite", 3, 3, 4129 + 1632),
    ] {
        assert_eq!(import::open(&folder.join(name)).unwrap().kind(), Kind::Nsys);
        let (found, _, folded) = explained(&folder.join(name));
        assert_eq!((found.ops, found.linked_ops, found.gpu_ns), (ops, linked, nanos), "{name}");
        assert_eq!(weights(&folded), nanos, "{name}");
    }
}

#[test]
fn rocprofs_kernels_have_their_names_and_times() {
    let Some(folder) = traces() else { return };
    let path = folder.join("rocprofv3/908_results.json.gz");
    assert_eq!(import::open(&path).unwrap().kind(), Kind::Rocprof);
    let (found, profile, folded) = explained(&path);
    assert_eq!((found.ops, found.linked_ops, found.gpu_ns), (43_915, 0, 4_441_741_378));
    assert_eq!(weights(&folded), 4_441_741_378);
    assert!(profile.kernels().len() > 10);
    assert!(!folded.iter().any(|line| line.contains("without a name")));
}
