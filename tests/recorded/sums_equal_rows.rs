//! The verbs of gpuflame must show the same numbers from the sums of a run as from its rows. Each program runs only
//! once and records all rows, and the test computes the sums from these rows. If a program ran twice, its two runs
//! would differ in their idle times.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

use gpuflame_explain::symbolize::{SymbolizeOptions, Symbolizer};
use gpuflame_explain::{Explain, FinishedSums, Options, Snapshot};
use gpuflame_model::record::{Detail, Nanos, Reader, Row, WindowEdge, Writer};

use crate::support::command::{Ran, gpuflame};
use crate::support::{Run, Way, compile, gpuflame as library, handmade, plugin, scratch};

/// Computes the sums from a recording with rows. The stacks of all threads are merged, as the recorded process merges
/// them. `outputs_failed` is true if the process could not write its other files, so that `recover` writes them.
fn sums_of(rows: &[u8], outputs_failed: bool) -> Vec<u8> {
    let mut explain = Explain::new(Options { has_squares: true, merge_threads: true, ..Options::default() });
    let mut reader = Reader::new(rows).unwrap();
    while let Some(row) = reader.next_row().unwrap() {
        explain.push(&row, &mut ());
    }
    let Snapshot { profile, ledger } = explain.finish(&[], &mut ());
    let mut symbolizer = Symbolizer::with_rows(SymbolizeOptions::default());
    symbolizer.name(profile);
    let functions = symbolizer.take_rows();
    let (mut file, time) = (Vec::new(), Nanos(1));
    let sums = FinishedSums {
        profile,
        ledger: &ledger,
        functions: &functions,
        are_threads_merged: true,
        outputs_failed,
        time,
    };
    sums.write(&mut file).unwrap();
    file
}

/// Verbs that can read sums, with the flags that make them show all rows of their tables.
const VERBS: [&[&str]; 23] = [
    &["top", "out.gfr"],
    &["top", "out.gfr", "-n", "0", "--by", TOP_OF_SUMS],
    &["top", "out.gfr", "-n", "0", "--by", TOP_OF_SUMS, "--format", "csv"],
    &["top", "out.gfr", "-n", "0", "--by", TOP_OF_SUMS, "--format", "json"],
    &["top", "out.gfr", "-n", "0", "--by", "function", "--self", "--keep-numbers"],
    &["flamegraph", "out.gfr"],
    &["flamegraph", "out.gfr", "--format", "svg", "--title", "x"],
    &["flamegraph", "out.gfr", "--unit", "count", "--graph", "launch", "--all-frames"],
    &["flamegraph", "out.gfr", "--unit", "us", "--graph", "capture", "--root", "process,device"],
    &["flamegraph", "out.gfr", "--python", "only", "--keep-numbers", "--fold", "modules"],
    &["flamegraph", "out.gfr", "--idle"],
    &["flamegraph", "out.gfr", "--idle", "--unit", "count", "--all-frames", "--format", "svg"],
    &["flamegraph", "out.gfr", "--wait"],
    &["flamegraph", "out.gfr", "--alloc"],
    &["flamegraph", "out.gfr", "--view", "unified"],
    &["flamegraph", "out.gfr", "--view", "together"],
    &["convert", "out.gfr", "-o", "run.folded"],
    &["convert", "out.gfr", "-o", "idle.svg", "--view", "idle"],
    &["convert", "out.gfr", "-o", "run.pb.gz"],
    &["convert", "out.gfr", "-o", "run.speedscope.json", "--all-frames"],
    &["info", "out.gfr", "--format", "csv"],
    &["check", "out.gfr", "--format", "csv"],
    &["check", "out.gfr", "--strict", "--format", "json", "-o", "strict.json"],
];
const TOP_OF_SUMS: &str = "kernels,stacks,line,function,idle,delay,copies";
/// Files that the verbs in `VERBS` write and that the test compares. The test compares these files. For `check
/// --strict`, the test compares only the exit code.
const WRITTEN: [&str; 4] = ["run.folded", "idle.svg", "run.pb.gz", "run.speedscope.json"];

/// Verbs that compare two runs.
const VERBS_OF_TWO: [&[&str]; 5] = [
    &["diff", "out.gfr", "other.gfr", "-n", "0", "--format", "json"],
    &["diff", "out.gfr", "other.gfr"],
    &["flamegraph", "--diff", "out.gfr", "other.gfr"],
    &["-q", "merge-ranks", "out.gfr", "other.gfr", "-n", "0", "--format", "csv", "-o", "merged.folded"],
    &[
        "-q",
        "merge-ranks",
        "out.gfr",
        "other.gfr",
        "--unit",
        "count",
        "--graph",
        "launch",
        "-o",
        "merged.svg",
    ],
];

