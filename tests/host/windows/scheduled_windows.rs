//! Tests recording windows that are opened and closed by settings. The output files contain exactly the launches made
//! in these windows. The tests compare each launch with the truth file of the simulated CUDA stack.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::BufReader;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use gpuflame_model::record::{ContextId, Reader, Row, WindowEdge};
use serde_json::Value;

use crate::running::{Running, send};
use crate::support::{Done, Run, Way, compile};

/// Maximum difference, in ns, between the time at which a window really opens or closes and the time that is recorded.
/// The thread may be preempted between these two times.
const SLACK: u64 = 150_000_000;

fn program() -> &'static PathBuf {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| compile("tests/programs/timed.c", &["-O2"]))
}

fn run(args: &[&str], settings: &[(&str, &str)]) -> Run {
    let run = Run::new(program(), Way::Injected).args(args.iter().copied());
    let run = run.env("GPUFLAME_FORMATS", "folded,gfr").env("GPUSIM_TRUTH", "truth.jsonl,summary:truth.json");
    settings.iter().fold(run, |run, (name, value)| run.env(name, value))
}

/// A kernel, copy or fill as it ran according to the truth file.
pub(crate) struct Work {
    thread: u64,
    /// Time at which the launch call began, in ns.
    entered: u64,
    pub(crate) nanos: u64,
}

/// The windows and launches in a recording.
struct Recorded {
    /// Start and end of each window.
    windows: Vec<(u64, u64)>,
    /// Ids of the launches that were made in windows.
    launches: BTreeSet<u32>,
}

fn recorded(done: &Done) -> Recorded {
    let (windows, launches) = recorded_launches(done, "out.gfr");
    Recorded { windows, launches: launches.into_iter().map(|(id, _)| id).collect() }
}

/// Start and end of a time span.
type Span = (u64, u64);

/// Returns the time spans in which windows were open, and the launches in these spans as (id, start).
pub(crate) fn recorded_launches(done: &Done, file: &str) -> (Vec<Span>, Vec<(u32, u64)>) {
    let mut reader = Reader::new(BufReader::new(File::open(done.folder.join(file)).unwrap())).unwrap();
    let (mut windows, mut launches) = (Vec::new(), Vec::new());
    while let Some(row) = reader.next_row().unwrap() {
        match row {
            Row::Window { edge: WindowEdge::Open, time } => windows.push((time.0, u64::MAX)),
            Row::Window { edge: WindowEdge::Close, time } => windows.last_mut().unwrap().1 = time.0,
            Row::Launch(launch) if launch.context != ContextId::OUTSIDE => {
                launches.push((launch.correlation.0, launch.time.0));
            }
            _ => {}
        }
    }
    (windows, launches)
}

pub(crate) fn truth(done: &Done) -> BTreeMap<u32, Work> {
    let number = |row: &Value, field: &str| row[field].as_u64().unwrap();
    let rows = done.file("truth.jsonl");
    let rows = rows.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    rows.map(|row| {
        let nanos = number(&row, "end") - number(&row, "start");
        (
            number(&row, "corr") as u32,
            Work { thread: number(&row, "tid"), entered: number(&row, "enter"), nanos },
        )
    })
    .collect()
}

/// Compares the recording with the truth file. Returns the number of launches in each window.
fn assert_exact(done: &Done) -> Vec<usize> {
    let (found, truth) = (recorded(done), truth(done));
    let mut counts = vec![0; found.windows.len()];
    let mut turns: BTreeMap<u64, (bool, usize)> = BTreeMap::new();
    for (id, work) in &truth {
        let is_in = found.launches.contains(id);
        let window = found.windows.iter().position(|(from, to)| (*from..*to).contains(&work.entered));
        let edges = found.windows.iter().flat_map(|(from, to)| [*from, *to]);
        let is_near_an_edge = edges.into_iter().any(|edge| edge.abs_diff(work.entered) < SLACK);
        assert!(is_in == window.is_some() || is_near_an_edge, "launch {id} at {}: {is_in}", work.entered);
        if let Some(window) = window {
            counts[window] += usize::from(is_in);
        }
        // In the recording, the launches of one thread in one window are consecutive.
        let (was_in, seen) = turns.entry(work.thread).or_default();
        *seen += usize::from(is_in && !*was_in);
        *was_in = is_in;
    }
    for (thread, (_, seen)) in turns {
        assert!(seen <= found.windows.len(), "{thread}: {seen} of {} windows", found.windows.len());
    }
    let nanos: u64 = found.launches.iter().map(|id| truth[id].nanos).sum();
    assert_eq!(done.folded().iter().map(|(_, weight)| weight).sum::<u64>(), nanos, "{}", done.stderr);
    let (launches, parts) = done.sum("launches");
    let (activities, of) = done.sum("activities");
    let (all, inside) = (truth.len() as u64, found.launches.len() as u64);
    assert_eq!((activities, of["matched"], of["outside"]), (all, inside, all - inside), "{}", done.stderr);
    // If no window is open for a long time, gpuflame turns off launch callbacks and does not see launches.
    let is_all_seen = !done.stderr.contains("gpuflame: closed: for ");
    assert!(launches == all || launches < all && !is_all_seen, "{launches} of {all}: {}", done.stderr);
    assert_eq!((parts["matched"], parts["outside"]), (inside, launches - inside), "{}", done.stderr);
    counts
}

