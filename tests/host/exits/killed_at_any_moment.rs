//! However and whenever a program is ended, its outputs must contain every launch made before the end, under the right
//! thread and function. The outputs must not contain GPU work that never ran. The reference is the truth file of the
//! simulated CUDA stack, to which a line is written when a kernel, copy or fill starts.
//!
//! `GPUFLAME_MOMENTS=200 cargo test --test host killed_at_any_moment` takes a quarter of an hour. Without the variable,
//! each test ends the program at ten different times.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use serde_json::Value;

use crate::running::{FILE, Running, is_finished, send, starved_for};
use crate::support::command::gpuflame as command;
use crate::support::{Done, Run, Way, compile, root, skip};

const SIGNALS: [i32; 3] = [libc::SIGKILL, libc::SIGTERM, libc::SIGINT];
/// Number of nodes in the CUDA graph that the program launches.
const NODES: u64 = 3;
/// Upper bound on the difference between the truth file's clock and gpuflame's clock, in ns.
const CLOCKS: u64 = 1_000_000;
/// Maximum delay of a checkpoint in ms, not counting the time that the writing thread waits for a processor.
const SLACK_MS: u64 = 1000;

fn turns() -> u64 {
    std::env::var("GPUFLAME_MOMENTS").map_or(10, |text| text.parse().unwrap())
}

/// Returns the time to wait until the process is ended, which is always below 300 ms. The waiting times are multiples
/// of the golden ratio, so they are spread evenly.
fn moment(turn: u64, process: u32) -> Duration {
    Duration::from_micros((turn * 618_034 + u64::from(process)) % 1_000_000 * 300 / 1000)
}

fn now() -> u64 {
    std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64
}

/// GPU work that a program started, keyed by thread id and launching function.
type Work = BTreeMap<(u64, String), Count>;

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    /// Number of kernels, copies and fills launched before the process was ended.
    before: u64,
    all: u64,
}

fn is_pending(frames: &[String]) -> bool {
    frames.last().unwrap() == "[GPU_Launch_Pending]"
}

fn truth(path: &Path, moment: u64) -> Work {
    let mut work = Work::new();
    for line in fs::read_to_string(path).unwrap().lines() {
        // The last line of the truth file may be truncated.
        let Ok(line) = serde_json::from_str::<Value>(line) else { continue };
        let site = line["site"].as_str().unwrap_or_default().to_owned();
        let count = work.entry((line["tid"].as_u64().unwrap(), site)).or_default();
        count.all += 1;
        count.before += u64::from(line["enter"].as_u64().unwrap() + CLOCKS < moment);
    }
    work
}

/// Asserts that folded stacks contain all GPU work in `work` and nothing else. The first frame of each stack is the
/// name of its thread. If a thread was making a launch when the process ended, the outputs may not contain this launch.
fn assert_all_is_there(stacks: &[(Vec<String>, u64)], work: &Work) {
    let mut threads: Vec<u64> = work.keys().map(|(thread, _)| *thread).collect();
    threads.dedup();
    let thread_of = |frames: &[String]| {
        let label = frames[0].strip_prefix("[thread ")?.strip_suffix(']')?;
        // If several threads share a name, the thread's frame ends with the thread's id.
        label.rsplit(' ').next()?.parse().ok().or_else(|| (threads.len() == 1).then(|| threads[0]))
    };
    let mut found: BTreeMap<(u64, String), u64> = BTreeMap::new();
    let mut without_stack = 0;
    for (frames, count) in stacks {
        let is_graph = frames.contains(&"cudaGraphLaunch".to_owned());
        let pieces = count * if is_graph && is_pending(frames) { NODES } else { 1 };
        let Some(thread) = thread_of(frames) else {
            without_stack += pieces;
            continue;
        };
        let launched_by =
            |(owner, site): &&(u64, String)| *owner == thread && (site.is_empty() || frames.contains(site));
        let site = work.keys().find(launched_by);
        let site = site.unwrap_or_else(|| panic!("no thread launched {frames:?}: {work:?}"));
        *found.entry(site.clone()).or_default() += pieces;
    }
    // The expected counts may differ by two launches per thread: one that is in flight, and one whose activities CUPTI
    // has not delivered.
    let slack = 2 * NODES;
    assert!(without_stack <= slack * threads.len() as u64, "{stacks:?}");
    for (site, Count { before, all }) in work {
        let found = found.get(site).copied().unwrap_or(0);
        assert!(found + slack >= *before && found <= all + slack, "{site:?}: {found} of {before} to {all}");
    }
}

