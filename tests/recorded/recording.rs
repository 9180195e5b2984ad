//! Tests the two outputs whose size grows with the run. The table of activities has a row for each activity. If the
//! rows of the recording are read and joined again, this gives the same bytes as the other files contain.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::BufReader;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::support::command::gpuflame as command;
use crate::support::{Done, Run, Way, compile, handmade, scratch};
use gpuflame_explain::symbolize::{SymbolizeOptions, Symbolizer};
use gpuflame_explain::{self as explain, Explain, Ledger, Snapshot};
use gpuflame_export::{self as export, FOLDED, Options, SVG};
use gpuflame_model::profile::Profile;
use gpuflame_model::profile::views::GPU;
use gpuflame_model::record::{
    Activity, ContextId, CorrelationId, GraphId, GraphNodeId, Launch, Loss, Nanos, Reader, Row, WindowEdge,
    Writer,
};
use gpuflame_offline::run::{self, ReadOptions};

fn record(program: &str, args: &[&str], variables: &[(&str, &str)]) -> Done {
    let program = compile(program, &["-O2"]);
    let run = Run::new(&program, Way::Injected).args(args.iter().copied());
    let run = run.env("GPUFLAME_FORMATS", "folded,svg,csv,activities,gfr");
    variables.iter().fold(run, |run, (name, value)| run.env(name, value)).done()
}

/// Computes the profile in a process that is not the recorded one, from the recording and the files that it names.
fn explain(done: &Done) -> (Profile, Ledger) {
    let mut reader = Reader::new(BufReader::new(File::open(done.folder.join("out.gfr")).unwrap())).unwrap();
    let mut explain = Explain::new(explain::Options::default());
    while let Some(row) = reader.next_row().unwrap() {
        explain.push(&row, &mut ());
    }
    assert_eq!(reader.skipped(), 0);
    let Snapshot { profile, ledger } = explain.snapshot(&[], &mut ());
    Symbolizer::new(SymbolizeOptions::default()).name(profile);
    (profile.clone(), ledger)
}

fn assert_explained_alike(done: &Done) {
    let (profile, ledger) = explain(done);
    let (mut folded, mut svg, mut csv) = (Vec::new(), Vec::new(), Vec::new());
    FOLDED.draw(&profile, &GPU, &Options::default(), &mut folded).unwrap();
    SVG.draw(&profile, &GPU, &Options::default(), &mut svg).unwrap();
    export::write_csv(&profile, &mut csv).unwrap();
    assert_eq!(String::from_utf8(folded).unwrap(), done.file("out.folded"));
    assert_eq!(String::from_utf8(csv).unwrap(), done.file("out.csv"));
    assert_eq!(String::from_utf8(svg).unwrap(), done.file("out.svg"));
    for sum in ledger.sums() {
        assert!(sum.holds(), "{sum}");
    }
    for sum in [ledger.launches(), ledger.activities(), ledger.graph_activities()] {
        let (total, parts) = done.sum(&sum.what);
        assert_eq!(sum.total, total);
        assert_eq!(
            sum.parts.iter().map(|(word, part)| ((*word).to_owned(), *part)).collect::<BTreeMap<_, _>>(),
            parts
        );
    }
}

/// Returns the rows of the table of activities. Each row maps column names to cells.
fn activities(done: &Done) -> Vec<BTreeMap<String, String>> {
    rows(done, "out.activities.csv")
}

fn rows(done: &Done, table: &str) -> Vec<BTreeMap<String, String>> {
    let text = done.file(table);
    csv::Reader::from_reader(text.as_bytes()).deserialize().map(|row| row.unwrap()).collect()
}

#[test]
fn a_recording_gives_the_same_results_as_the_live_session() {
    for ids in ["shared", "distinct"] {
        let args = ["--threads", "3", "--launches", "6000"];
        let done = record("tests/programs/load.c", &args, &[("GPUSIM_CORR", ids), ("GPUSIM_SHUFFLE", "5")]);
        assert_eq!(done.code, Some(0), "{}", done.stderr);
        done.assert_exact();
        assert_explained_alike(&done);
    }
}

#[test]
fn a_recording_of_graphs_keeps_the_stacks_that_created_their_nodes() {
    for mode in ["copies", "children", "updated"] {
        let done = record("tests/programs/graphs.c", &[mode, "20"], &[]);
        assert_eq!(done.code, Some(0), "{}", done.stderr);
        assert!(done.file("out.folded").contains(";[graph];capture;"), "{}", done.file("out.folded"));
        assert_explained_alike(&done);
        let rows = activities(&done);
        assert!(rows.len() > 100);
        assert!(
            rows.iter().all(|row| row["graph_node"] != "0" && !row["created_stack"].is_empty()),
            "{mode}"
        );
    }
}