/// Runs the program with `threads` threads; the program ends after the function `until` has returned. The function
/// `until` waits for the windows to open and close.
fn while_it_runs(threads: &str, settings: &[(&str, &str)], until: impl FnOnce(&mut Running)) -> Done {
    let mut running = Running::of(run(&["run", threads], settings));
    until(&mut running);
    running.tell("stop");
    let done = running.ended();
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    done
}

/// Returns the number of windows that were opened and closed so far, according to the recording (written every second).
fn edges(running: &Running) -> (usize, usize) {
    let Ok(file) = File::open(running.folder.join("out.gfr")) else { return (0, 0) };
    let Ok(mut reader) = Reader::new(BufReader::new(file)) else { return (0, 0) };
    let (mut opened, mut closed) = (0, 0);
    while let Ok(Some(row)) = reader.next_row() {
        match row {
            Row::Window { edge: WindowEdge::Open, .. } => opened += 1,
            Row::Window { edge: WindowEdge::Close, .. } => closed += 1,
            _ => {}
        }
    }
    (opened, closed)
}

fn wait_for_edges(running: &mut Running, opened: usize, closed: usize) {
    running.wait_for(|running| {
        let edges = edges(running);
        (edges.0 >= opened && edges.1 >= closed, format!("{edges:?}"))
    });
}

#[test]
fn a_step_interval_records_exactly_the_launches_of_its_steps() {
    for (steps, expected) in [("4..7", 4 + 5 + 6), ("..3", 1 + 2), ("9..", 9 + 10), ("20..30", 0)] {
        let done = run(&["steps", "10"], &[("GPUFLAME_STEPS", steps)]).ok();
        assert_eq!(assert_exact(&done).into_iter().sum::<usize>(), expected, "{steps}\n{}", done.stderr);
        assert_eq!(done.sum("launches").0, 55);
    }
}

#[test]
fn a_range_with_the_configured_name_begins_a_step() {
    for (name, steps, expected) in [("step *", "4..7", 4 + 5 + 6), ("step 5", "1..2", 5 + 6 + 7 + 8 + 9 + 10)]
    {
        let settings = [("GPUFLAME_STEPS", steps), ("GPUFLAME_STEP_RANGE", name)];
        let done = run(&["ranges", "10"], &settings).ok();
        assert_eq!(assert_exact(&done), [expected], "{name}\n{}", done.stderr);
    }
}

#[test]
fn graphs_captured_before_the_first_window_have_launch_and_capture_stacks() {
    let done = run(&["graphs", "10"], &[("GPUFLAME_STEPS", "3..5")]).ok();
    let captured =
        "main;graphs;replay;cudaGraphLaunch;[graph];launch;cudaLaunchKernel;[GPU_Kernel]step_d20000";
    let folded = done.folded();
    let found: Vec<_> = folded.iter().map(|(frames, weight)| (frames.join(";"), *weight)).collect();
    assert_eq!(found, [(captured.to_owned(), 2 * 3 * 20_000)], "{}", done.stderr);
}

#[test]
fn cuda_profiler_calls_open_and_close_windows_unless_disabled() {
    for (settings, expected) in [
        (&[("GPUFLAME_ENABLED", "0")][..], vec![7]),
        // Without settings, a window is open from the start, and the program closes it later.
        (&[], vec![5 + 7]),
        (&[("GPUFLAME_PROFILER_CALLS", "0")], vec![5 + 7 + 11]),
        (&[("GPUFLAME_PROFILER_CALLS", "0"), ("GPUFLAME_ENABLED", "0")], vec![]),
    ] {
        let done = run(&["profiler"], settings).ok();
        assert_eq!(assert_exact(&done), expected, "{settings:?}\n{}", done.stderr);
    }
}

