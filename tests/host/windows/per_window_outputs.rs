//! Tests the output files that gpuflame writes for each recording window. Each window has a set of files with the
//! launches made in that window. gpuflame writes each set while the process still runs. All sets together contain the
//! launches of all windows.

use std::fs::{self, File};
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use gpuflame_model::record::{Reader, Row};
use serde_json::Value;

use crate::exits::checkpoint::in_trouble;
use crate::running::Running;
use crate::support::{Done, Run, Way, compile};
use crate::windows::scheduled_windows::{recorded_launches, truth};

fn program() -> &'static PathBuf {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| compile("tests/programs/apart.c", &["-O2"]))
}

fn run(program: &Path, args: &[&str], settings: &[(&str, &str)]) -> Running {
    let run = Run::new(program, Way::Injected).args(args.iter().copied());
    let run = run.env("GPUFLAME_OUTPUT", "out.%w").env("GPUFLAME_FORMATS", "folded,csv,gfr");
    let run = run.env("GPUSIM_TRUTH", "truth.jsonl,summary:truth.json");
    Running::of(settings.iter().fold(run, |run, (name, value)| run.env(name, value)))
}

/// Returns the GPU time in ns of all stacks in the folded file of a window, or `None` if the file does not exist.
fn nanos(folder: &Path, window: &str) -> Option<u64> {
    let text = fs::read_to_string(folder.join(format!("out.{window}.folded"))).ok()?;
    Some(text.lines().map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum())
}

fn wait_for_files(running: &mut Running, last: usize) {
    running.wait_for(|running| {
        let missing = (1..=last).find(|window| nanos(&running.folder, &window.to_string()).is_none());
        (missing.is_none(), format!("window {missing:?} has no file"))
    });
}

fn ended(running: Running) -> Done {
    running.tell("stop");
    let done = running.ended();
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    done
}

/// Returns the GPU time, in ns, of the kernels that the program launches in a window and of the window's graph launch.
fn expected(window: usize) -> u64 {
    (window as u64 + 3) * 20_000
}

#[test]
fn each_window_gets_its_own_files_while_the_process_runs() {
    let settings = [("GPUFLAME_ENABLED", "0")];
    let mut running = run(program(), &["20"], &settings);
    wait_for_files(&mut running, 20);
    let found: Vec<_> = (1..=20).map(|window| nanos(&running.folder, &window.to_string()).unwrap()).collect();
    let done = ended(running);
    assert_eq!(found, (1..=20).map(expected).collect::<Vec<_>>(), "{}", done.stderr);
    for window in 1..=20 {
        let folded = done.folded_file(&format!("out.{window}.folded"));
        let leaf =
            |name: &str| folded.iter().filter(|(frames, _)| frames.iter().any(|frame| frame == name)).count();
        assert_eq!([leaf("replay"), leaf("launch"), folded.len()], [1, 2, 2], "{folded:?}");
        let table = done.file(&format!("out.{window}.csv"));
        assert!(table.contains(&format!(",{},", window + 3)), "{table}");
    }
    assert!(done.stderr.contains("windows 20, late: 0 launches, 0 activities"), "{}", done.stderr);
    assert!(done.stderr.contains("wrote 20 windows in 40 files: "), "{}", done.stderr);
    let matched = done.sum("launches").1["matched"];
    assert_eq!(matched, (1..=20).sum::<u64>() + 20, "{}", done.stderr);
    let set: Value = serde_json::from_str(&done.file("out.7.set.json")).unwrap();
    assert_eq!((set["window"].as_u64(), set["launches"].as_u64()), (Some(7), Some(8)), "{set}");
    assert_eq!(set["files"], serde_json::json!(["out.7.folded", "out.7.csv"]));
    let edges = set["windows"][0].as_array().unwrap();
    assert!(edges[0].as_u64() < edges[1].as_u64(), "{set}");
    // The run has one recording for all windows, not one recording per window.
    assert!(done.folder.join("out.all.gfr").exists());
}

/// Returns the numbers that the program printed before the text `word`.
fn numbers(done: &Done, word: &str) -> Vec<f64> {
    let word = format!(" {word}");
    let before = done.stdout.lines().filter_map(|line| line.split_once(&word));
    before.filter_map(|(before, _)| before.rsplit(' ').next()?.parse().ok()).collect()
}

const DRAWN_APART: [(&str, &str); 2] = [("GPUFLAME_ENABLED", "0"), ("GPUFLAME_FORMATS", "folded")];