#[test]
fn a_recording_with_faulty_records_gives_the_same_results_as_the_session() {
    let faults = "zero_ts:every=7,unknown_kind:every=17,unmatched_corr:every=20,dup_corr:every=19,\
                  name_null:every=23,launch_fail:every=9,name_4k:every=31,name_bad_utf8:every=29";
    let done = record("tests/programs/odd.c", &["plain"], &[("GPUSIM_FAULTS", faults)]);
    assert_eq!(done.code, Some(7), "{}", done.stderr);
    assert_explained_alike(&done);
}

#[test]
fn the_table_has_a_row_for_each_activity_with_its_times_and_ids() {
    let details = [("GPUSIM_TRUTH", "detail.json,summary:truth.json")];
    let done = record("tests/programs/load.c", &["--threads", "2", "--launches", "2000"], &details);
    let mut rows: Vec<_> = activities(&done)
        .into_iter()
        .map(|row| {
            let number = |field: &str| row[field].parse::<u64>().unwrap();
            assert_eq!(number("duration_ns"), number("end_ns") - number("start_ns"));
            assert_eq!(row["reason"], "");
            assert_eq!(row["channel"], row["stream"], "the simulated GPU uses one channel per stream");
            let numbers = ["correlation", "device", "context", "stream", "bytes", "start_ns", "end_ns"];
            (numbers.map(number), row["kind"].clone(), row["name"].clone())
        })
        .collect();
    let mut truth: Vec<_> = done
        .file("detail.json")
        .lines()
        .map(|line| {
            let row: serde_json::Value = serde_json::from_str(line).unwrap();
            let (kind, name) = match row["kind"].as_str().unwrap() {
                "kernel" => ("kernel", row["name"].as_str().unwrap()),
                "memset" => ("set", "memset"),
                _ => ("copy", row["copy"].as_str().unwrap()),
            };
            let numbers = ["corr", "device", "context", "stream", "bytes", "start", "end"];
            (numbers.map(|field| row[field].as_u64().unwrap()), kind.to_owned(), name.to_owned())
        })
        .collect();
    rows.sort();
    truth.sort();
    assert!(truth.len() > 2000);
    assert_eq!(rows, truth);
}

#[test]
fn stack_ids_in_the_table_match_the_true_call_sites() {
    let details = [("GPUSIM_TRUTH", "detail.json,summary:truth.json")];
    let done = record("tests/programs/load.c", &["--threads", "3", "--launches", "2000"], &details);
    let stacks: BTreeMap<_, _> =
        rows(&done, "out.stacks.csv").into_iter().map(|row| (row["stack"].clone(), row)).collect();
    let sites: BTreeMap<u64, String> = done
        .file("detail.json")
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .map(|row| (row["corr"].as_u64().unwrap(), row["site"].as_str().unwrap().to_owned()))
        .collect();
    let mut counts = BTreeMap::<_, u64>::new();
    for row in activities(&done) {
        let stack = &stacks[&row["stack"]];
        let (site, call) = stack["frames"].rsplit_once(';').unwrap();
        assert_eq!((site, call), (&*sites[&row["correlation"].parse().unwrap()], &*stack["call"]));
        *counts.entry(row["stack"].clone()).or_default() += 1;
    }
    let told = stacks.into_iter().map(|(id, row)| (id, row["activities"].parse().unwrap()));
    assert_eq!(counts, told.collect());
}

#[test]
fn launch_times_match_the_true_calls_within_50_us() {
    // The run takes 0.3 s. During this time, the collector repeatedly updates the clock that callbacks read.
    let load = ["--threads", "2", "--launches", "150000"];
    let variables = [("GPUSIM_TRUTH", "detail.json,summary:truth.json"), ("GPUSIM_LAUNCH_NS", "4000")];
    let done = record("tests/programs/load.c", &load, &variables);
    let mut threads: BTreeMap<u64, Vec<(u64, u64)>> = BTreeMap::new();
    for line in done.file("detail.json").lines() {
        let row: serde_json::Value = serde_json::from_str(line).unwrap();
        let number = |field: &str| row[field].as_u64().unwrap();
        threads.entry(number("tid")).or_default().push((number("enter"), number("corr")));
    }
    let launches: BTreeMap<u64, [u64; 2]> = activities(&done)
        .into_iter()
        .map(|row| {
            let number = |field: &str| row[field].parse::<u64>().unwrap();
            let begun = number("launch_ns");
            (number("correlation"), [begun, begun + number("launch_duration_ns")])
        })
        .collect();
    // Maximum error, in ns, of the clock that callbacks read. Only the collector updates the clock that callbacks read.
    // Therefore this clock is wrong if Linux adjusts the system clock between two updates by the collector.
    const OFF: u64 = 50_000;
    let mut compared = 0;
    for calls in threads.values_mut() {
        calls.sort_unstable();
        for (call, next) in calls.iter().zip(&calls[1..]) {
            let [begun, ended] = launches[&call.1];
            assert!(call.0 <= begun + OFF, "{begun} is before its call began, {}", call.0);
            assert!(ended <= next.0 + OFF, "{ended} is after the next call began, {}", next.0);
            compared += 1;
        }
    }
    assert!(compared > 150_000, "{compared}");
}