#[test]
fn delay_duration_and_repeat_open_and_close_windows_on_all_threads() {
    let settings = [("GPUFLAME_DELAY", "0.5"), ("GPUFLAME_DURATION", "0.7"), ("GPUFLAME_REPEAT", "2")];
    let done = while_it_runs("4", &settings, |running| wait_for_edges(running, 2, 2));
    let windows = recorded(&done).windows;
    assert_eq!(windows.len(), 2, "{}", done.stderr);
    for (from, to) in windows {
        assert!(to - from >= 600_000_000, "{from} to {to}");
    }
    assert!(assert_exact(&done).iter().all(|launches| *launches > 100));
}

#[test]
fn calls_in_flight_at_a_window_edge_belong_to_their_starting_window() {
    // A launch call takes 2 ms, and the pause before the next call takes 0.3 ms. Therefore every thread is in a launch
    // call nearly all the time. gpuflame turns its launch callbacks off between windows, and turns them on while calls
    // are in flight.
    let settings = [
        ("GPUFLAME_DELAY", "2.6"),
        ("GPUFLAME_DURATION", "0.4"),
        ("GPUFLAME_REPEAT", "2"),
        ("GPUSIM_LAUNCH_NS", "2000000"),
    ];
    let done = while_it_runs("3", &settings, |running| wait_for_edges(running, 2, 2));
    let counts = assert_exact(&done);
    assert!(counts.len() == 2 && counts.iter().all(|launches| *launches > 0), "{counts:?}");
    assert!(done.stderr.contains("gpuflame: closed: for "), "{}", done.stderr);
    assert_eq!(done.sum("launches").1["dropped"], 0, "{}", done.stderr);
}

#[test]
fn a_duration_alone_opens_at_once_and_kernels_may_outlast_the_window() {
    let settings = [("GPUFLAME_DURATION", "0.5"), ("GPUSIM_CLOCK", "real")];
    let done = while_it_runs("2", &settings, |running| wait_for_edges(running, 1, 1));
    assert_eq!(assert_exact(&done).len(), 1);
}

#[test]
fn a_window_closes_after_its_maximum_number_of_launches() {
    let settings = [("GPUFLAME_MAX_LAUNCHES", "500")];
    let done = while_it_runs("2", &settings, |running| wait_for_edges(running, 1, 1));
    let counts = assert_exact(&done);
    // gpuflame polls the flag file every 2 ms, and the polling thread may have to wait for a processor.
    assert!(counts.len() == 1 && recorded(&done).launches.len() >= 500, "{counts:?}");
    assert!(done.sum("launches").1["outside"] > 0, "{}", done.stderr);
}

#[test]
fn a_window_closes_after_its_maximum_number_of_bytes() {
    let settings = [("GPUFLAME_MAX_BYTES", "100K")];
    let done = while_it_runs("4", &settings, |running| wait_for_edges(running, 1, 1));
    assert_eq!(assert_exact(&done).len(), 1);
    assert!(done.sum("launches").1["outside"] > 0, "{}", done.stderr);
}

#[test]
fn a_flag_file_opens_a_window_and_replacing_it_opens_another() {
    let flag = crate::support::scratch("flag").join("on");
    let settings = [("GPUFLAME_FLAG", flag.to_str().unwrap())];
    let done = while_it_runs("2", &settings, |running| {
        fs::write(&flag, "").unwrap();
        wait_for_edges(running, 1, 0);
        let next = flag.with_extension("next");
        fs::write(&next, "").unwrap();
        fs::rename(next, &flag).unwrap();
        wait_for_edges(running, 2, 1);
        fs::remove_file(&flag).unwrap();
        wait_for_edges(running, 2, 2);
        fs::write(&flag, "").unwrap();
        wait_for_edges(running, 3, 2);
    });
    let counts = assert_exact(&done);
    assert!(counts.len() == 3 && counts.iter().all(|launches| *launches > 0), "{counts:?}");
}

#[test]
fn with_a_flag_file_the_duration_counts_from_each_creation() {
    let flag = crate::support::scratch("flag-length").join("on");
    let settings = [("GPUFLAME_FLAG", flag.to_str().unwrap()), ("GPUFLAME_DURATION", "0.3")];
    let done = while_it_runs("1", &settings, |running| {
        for window in 1..=2 {
            fs::write(&flag, "").unwrap();
            wait_for_edges(running, window, window);
            fs::remove_file(&flag).unwrap();
            // gpuflame polls the flag file once per second. Therefore gpuflame needs less than 2.5 s to notice that the
            // file is absent.
            let begun = Instant::now();
            running.wait_for(|_| (begun.elapsed() > Duration::from_millis(2500), "not yet".to_owned()));
        }
    });
    assert_eq!(assert_exact(&done).len(), 2);
}