#[test]
fn a_thousand_windows_are_exact_and_hold_no_extra_descriptors_or_memory() {
    let mut running = run(program(), &["1000", "60"], &DRAWN_APART);
    wait_for_files(&mut running, 999);
    let done = ended(running);
    for window in 1..=1000 {
        assert_eq!(
            nanos(&done.folder, &window.to_string()),
            Some(60 * 300),
            "window {window}\n{}",
            done.stderr
        );
    }
    let (launches, parts) = done.sum("launches");
    assert_eq!((launches, parts["matched"], parts["dropped"]), (90_000, 60_000, 0), "{}", done.stderr);
    assert!(done.stderr.contains("windows 1000, late: 0 launches, 0 activities"), "{}", done.stderr);
    // While a file is being written, one or two more descriptors may be open. If every window left a descriptor open,
    // there would be a thousand more descriptors.
    let descriptors = numbers(&done, "descriptors");
    assert!(descriptors.len() == 2 && descriptors[1] < descriptors[0] + 8.0, "{}", done.stdout);
    // For comparison, another run makes the same launches in one window. A difference in memory of 8 MiB would be 8 KiB
    // for each of the 1,000 windows.
    let one = run(program(), &["one", "1000", "60"], &DRAWN_APART).ended();
    let (resident, beside) = (numbers(&done, "KiB")[1], numbers(&one, "KiB")[1]);
    assert!(resident < beside + 8192.0, "{resident} KiB, in one window {beside} KiB");
    // When the files of all windows are written, gpuflame's memory does not depend on how many windows had waited to be
    // written.
    let held = |done: &Done| -> f64 {
        let cost = done.ledger("own cost:")[0];
        cost.split(", ").find_map(|part| part.strip_suffix(" MiB held")).expect(cost).parse().unwrap()
    };
    assert!(held(&done) < held(&one) + 4.0, "{} MiB, in one window {} MiB", held(&done), held(&one));
}

/// This test is a measurement: it prints its figures and asserts nothing about them.
#[test]
#[ignore = "a measurement of 30 s; .ci/long runs it"]
fn cpu_time_of_a_thousand_windows_compared_with_one() {
    let of = |args: &[&str]| {
        let done = run(program(), args, &DRAWN_APART).ended();
        let rate = numbers(&done, "launches/s")[0];
        let took: f64 =
            done.stdout.trim_end().strip_suffix(" s").unwrap().rsplit(' ').next().unwrap().parse().unwrap();
        eprintln!("{args:?}: {rate} launches/s, threads of gpuflame took {took} s of the processors");
        assert_eq!(done.sum("launches").1["dropped"], 0, "{}", done.stderr);
        took
    };
    let (one, many) = (of(&["one", "1000", "2000"]), of(&["1000", "2000"]));
    eprintln!("1,000 windows take {:.2} times what one takes", many / one);
}

/// Runs the program with a file system that hangs when the files of the first window are written. Tells the program to
/// end after `seconds`.
fn with_files_that_hang(formats: &str, seconds: u64) -> Done {
    let run = Run::new(program(), Way::Injected).args(["20"]).env("GPUFLAME_OUTPUT", "out.%w");
    let run = run.env("GPUFLAME_ENABLED", "0").env("GPUFLAME_FORMATS", formats);
    let run = run.env("GPUFLAME_EXIT_LIMIT", "0.5");
    let mut running = Running::of(in_trouble(run, "hang_windows"));
    let begun = Instant::now();
    running.wait_for(|_| (begun.elapsed() >= Duration::from_secs(seconds), "not yet".to_owned()));
    ended(running)
}

fn assert_all_but_windows(done: &Done) {
    let (launches, parts) = done.sum("launches");
    assert_eq!((launches, parts["matched"], parts["dropped"]), (250, 230, 0), "{}", done.stderr);
    assert_eq!(done.sum("activities").1["dropped"], 0, "{}", done.stderr);
    assert!(nanos(&done.folder, "1").is_none(), "{}", done.stderr);
    let said = "a file system blocks the files of a window";
    assert_eq!(done.stderr.matches(said).count(), 1, "{}", done.stderr);
}

#[test]
fn a_hanging_file_system_blocks_neither_the_collector_nor_the_exit() {
    // The thread that hangs gets the outputs of a window either at the next flush, some seconds after the window has
    // closed, or at the exit.
    for seconds in [0, 8] {
        assert_all_but_windows(&with_files_that_hang("folded", seconds));
    }
}

#[test]
fn the_recording_is_complete_although_a_windows_files_hang() {
    let done = with_files_that_hang("folded,gfr", 0);
    assert_all_but_windows(&done);
    let again = ["-q", "flamegraph", "out.all.gfr", "-o", "-", "--format", "folded"];
    let folded = crate::support::command::gpuflame(&done.folder, again).ok().stdout;
    let nanos: u64 =
        folded.lines().map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum();
    assert_eq!(nanos, (1..=20).map(expected).sum::<u64>(), "{folded}");
}

#[test]
fn windows_above_the_maximum_join_the_last_one_and_one_line_reports_it() {
    let mut running = run(program(), &["9"], &[("GPUFLAME_ENABLED", "0"), ("GPUFLAME_MAX_WINDOWS", "4")]);
    wait_for_files(&mut running, 3);
    let done = ended(running);
    let found: Vec<_> = (1..=4).map(|window| nanos(&done.folder, &window.to_string()).unwrap()).collect();
    let last = (4..=9).map(expected).sum();
    assert_eq!(found, [expected(1), expected(2), expected(3), last], "{}", done.stderr);
    assert_eq!(done.stderr.matches("GPUFLAME_MAX_WINDOWS is reached; ").count(), 1, "{}", done.stderr);
    assert!(!done.folder.join("out.5.folded").exists());
}