/// Beginnings of those lines of `gpuflame info` that differ between rows and sums. These lines show the kind of the
/// file, and the number of steps without GPU work (unknown for sums).
const LINES_OF_ONE_FILE: [&str; 2] = ["contents,", "steps without GPU work,"];
/// Checks whose result `gpuflame check` prints as unknown if it reads sums. Such checks compare single activities with
/// each other or with steps.
const UNKNOWN_CHECKS: [&str; 9] = [
    "steps without GPU work",
    "overlaps on a stream",
    "impossible durations",
    "overlaps by programmatic launch",
    "slow steps",
    "kernels become slower",
    "communication without overlap",
    "streams wait for each other",
    "the clocks of ranks differ",
];

/// Removes the text that may differ between rows and sums: lines of `info`, and unknown results and costs that `check`
/// prints.
fn comparable(verb: &[&str], (of_sums, of_rows): (&str, &str), text: &str) -> String {
    let unknown_in = |text: &str| -> Vec<String> {
        let unknown = text.lines().filter_map(|line| line.strip_prefix("unknown,"));
        unknown.filter_map(|line| line.split(',').next()).map(str::to_owned).collect()
    };
    let (unknown, of_both) = (unknown_in(of_sums), unknown_in(of_rows));
    if verb[0] == "check" {
        let may_be = |check: &String| UNKNOWN_CHECKS.contains(&&**check) || of_both.contains(check);
        assert!(unknown.iter().all(may_be), "{of_sums}");
    }
    // The costs that `check` prints depend on the number of launch contexts that the recording distinguishes. Therefore
    // the test compares only the checks of records.
    let costs = |text: &str| -> Vec<String> {
        let costs = text.lines().filter_map(|line| line.strip_prefix("cost,"));
        costs.filter_map(|line| line.split(',').next()).map(str::to_owned).collect()
    };
    let costs = [costs(of_sums), costs(of_rows)].concat();
    let is_left_out = |check: &str| unknown.iter().chain(&costs).any(|left_out| left_out == check);
    let is_kept = |line: &&str| match verb[0] {
        "info" => !LINES_OF_ONE_FILE.iter().any(|start| line.starts_with(start)),
        "check" => !line.split(',').nth(1).is_some_and(is_left_out),
        _ => true,
    };
    text.lines().filter(is_kept).collect::<Vec<_>>().join("\n")
}

/// A run that is stored in two folders: as rows in one folder, and as sums in the other. In both folders the recording
/// is named `out.gfr`.
struct Recorded {
    name: String,
    rows: PathBuf,
    sums: PathBuf,
}

/// Compiles each test program once, for use by all tests.
fn compiled(source: &str) -> PathBuf {
    static PROGRAMS: OnceLock<Mutex<BTreeMap<String, Arc<OnceLock<PathBuf>>>>> = OnceLock::new();
    let programs = PROGRAMS.get_or_init(Mutex::default);
    let program = programs.lock().unwrap().entry(source.to_owned()).or_default().clone();
    let flags: &[&str] = match source {
        "window" => &["-O2", "-DLINKED"],
        "generated" | "odd_frames" => &["-O2", "-fomit-frame-pointer"],
        _ => &["-O2"],
    };
    program.get_or_init(|| compile(&format!("tests/programs/{source}.c"), flags)).clone()
}

impl Recorded {
    fn new(source: &str, args: &[&str], variables: &[(&str, &str)]) -> Self {
        let value = |word: &str| match word {
            "LIBRARY" => library(),
            "PLUGIN" => plugin("red"),
            word => word.into(),
        };
        let run = Run::new(&compiled(source), Way::Injected).env("GPUFLAME_FORMATS", "gfr,wait,alloc");
        let run = args.iter().fold(run, |run, word| run.arg(value(word)));
        let done = variables.iter().fold(run, |run, (name, word)| run.env(name, value(word))).done();
        let name = format!("{source} {args:?}");
        // Some test programs exit with code 7 on success.
        assert!(matches!(done.code, Some(0 | 7)), "{name}: {:?}\n{}{}", done.code, done.stdout, done.stderr);
        let rows = fs::read(done.folder.join("out.gfr")).unwrap();
        Self::from_rows(name, &rows)
    }