#[test]
fn with_a_flag_file_steps_count_from_each_creation() {
    let flag = crate::support::scratch("flag-steps").join("on");
    let settings = [("GPUFLAME_FLAG", flag.to_str().unwrap()), ("GPUFLAME_STEPS", "5..100")];
    let done = while_it_runs("2", &settings, |running| {
        for window in 1..=2 {
            fs::write(&flag, "").unwrap();
            wait_for_edges(running, window, window);
            // gpuflame polls the flag file once per second. While the flag file exists, no other window opens.
            let begun = Instant::now();
            running.wait_for(|_| (begun.elapsed() > Duration::from_millis(2500), "not yet".to_owned()));
            assert_eq!(edges(running), (window, window));
            fs::rename(&flag, flag.with_extension("old")).unwrap();
        }
    });
    let counts = assert_exact(&done);
    assert!(counts.len() == 2 && counts.iter().all(|launches| *launches > 0), "{counts:?}");
}

#[test]
fn a_window_signal_that_the_program_handles_is_left_to_the_program() {
    let done = run(&["handled"], &[("GPUFLAME_SIGNAL", "USR2")]).ok();
    let words = "GPUFLAME_SIGNAL has no effect, because the program has set its own action for this signal; \
                 no window opens";
    assert_eq!(done.stderr.matches(words).count(), 1, "{}", done.stderr);
    assert_eq!(assert_exact(&done), [0; 0]);
    assert_eq!(done.sum("launches").1["outside"], 6, "{}", done.stderr);
}

#[test]
fn a_signal_opens_a_window_and_the_next_signal_closes_it() {
    let done = while_it_runs("2", &[("GPUFLAME_SIGNAL", "USR2")], |running| {
        running.wait_for(|running| (running.takes(libc::SIGUSR2), "it takes no signal yet".to_owned()));
        for window in 1..=2 {
            send(running.process(), libc::SIGUSR2);
            wait_for_edges(running, window, window - 1);
            send(running.process(), libc::SIGUSR2);
            wait_for_edges(running, window, window);
        }
    });
    let counts = assert_exact(&done);
    assert!(counts.len() == 2 && counts.iter().all(|launches| *launches > 0), "{counts:?}");
}

#[test]
fn invalid_window_settings_are_reported_and_the_program_runs() {
    for (settings, words) in [
        (&[("GPUFLAME_FLAG", "/tmp")][..], "GPUFLAME_FLAG=/tmp: it is a folder"),
        (&[("GPUFLAME_STEPS", "7..7")], "GPUFLAME_STEPS=7..7: expected FROM..TO"),
        (&[("GPUFLAME_DURATION", "0")], "GPUFLAME_DURATION=0: expected a number of seconds"),
        (&[("GPUFLAME_MAX_BYTES", "lots")], "GPUFLAME_MAX_BYTES=lots: expected a number of bytes"),
        (&[("GPUFLAME_REPEAT", "3")], "GPUFLAME_REPEAT has no effect without GPUFLAME_DURATION"),
        (
            &[("GPUFLAME_ENABLED", "0"), ("GPUFLAME_DELAY", "1")],
            "GPUFLAME_ENABLED=0: only the program opens windows",
        ),
        (
            &[("GPUFLAME_FLAG", "/nowhere/x"), ("GPUFLAME_SIGNAL", "USR1")],
            "GPUFLAME_SIGNAL has no effect, because GPUFLAME_FLAG is set",
        ),
    ] {
        let done = while_it_runs("1", settings, |running| {
            running.wait_for(|running| (running.stderr().contains(words), running.stderr()));
        });
        assert!(done.sum("launches").0 > 0, "{}", done.stderr);
    }
}

/// The launch call begins while the window is open, and returns three seconds after the window has closed. If launch
/// callbacks were turned off before the call returns, gpuflame would not see the exit of this call.
#[test]
fn a_call_in_flight_keeps_callbacks_on_until_it_returns() {
    let settings = [("GPUFLAME_DURATION", "0.3"), ("GPUSIM_LAUNCH_NS", "3500000000")];
    let done = run(&["steps", "1"], &settings).ok();
    let (launches, parts) = done.sum("launches");
    assert_eq!((launches, parts["matched"]), (1, 1), "{}", done.stderr);
    assert!(
        done.folded().iter().any(|(frames, nanos)| *nanos == 20_000 && frames[0] == "main"),
        "{}",
        done.stderr
    );
}