/// Reads the file of a process that was killed at `ended`. Returns the time of the last checkpoint mark in the file,
/// and the stacks with their counts. Asserts that the checkpoint mark is not older than the file states, plus the time
/// that a busy machine takes to write a checkpoint.
fn recovered(folder: &Path, name: &str, ended: u64) -> (u64, Vec<(Vec<String>, u64)>) {
    let file = std::io::BufReader::new(fs::File::open(folder.join(name)).unwrap());
    let mut reader = gpuflame_model::record::Reader::new(file).unwrap();
    // The last chunk of the recording may be truncated.
    while !matches!(reader.next_row(), Ok(None)) {}
    let mark = reader.mark().expect("a moment");
    let (moment, interval_ms) = (mark.time.0, u64::from(mark.interval_ms));
    let missing_ms = ended.saturating_sub(moment) / 1_000_000;
    assert!(missing_ms <= interval_ms + SLACK_MS, "{missing_ms} ms missing, the file states {interval_ms}");
    let draw = |unit: &str, output: &str| {
        let args = ["flamegraph", name, "--keep-numbers", "--root", "thread", "--unit", unit, "-o", output];
        command(folder, args).ok();
        Done::from_folder(folder).folded_file(output)
    };
    let (count, nanos) = (draw("count", "count.folded"), draw("ns", "ns.folded"));
    let ran: u64 = count.iter().filter(|(frames, _)| !is_pending(frames)).map(|(_, count)| count).sum();
    assert_eq!(nanos.iter().map(|(_, nanos)| nanos).sum::<u64>(), 1000 * ran, "each takes 1,000 ns");
    (moment, count)
}

fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| compile("tests/programs/ending.c", &["-O2", "-g0"]))
}

fn told(run: Run) -> Run {
    let run = run.env("GPUFLAME_CHECKPOINT", "0.02").env("GPUFLAME_UNIT", "count");
    run.env("GPUFLAME_ROOT", "thread").env("GPUSIM_TRUTH", "started:truth-%p.jsonl")
}

/// Runs a C program that launches kernels without a pause, and ends the program after a delay.
fn ends_at_a_moment(args: &[&str], launch_ns: &str, signal: i32, turn: u64) {
    let run = told(Run::new(program(), Way::Injected).args(args.iter().copied()));
    let mut running = Running::of(run.env("GPUSIM_LAUNCH_NS", launch_ns));
    running.wait_for(|running| (running.folder.join(FILE).exists(), "no file".to_owned()));
    let process = running.process();
    std::thread::sleep(moment(turn, process));
    let (before, starved) = (now(), starved_for(process));
    let done = running.signalled(signal);
    assert_eq!((done.code, done.signal), (None, Some(signal)), "{args:?}: {}", done.stderr);
    assert_eq!(done.stdout, "", "{args:?}");
    let truth_file = done.folder.join(format!("truth-{process}.jsonl"));
    if signal == libc::SIGKILL {
        assert_eq!(done.stderr, "");
        let (moment, stacks) = recovered(&done.folder, FILE, before - starved);
        assert_all_is_there(&stacks, &truth(&truth_file, moment));
    } else {
        let (_, became) = done.sum("launches");
        assert_eq!(became["dropped"], 0, "{}", done.stderr);
        assert_all_is_there(&done.folded(), &truth(&truth_file, before));
    }
    // The folder is removed afterwards, because the truth file in it has 10 MB or more.
    fs::remove_dir_all(&done.folder).unwrap();
}