    fn from_rows(name: String, rows: &[u8]) -> Self {
        let folder = scratch("sums-equal-rows");
        let recorded = Self { name, rows: folder.join("rows"), sums: folder.join("sums") };
        for (folder, bytes) in [(&recorded.rows, rows), (&recorded.sums, &sums_of(rows, false))] {
            fs::create_dir(folder).unwrap();
            fs::write(folder.join("out.gfr"), bytes).unwrap();
        }
        recorded
    }

    fn folders(&self) -> [&Path; 2] {
        [&self.rows, &self.sums]
    }

    /// Runs a verb on the recording with rows and on the recording with sums.
    fn both(&self, verb: &[&str]) -> [Ran; 2] {
        self.folders().map(|folder| gpuflame(folder, verb))
    }

    fn assert_verbs_agree(&self) {
        for verb in VERBS {
            let [of_rows, of_sums] = self.both(verb);
            let about = format!("{}: {verb:?}\n{}{}", self.name, of_rows.stderr, of_sums.stderr);
            assert_eq!((of_sums.code, &of_sums.stderr), (of_rows.code, &of_rows.stderr), "{about}");
            let both = (&*of_sums.stdout, &*of_rows.stdout);
            let [rows, sums] = [&of_rows, &of_sums].map(|ran| comparable(verb, both, &ran.stdout));
            assert_eq!(sums, rows, "{about}");
        }
        self.assert_files_agree(&WRITTEN);
        self.assert_copies_are_complete();
        self.assert_recovered_files_agree();
    }

    fn assert_files_agree(&self, names: &[&str]) {
        for name in names {
            let [rows, sums] = self.folders().map(|folder| fs::read(folder.join(name)).ok());
            assert!(rows == sums, "{}: {name} differs: {}", self.name, self.rows.display());
        }
    }

    /// Asserts that the verbs which compare this run with another run print the same for rows as for sums.
    fn assert_comparisons_agree(&self, other: &Self) {
        let ranks = r#"{"out.gfr": 0, "other.gfr": 1}"#;
        for (folder, from) in self.folders().into_iter().zip(other.folders()) {
            fs::copy(from.join("out.gfr"), folder.join("other.gfr")).unwrap();
            fs::write(folder.join("ranks.json"), ranks).unwrap();
        }
        for verb in VERBS_OF_TWO {
            let [of_rows, of_sums] = self.both(verb);
            let about = format!("{}, {}: {verb:?}", self.name, other.name);
            assert_eq!((of_sums.code, of_sums.stderr), (of_rows.code, of_rows.stderr), "{about}");
            assert_eq!(of_sums.stdout, of_rows.stdout, "{about}");
        }
        self.assert_files_agree(&["merged.folded", "merged.svg"]);
    }

    /// Asserts that `recover` writes the same stack files from sums as from rows. The recorded process was not able to
    /// write these files itself.
    fn assert_recovered_files_agree(&self) {
        let rows = fs::read(self.rows.join("out.gfr")).unwrap();
        fs::copy(self.rows.join("out.gfr"), self.rows.join("left.gfr")).unwrap();
        fs::write(self.sums.join("left.gfr"), sums_of(&rows, true)).unwrap();
        let [of_rows, of_sums] = self.both(&["-q", "recover", "left.gfr"]);
        assert_eq!(of_sums.code, of_rows.code, "{}: {}{}", self.name, of_rows.stderr, of_sums.stderr);
        self.assert_files_agree(&["left.folded", "left.svg", "left.idle.folded", "left.idle.svg"]);
        assert!(self.sums.join("left.folded").exists() == (of_sums.code == 0), "{}", self.name);
    }

    /// Asserts that the sums contain all copies that are in the recording with rows, grouped by direction and kinds of
    /// memory, and that `top --by copies` shows these copies.
    fn assert_copies_are_complete(&self) {
        let mut expected = BTreeMap::<_, [u64; 3]>::new();
        let rows = fs::read(self.rows.join("out.gfr")).unwrap();
        let mut reader = Reader::new(&rows[..]).unwrap();
        while let Some(row) = reader.next_row().unwrap() {
            if let Row::Activity(activity) = row
                && let (Detail::Copy(copy), Some(nanos)) = (activity.detail, activity.duration())
            {
                let [kind, from, to] =
                    [copy.kind.label(), copy.from.label(), copy.to.label()].map(str::to_owned);
                let sum = expected.entry((activity.device.0, kind, from, to)).or_default();
                *sum = [sum[0] + nanos, sum[1] + 1, sum[2] + copy.bytes];
            }
        }
        let copies =
            gpuflame(&self.sums, ["-q", "top", "out.gfr", "-n", "0", "--by", "copies", "--format", "json"]);
        if copies.code == 1 {
            assert!(expected.is_empty(), "{}", copies.stderr);
            return;
        }
        let copies: serde_json::Value = serde_json::from_str(&copies.ok().stdout).unwrap();
        let found = copies["copies"].as_array().unwrap().iter().map(|row| {
            let word = |key: &str| row[key].as_str().unwrap_or("unknown").to_owned();
            let key = (row["device"].as_u64().unwrap() as u32, word("direction"), word("from"), word("to"));
            (key, ["total_ns", "count", "bytes"].map(|column| row[column].as_u64().unwrap_or(0)))
        });
        assert_eq!(found.collect::<BTreeMap<_, _>>(), expected, "{}", self.name);
    }
}