#[test]
fn the_table_gives_the_reason_for_a_missing_time() {
    let faults = "zero_ts:every=11,unmatched_corr:every=20,enable:2=35";
    let done = record("tests/programs/odd.c", &["plain"], &[("GPUSIM_FAULTS", faults)]);
    let mut reasons: BTreeMap<_, u64> = BTreeMap::new();
    for row in activities(&done) {
        *reasons.entry((row["kind"].clone(), row["reason"].clone())).or_default() += 1;
    }
    let truth = done.truth();
    assert!(truth.fault("unmatched_corr") > 0);
    let untimed = truth.fault("zero_ts");
    let key = |kind: &str, reason: &str| (kind.to_owned(), reason.to_owned());
    let count = |kind, reason| reasons.get(&key(kind, reason)).copied().unwrap_or(0);
    assert_eq!(count("kernel", "timestamp_not_collected"), untimed, "{reasons:?}");
    assert_eq!(count("kernel", ""), 100 - untimed, "{reasons:?}");
    // The list contains neither the ten launches that have no activity nor the activities that have an impossible id.
    assert_eq!(reasons.values().sum::<u64>(), 100, "{reasons:?}");
}

/// Returns the provenance fields of the profile, keyed by name, without the fields about GPUs.
fn provenance(done: &Done) -> BTreeMap<&'static str, String> {
    let (profile, _) = explain(done);
    profile.provenance().map(|(what, text)| (what.word(), text.to_owned())).collect()
}

#[test]
fn a_recording_has_its_provenance_and_the_command_line_only_on_request() {
    let since = SystemTime::now();
    let args = ["--launches", "100"];
    let done = record("tests/programs/load.c", &args, &[("RANK", "3")]);
    let said = provenance(&done);
    let words: Vec<_> = said.keys().copied().filter(|word| *word != "gpu").collect();
    assert_eq!(words, ["cupti", "driver", "gpuflame", "host", "rank", "start"]);
    assert_eq!((&*said["rank"], &*said["gpuflame"]), ("3", env!("CARGO_PKG_VERSION")));
    assert_eq!(said["host"], fs::read_to_string("/proc/sys/kernel/hostname").unwrap().trim());
    // GNU date converts the printed start of the run to a Unix time, independently of gpuflame.
    let began = Command::new("date").args(["-d", &said["start"], "+%s"]).output().unwrap().stdout;
    let began: u64 = String::from_utf8(began).unwrap().trim().parse().unwrap();
    let since = since.duration_since(UNIX_EPOCH).unwrap().as_secs();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    assert!((since..=now).contains(&began), "{since} <= {began} <= {now}");
    assert!(said["cupti"].contains("libcupti.so"), "{said:?}");
    let done = record("tests/programs/load.c", &args, &[("GPUFLAME_COMMAND_LINE", "1")]);
    let said = provenance(&done);
    assert!(said["command line"].ends_with(" --launches 100"), "{said:?}");
}

/// Two files of format 1, recorded in November 2026: a run of `stacks 3 1 1 0 1` with single activities, and the
/// checkpoint of `ending left abort`. The expected content of these files was counted by hand from the sources of the
/// programs.
#[test]
fn recordings_of_format_1_stay_readable() {
    for (name, has_rows, launches, stacks) in [("rows", true, 60, 6), ("sums", false, 1100, 2)] {
        let path = crate::support::root().join(format!("tests/recorded/format-1/{name}.gfr"));
        let run = run::read(&path, &ReadOptions::default()).unwrap();
        let tally = &run.ledger().tally;
        assert_eq!((tally.launches.matched, tally.activities.matched), (launches, launches), "{name}");
        let mut folded = Vec::new();
        FOLDED.draw(run.profile(), &GPU, &Options::default(), &mut folded).unwrap();
        let folded = String::from_utf8(folded).unwrap();
        let lines = folded.lines().filter(|line| !line.starts_with('#'));
        let weights: Vec<u64> = lines.map(|line| line.rsplit_once(' ').unwrap().1.parse().unwrap()).collect();
        assert_eq!((weights.len(), weights.iter().sum::<u64>()), (stacks, 1000 * launches), "{folded}");
        assert!(folded.contains(";cudaLaunchKernel;[GPU_Kernel]step_d1000 "), "{folded}");
        let mut reader = Reader::new(BufReader::new(File::open(&path).unwrap())).unwrap();
        let mut rows = 0;
        while let Some(row) = reader.next_row().unwrap() {
            rows += u64::from(matches!(row, gpuflame_model::record::Row::Activity(_)));
        }
        assert_eq!((reader.skipped(), rows), (0, if has_rows { launches } else { 0 }), "{name}");
    }
}