#[test]
fn launching_threads_killed_at_any_moment_lose_no_completed_launch() {
    for turn in 0..turns() {
        let threads = ["1", "4", "16"][turn as usize % 3];
        let launch_ns = ["0", "4000"][turn as usize % 2];
        for signal in SIGNALS {
            ends_at_a_moment(&["for_ever", threads], launch_ns, signal, turn);
        }
    }
}

#[test]
fn graph_launches_killed_at_any_moment_lose_no_completed_launch() {
    for turn in 0..turns() {
        for signal in SIGNALS {
            ends_at_a_moment(&["graphs_for_ever"], "0", signal, turn);
        }
    }
}

const WORKERS: u64 = 2;

fn workers(way: Way) -> Option<Run> {
    let has_python = Command::new("python3").arg("--version").output().is_ok_and(|ran| ran.status.success());
    if !has_python {
        skip("there is no python3");
        return None;
    }
    let run = Run::new(Path::new("python3"), way).arg(root().join("tests/programs/workers.py"));
    let run = run.args(["for_ever", "fork", &WORKERS.to_string(), "50"]);
    Some(told(run).env("GPUFLAME_OUTPUT", "out-%p"))
}

/// Sends the signal to each worker process, at a different time for each worker. For each worker process, returns its
/// id, the time of the signal, and how long the worker had waited for a processor.
fn end_workers(mut running: Running, is_ready: &str, signal: i32, turn: u64) -> (Done, Vec<(u32, u64, u64)>) {
    let workers = |running: &Running| -> Vec<u32> {
        let names = fs::read_dir(&running.folder).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter_map(|name| name.strip_prefix("begun-")?.parse().ok()).collect()
    };
    let name = |worker: u32| is_ready.replace("%p", &worker.to_string());
    running.wait_for(|running| {
        let workers = workers(running);
        let are_ready = workers.iter().all(|worker| running.folder.join(name(*worker)).exists());
        (workers.len() == WORKERS as usize && are_ready, format!("{workers:?}"))
    });
    let end = |worker: u32| {
        std::thread::sleep(moment(turn, worker));
        let (before, starved) = (now(), starved_for(worker));
        send(worker, signal);
        (worker, before, starved)
    };
    let ended = workers(&running).into_iter().map(end).collect();
    (running.ended(), ended)
}

#[test]
fn python_workers_killed_at_any_moment_lose_no_completed_launch() {
    for signal in SIGNALS {
        let Some(run) = workers(Way::None) else { return };
        let (without, _) = end_workers(Running::of(run), "begun-%p", signal, 0);
        for turn in 0..turns().div_ceil(WORKERS) {
            let run = Running::of(workers(Way::Injected).unwrap());
            let (done, workers) = end_workers(run, "out-%p.gfr", signal, turn);
            assert_eq!((done.code, &done.stdout), (without.code, &without.stdout), "{}", done.stderr);
            for (worker, before, starved) in workers {
                let left = format!("out-{worker}.gfr");
                // The interpreter handles SIGINT itself, and Python's worker processes end by `_exit`.
                let (moment, stacks) = match signal == libc::SIGKILL {
                    true => recovered(&done.folder, &left, before - starved),
                    false => (before, done.folded_file(&format!("out-{worker}.folded"))),
                };
                assert_eq!(is_finished(&done.folder.join(left)), signal != libc::SIGKILL);
                let truth_file = done.folder.join(format!("truth-{worker}.jsonl"));
                assert_all_is_there(&stacks, &truth(&truth_file, moment));
            }
            fs::remove_dir_all(&done.folder).unwrap();
        }
    }
}