#[test]
fn a_kernel_running_5_s_past_its_window_is_pending_and_then_late() {
    let settings = [("GPUFLAME_ENABLED", "0"), ("GPUSIM_CLOCK", "real")];
    let mut running = run(program(), &["slow"], &settings);
    wait_for_files(&mut running, 1);
    let pending = running.folder.join("out.1.folded");
    let pending = fs::read_to_string(pending).unwrap();
    let done = ended(running);
    assert!(pending.contains("cudaLaunchKernel;[GPU_Launch_Pending] "), "{pending}");
    assert_eq!(done.file("out.1.folded"), pending);
    let late = "windows 1, late: 0 launches, 1 activities, 12000000000 ns arrived after";
    assert!(done.stderr.contains(late), "{}", done.stderr);
    assert_eq!(done.sum("launches").1["matched"], 1, "{}", done.stderr);
}

#[test]
fn each_window_holds_the_launches_that_all_threads_made_in_it() {
    let settings = [("GPUFLAME_DELAY", "0.05"), ("GPUFLAME_DURATION", "0.05"), ("GPUFLAME_REPEAT", "12")];
    let timed = compile("tests/programs/timed.c", &["-O2"]);
    let mut running = run(&timed, &["run", "4"], &settings);
    wait_for_files(&mut running, 12);
    let done = ended(running);
    let (windows, launches) = recorded_launches(&done, "out.all.gfr");
    let truth = truth(&done);
    let mut expected = vec![0; 12];
    for (id, time) in launches {
        // A launch belongs to the first window whose recorded end is not earlier than the launch's start.
        let window = windows.iter().position(|(_, closed)| time <= *closed).unwrap();
        expected[window] += truth[&id].nanos;
    }
    let found: Vec<_> = (1..=12).map(|window| nanos(&done.folder, &window.to_string()).unwrap()).collect();
    assert_eq!(found, expected, "{}", done.stderr);
    assert!(expected.iter().all(|nanos| *nanos > 0), "{expected:?}");
}

/// Returns whether the recording shows that launch callbacks were switched off at least `times` times.
fn is_quiet(folder: &Path, times: usize) -> bool {
    let Ok(file) = File::open(folder.join("out.all.gfr")) else { return false };
    let Ok(mut reader) = Reader::new(BufReader::new(file)) else { return false };
    let mut found = 0;
    while let Ok(Some(row)) = reader.next_row() {
        found += usize::from(matches!(row, Row::CallbacksSwitched { on: false, .. }));
    }
    found >= times
}

/// Waits until CUPTI's launch callbacks are off, two seconds after a window closes. In this test, launch callbacks are
/// switched off only to make launches cheaper.
fn wait_for_quiet(running: &mut Running, times: usize) {
    running
        .wait_for(|running| (is_quiet(&running.folder, times), "launch callbacks are still on".to_owned()));
    let begun = Instant::now();
    running.wait_for(|_| (begun.elapsed() > Duration::from_secs(2), "not yet".to_owned()));
}

#[test]
fn launches_between_windows_are_not_seen_and_their_activities_count_as_outside() {
    let mut running = run(program(), &["closed"], &[("GPUFLAME_ENABLED", "0")]);
    wait_for_quiet(&mut running, 1);
    running.tell("capture");
    running.tell("open");
    wait_for_quiet(&mut running, 2);
    running.tell("profiler");
    let done = running.ended();
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let truth = truth(&done);
    let found: Vec<_> = (1..=3).map(|window| nanos(&done.folder, &window.to_string())).collect();
    assert_eq!(found, [Some(5 * 20_000), Some(10 * 20_000), Some(11 * 20_000)], "{}", done.stderr);
    // CUPTI reports a stream capture even while launch callbacks are off.
    let folded = done.folded_file("out.2.folded");
    let captured = folded.iter().map(|(frames, _)| frames.join(";")).find(|stack| stack.contains("[graph];"));
    assert!(
        captured.is_some_and(|stack| stack.contains("closed;replay;") && stack.contains("[graph];launch;")),
        "{folded:?}"
    );
    let (activities, of) = done.sum("activities");
    let (launches, parts) = done.sum("launches");
    // The three activities of the graph share one correlation id.
    assert_eq!((activities, of["matched"]), (truth.len() as u64 + 2, 5 + 10 + 11), "{}", done.stderr);
    assert_eq!(of["outside"], activities - of["matched"], "{}", done.stderr);
    assert_eq!((parts["matched"], parts["outside"]), (5 + 8 + 11, launches - 24), "{}", done.stderr);
    let line = done.ledger("closed: for")[0];
    let not_seen: u64 = line.rsplit("; ").next().unwrap().split(' ').next().unwrap().parse().unwrap();
    assert!(not_seen > 0 && not_seen <= of["outside"], "{line}");
    // All other activities belong to launches that gpuflame saw: each launch has one activity, except the graph launch,
    // which has three.
    assert!(activities - not_seen <= launches + 2, "{}", done.stderr);
}