/// The program `load` launches about 6,000 kernels. In packed form, the rows of a launch and its activity take 5 to 16
/// bytes together.
#[test]
fn a_recording_stays_within_its_limit_and_counts_the_rows_left_out() {
    let args = ["--threads", "3", "--launches", "6000"];
    let done = record("tests/programs/load.c", &args, &[("GPUFLAME_MAX_FILE", "40K")]);
    // The limit on the size concerns only the recording. The output files other than the recording are complete.
    done.assert_exact();
    let size = fs::metadata(done.folder.join("out.gfr")).unwrap().len();
    // The recording is a little larger than its limit, because each pack of rows is written completely, and the ledger
    // and the thread names follow.
    assert!((40 << 10..60 << 10).contains(&size), "{size}");
    let mut reader = Reader::new(BufReader::new(File::open(done.folder.join("out.gfr")).unwrap())).unwrap();
    let (mut work, mut left_out) = (0, 0);
    while let Some(row) = reader.next_row().unwrap() {
        match row {
            Row::Launch(_) | Row::Activity(_) => work += 1,
            Row::Loss { loss: Loss::RowsOverLimit, count } => left_out += count,
            _ => {}
        }
    }
    assert!(reader.is_complete());
    // Once the limit is reached, definitions are left out as well.
    let (seen, _) = done.sum("activities");
    assert!(work > 2_000 && (2 * seen - work..2 * seen).contains(&left_out), "{work} {left_out} {seen}");
    let note = format!("{left_out} rows were left out, because the recording reached GPUFLAME_MAX_FILE");
    assert!(done.stderr.contains(&note), "{}", done.stderr);
    // The command `gpuflame info` reports that the recording is incomplete.
    let info = command(&done.folder, ["info", "out.gfr", "--format", "csv"]).ok().stdout;
    assert!(info.contains(&format!("rows_over_limit,{left_out}\n")), "{info}");
}

/// gpuflame must check an id that it reads from a file before it uses the id as an index. Activities with an impossible
/// id have no stack, but all sums include them.
#[test]
fn out_of_range_context_ids_count_but_have_no_stack() {
    for id in [0, 1, 6, 0x7fff_fff0, 0x7fff_ffff, 0x8000_0000, 0x8000_0002, u32::MAX] {
        let mut writer = Writer::new(Vec::new()).unwrap();
        let mut row = |row: Row<'_>| writer.row(&row).unwrap();
        row(Row::Window { edge: WindowEdge::Open, time: Nanos(handmade::BASE) });
        for correlation in [1, 2] {
            let (correlation, time) = (CorrelationId(correlation), Nanos(handmade::BASE + 10));
            let within = correlation;
            row(Row::Launch(Launch { time, duration: 3, correlation, within, context: ContextId(id) }));
        }
        row(Row::GraphNode { graph: GraphId(id), node: GraphNodeId(7), context: ContextId(id) });
        let at = |nanos| Nanos(handmade::BASE + nanos);
        let one = handmade::activity(1, (id, id), at(100), at(400), handmade::kernel(id));
        row(Row::Activity(one));
        let node = handmade::activity(2, (0, 7), at(500), at(700), handmade::kernel(1));
        row(Row::Activity(Activity { graph: GraphId(id), graph_node: GraphNodeId(7), ..node }));
        row(Row::Window { edge: WindowEdge::Close, time: at(1000) });
        let folder = scratch("ids");
        fs::write(folder.join("in.gfr"), writer.finish().unwrap()).unwrap();
        for verb in ["info", "flamegraph --idle -o out.idle.folded", "convert --to chrome -o out.json"] {
            let words = verb.split(' ');
            command(&folder, words.clone().take(1).chain(["in.gfr"]).chain(words.skip(1))).ok();
        }
        let done = Done::from_folder(&folder);
        command(&folder, ["flamegraph", "in.gfr", "-o", "out.folded"]).ok();
        let nanos: u64 = done.folded().iter().map(|(_, nanos)| nanos).sum();
        assert_eq!(nanos, if id == 1 { OUTSIDE_IS_NOT_SHOWN } else { 500 }, "{id:#x}: {:?}", done.folded());
    }
}

/// Context id of launches that the program made while no window was open.
const OUTSIDE_IS_NOT_SHOWN: u64 = 0;