/// The source file of a program, its arguments and its environment variables. In the value of an environment variable,
/// `LIBRARY` stands for the path of the library.
type Case = (&'static str, &'static [&'static str], &'static [(&'static str, &'static str)]);

/// For each run and for its comparison with the next run, asserts that all verbs show the same from rows and from sums.
fn assert_cases_agree(cases: &[Case]) {
    let runs: Vec<_> = cases.iter().map(|(source, args, env)| Recorded::new(source, args, env)).collect();
    runs.iter().for_each(Recorded::assert_verbs_agree);
    runs.windows(2).for_each(|pair| pair[0].assert_comparisons_agree(&pair[1]));
}

const TWO_GPUS: (&str, &str) = ("GPUSIM_NDEV", "2");

#[test]
fn copies_threads_and_unified_memory_have_the_same_numbers_in_sums_as_in_rows() {
    assert_cases_agree(&[
        ("copies", &[], &[TWO_GPUS]),
        ("devices", &[], &[TWO_GPUS]),
        ("roots", &[], &[TWO_GPUS]),
        ("unified", &[], &[TWO_GPUS, ("GPUFLAME_UNIFIED", "1")]),
        ("load", &["--threads", "2", "--launches", "500"], &[]),
        ("threads", &["4", "20"], &[]),
        ("cancelled", &["3"], &[]),
        ("fibers", &["2", "3", "2"], &[]),
        ("bound", &[], &[]),
        ("closes", &["LIBRARY"], &[]),
        ("host", &[], &[("GPUSIM_CLOCK", "real")]),
    ]);
}

#[test]
fn events_ranges_steps_and_windows_have_the_same_numbers_in_sums_as_in_rows() {
    assert_cases_agree(&[
        ("events", &[], &[("GPUFLAME_DEPS", "1")]),
        ("deps", &[], &[("GPUFLAME_DEPS", "1")]),
        ("ranges", &["--steps", "3", "--names", "5"], &[("NVTX_INJECTION64_PATH", "LIBRARY")]),
        ("steps", &["gaps", "5"], &[]),
        ("steps", &["early", "12"], &[]),
        ("stall", &["--steps", "20", "--devices", "2"], &[TWO_GPUS]),
        ("culprits", &["calls", "4"], &[]),
        ("culprits", &["allocation", "4"], &[]),
        ("window", &[], &[("GPUFLAME_ENABLED", "0")]),
        ("timed", &["profiler"], &[("GPUFLAME_ENABLED", "0")]),
        ("timed", &["steps", "12"], &[]),
    ]);
}

#[test]
fn graphs_have_the_same_numbers_in_sums_as_in_rows() {
    let modes = ["captured", "explicitly", "copies", "children", "updated", "update_that_fails", "churn"];
    let runs = modes.map(|mode| Recorded::new("graphs", &[mode, "10"], &[]));
    runs.iter().for_each(Recorded::assert_verbs_agree);
    runs[0].assert_comparisons_agree(&runs[3]);
}

#[test]
fn unusual_stacks_and_names_have_the_same_numbers_in_sums_as_in_rows() {
    assert_cases_agree(&[
        ("stacks", &["2", "2", "2", "2", "1"], &[]),
        ("flood", &["stacks", "200", "40"], &[]),
        ("flood", &["kernels", "50"], &[]),
        ("named", &["more"], &[("NVTX_INJECTION64_PATH", "LIBRARY")]),
        ("registered", &["1"], &[]),
        ("odd", &["plain"], &[]),
        ("plugins", &["PLUGIN"], &[]),
        #[cfg(target_arch = "x86_64")]
        ("generated", &["map"], &[]),
        #[cfg(target_arch = "x86_64")]
        ("odd_frames", &["number"], &[]),
    ]);
}

#[test]
fn faults_of_the_tracer_have_the_same_numbers_in_sums_as_in_rows() {
    const TIMES: &str = "zero_ts:every=7,reversed:every=11,early_start:every=13,endless:every=40";
    const IDS: &str = "unmatched_corr:every=7,dup_corr:every=11,device_graph:every=13,unknown_kind:every=17";
    assert_cases_agree(&[
        ("odd", &["plain", "300"], &[("GPUSIM_FAULTS", TIMES)]),
        ("load", &["--threads", "2", "--launches", "2000"], &[("GPUSIM_FAULTS", TIMES)]),
        ("graphs", &["captured", "10"], &[("GPUSIM_FAULTS", TIMES), ("GPUSIM_SHUFFLE", "3")]),
        ("odd", &["plain", "300"], &[("GPUSIM_FAULTS", IDS)]),
        ("odd", &["plain", "300"], &[("GPUSIM_FAULTS", "launch_fail,name_null,name_bad_utf8")]),
        ("load", &["--threads", "2", "--launches", "20000"], &[("GPUSIM_MAX_BUFFERS", "1")]),
        ("steps", &["calls", "20"], &[("GPUSIM_FAULTS", "unmatched_corr:every=5")]),
    ]);
}

#[test]
fn a_step_without_gpu_work_of_its_launches_withholds_idle_time_in_sums_as_in_rows() {
    let complete = Recorded::new("steps", &["calls", "20"], &[]);
    let bytes = fs::read(complete.rows.join("out.gfr")).unwrap();
    let (mut reader, mut writer) = (Reader::new(&bytes[..]).unwrap(), Writer::new(Vec::new()).unwrap());
    let mut activities = 0;
    while let Some(row) = reader.next_row().unwrap() {
        activities += u32::from(matches!(row, Row::Activity(_)));
        // The test removes one activity. Therefore one of all 43 launches has no activity; this launch is one of the 2
        // launches in its step.
        if !matches!(row, Row::Activity(_)) || activities != 25 {
            writer.row(&row).unwrap();
        }
    }
    let run = Recorded::from_rows("a step without work".to_owned(), &writer.finish().unwrap());
    run.assert_verbs_agree();
    for folder in run.folders() {
        let idle = gpuflame(folder, ["top", "out.gfr", "--by", "idle"]);
        let text = format!("{}{}", idle.stdout, idle.stderr);
        let reason = "1 of 43 launches have no activity; in 1 of 20 steps";
        assert!(text.contains(reason), "{text}");
    }
}

/// Returns the hand-made recording with several windows: the window is briefly closed at each of the times `pauses`, in
/// us.
fn with_closed_windows(pauses: &[u64]) -> Vec<u8> {
    let (bytes, mut writer) = (handmade::bytes(), Writer::new(Vec::new()).unwrap());
    let mut reader = Reader::new(&bytes[..]).unwrap();
    while let Some(row) = reader.next_row().unwrap() {
        if let Row::Window { edge: WindowEdge::Close, .. } = row {
            for pause in pauses {
                for (edge, nanos) in
                    [(WindowEdge::Close, pause * 1000), (WindowEdge::Open, pause * 1000 + 500)]
                {
                    let time = Nanos(handmade::BASE + nanos);
                    writer.row(&Row::Window { edge, time }).unwrap();
                }
            }
        }
        writer.row(&row).unwrap();
    }
    writer.finish().unwrap()
}

#[test]
fn several_windows_have_the_same_numbers_in_sums_as_in_rows() {
    let [two, three] = [&[76][..], &[72, 78]].map(|pauses| {
        let recorded = Recorded::from_rows(format!("windows {pauses:?}"), &with_closed_windows(pauses));
        recorded.assert_verbs_agree();
        recorded
    });
    two.assert_comparisons_agree(&three);
    // If a run has no steps, its windows count as steps. The first of the two runs has 2 windows, and the second run
    // has 3.
    let diff = gpuflame(&two.sums, ["diff", "out.gfr", "other.gfr", "--format", "json"]).ok().stdout;
    assert!(diff.contains("busy of a step"), "{diff}");
    let ranks = ["-q", "merge-ranks", "out.gfr", "other.gfr", "--format", "json"];
    let ranks: serde_json::Value = serde_json::from_str(&gpuflame(&two.sums, ranks).ok().stdout).unwrap();
    assert_eq!([&ranks["ranks"][0]["steps"], &ranks["ranks"][1]["steps"]], [2, 3]);
}

/// Command lines of verbs that work only if the recording has single activities.
const VERBS_OF_ROWS: [&[&str]; 22] = [
    &["view", "out.gfr"],
    &["view", "out.gfr", "--stats"],
    &["view", "out.gfr", "--timeline"],
    &["top", "out.gfr", "--by", "comm"],
    &["top", "out.gfr", "--by", "kernels,comm", "--format", "json"],
    &["top", "out.gfr", "--by", "kernels,slack"],
    &["flamegraph", "out.gfr", "--root", "stream"],
    &["flamegraph", "out.gfr", "--root", "process,thread"],
    &["flamegraph", "--diff", "out.gfr", "out.gfr", "--root", "thread"],
    &["convert", "out.gfr", "--to", "extended-folded", "-o", "x"],
    &["convert", "out.gfr", "--to", "csv", "-o", "x"],
    &["convert", "out.gfr", "--to", "chrome", "-o", "x"],
    &["convert", "out.gfr", "--to", "perfetto", "-o", "x"],
    &["convert", "out.gfr", "--to", "perfetto", "--critical-path", "-o", "x"],
    &["convert", "out.gfr", "--to", "parquet", "-o", "folder"],
    &["convert", "out.gfr", "--to", "parquet", "-o", "x.parquet"],
    &["convert", "out.gfr", "--to", "arrow", "-o", "x"],
    &["convert", "out.gfr", "--to", "sbt", "-o", "x"],
    &["convert", "out.gfr", "--to", "cupti-text", "-o", "x"],
    &["stats", "out.gfr", "x", "none", "1000"],
    &["extract", "out.gfr", "-o", "x"],
    &["decode-steps", "vllm", "out.gfr", "-o", "x"],
];

#[test]
fn verbs_that_need_single_activities_name_the_command_that_records_them() {
    let recorded = Recorded::from_rows("hand-made".to_owned(), &handmade::bytes());
    for verb in VERBS_OF_ROWS {
        let ran = gpuflame(&recorded.sums, verb);
        ran.fails(1, &["out.gfr: has the sums of the run", "`gpuflame run --rows PROGRAM`"]);
        assert_eq!(ran.stdout, "", "{verb:?}");
        assert!(!recorded.sums.join("x").exists(), "{verb:?}");
        // The verbs `decode-steps` and `stats` need decoding steps, which only a trace of an inference server contains.
        if !matches!(verb[0], "decode-steps" | "stats") {
            let of_rows = gpuflame(&recorded.rows, verb);
            assert_eq!(of_rows.code, 0, "{verb:?}: {}", of_rows.stderr);
        }
    }
}

#[test]
fn ranks_with_sums_name_the_collectives_that_they_cannot_compare() {
    let (bytes, mut writer) = (handmade::bytes(), Writer::new(Vec::new()).unwrap());
    let mut reader = Reader::new(&bytes[..]).unwrap();
    while let Some(row) = reader.next_row().unwrap() {
        let row = match row {
            Row::Name { id, text: "add" } => Row::Name { id, text: "ncclDevKernel_AllReduce_Sum" },
            row => row,
        };
        writer.row(&row).unwrap();
    }
    let rank = Recorded::from_rows("rank".to_owned(), &writer.finish().unwrap());
    for folder in rank.folders() {
        fs::copy(folder.join("out.gfr"), folder.join("rank1.gfr")).unwrap();
    }
    let merge = ["-q", "merge-ranks", "--assume-order", "out.gfr", "rank1.gfr", "--format", "json"];
    let [of_rows, mut of_sums] =
        rank.both(&merge).map(|ran| -> serde_json::Value { serde_json::from_str(&ran.ok().stdout).unwrap() });
    assert_eq!(of_rows["ranks"][0]["communication_ns"], 5000);
    let withheld = of_sums["last_to_collectives"].take();
    assert_eq!(withheld.as_array().unwrap().len(), 1);
    assert_eq!((&withheld[0]["ranks"], &withheld[0]["last"]), (&2.into(), &serde_json::Value::Null));
    assert_eq!(withheld[0]["collective"], "ncclDevKernel_AllReduce_Sum");
    let reason = withheld[0]["unknown_because"].as_str().unwrap();
    assert!(reason.contains("`gpuflame run --rows PROGRAM`"), "{reason}");
    of_sums["last_to_collectives"] = of_rows["last_to_collectives"].clone();
    assert_eq!(of_sums, of_rows);
}
