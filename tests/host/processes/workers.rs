//! Workers of Python's `multiprocessing` end by `_exit` or SIGTERM, but gpuflame must write the files of these workers.
//!
//! The program is `tests/programs/workers.py`, whose kernels take 1,000 ns.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::running::{Running, is_finished, send};
use crate::support::command::gpuflame as command;
use crate::support::{Done, Run, Way, root, skip};
use gpuflame_offline::run::{self, ReadOptions};

const METHODS: [&str; 3] = ["fork", "forkserver", "spawn"];
const WORKERS: usize = 3;
const LAUNCHES: u64 = 200;

fn has_python() -> bool {
    let is_there = Command::new("python3").arg("--version").output().is_ok_and(|ran| ran.status.success());
    if !is_there {
        skip("there is no python3");
    }
    is_there
}

fn workers(how: &str, method: &str) -> Option<Run> {
    if !has_python() {
        return None;
    }
    let run = Run::new(Path::new("python3"), Way::Injected).arg(root().join("tests/programs/workers.py"));
    let run = run.args([how, method, &WORKERS.to_string(), &LAUNCHES.to_string()]);
    Some(run.env("GPUFLAME_OUTPUT", "out-%p").env("GPUFLAME_CHECKPOINT", "0.05"))
}

fn with_ending(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let name = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
    files.filter(|path| name(path).starts_with("out-") && name(path).ends_with(ending)).collect()
}

/// Asserts that the folded stacks of each worker contain the launches of that worker.
fn assert_each_has_its_launches(done: &Done) {
    let mut folded = with_ending(&done.folder, ".folded");
    folded.retain(|path| !path.to_string_lossy().ends_with(".idle.folded"));
    assert_eq!(folded.len(), WORKERS, "{folded:?}\n{}", done.stderr);
    for path in folded {
        let stacks = done.folded_file(path.file_name().unwrap().to_str().unwrap());
        assert_eq!(stacks.iter().map(|(_, nanos)| nanos).sum::<u64>(), 1000 * LAUNCHES, "{stacks:?}");
        let is_kernel = |frames: &Vec<String>| frames.last().unwrap() == "[GPU_Kernel]work_d1000";
        assert!(stacks.iter().all(|(frames, _)| is_kernel(frames)), "{stacks:?}");
    }
}

/// Forked workers of `multiprocessing` usually end by `_exit`.
#[test]
fn short_lived_forked_workers_leave_all_files_and_no_checkpoint() {
    for method in ["fork", "forkserver"] {
        let Some(run) = workers("brief", method) else { return };
        let done = run.env("GPUFLAME_CHECKPOINT", "1").ok();
        let sums = with_ending(&done.folder, ".gfr");
        assert!(sums.iter().all(|path| is_finished(path)), "{method}: {}", done.stderr);
        assert_each_has_its_launches(&done);
    }
}

/// After Ctrl+C, a worker gets SIGINT, prints Python's usual message and ends by `_exit`.
#[test]
fn a_killed_worker_leaves_a_checkpoint_and_an_interrupted_worker_all_files() {
    for (signal, ending) in [(libc::SIGKILL, ".gfr"), (libc::SIGINT, ".folded")] {
        let Some(run) = workers("process", "fork") else { return };
        let mut running = Running::of(run);
        running.wait_for(|running| {
            let left = with_ending(&running.folder, ".gfr").len();
            (left == WORKERS, format!("{left}"))
        });
        let names = with_ending(&running.folder, ".gfr");
        let number = |path: &PathBuf| path.file_stem()?.to_str()?.strip_prefix("out-")?.parse::<u32>().ok();
        names.iter().filter_map(number).for_each(|worker| send(worker, signal));
        let done = running.ended();
        // The main process of the program checks that its worker processes succeed. In this test a signal ends the
        // workers, so the exit code is 1.
        assert_eq!(done.code, Some(1), "{}", done.stderr);
        let mut left = with_ending(&done.folder, ending);
        left.retain(|path| !path.to_string_lossy().ends_with(".idle.folded"));
        assert_eq!(left.len(), WORKERS, "{}", done.stderr);
    }
}

/// Returns the ids of the workers that have launched kernels.
fn launched(folder: &Path) -> Vec<u32> {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter_map(|name| name.strip_prefix("launched-")?.parse().ok()).collect()
}

/// The server kills one worker that ran too long, and replaces some of its other workers. The remaining workers end
/// together with the server.
#[test]
fn server_workers_lose_no_launch_whether_killed_replaced_or_stopped() {
    if !has_python() {
        return;
    }
    let run = Run::new(Path::new("python3"), Way::Injected).arg(root().join("tests/programs/server.py"));
    let run = run.args(["2", &LAUNCHES.to_string()]).env("GPUFLAME_OUTPUT", "out-%p");
    let mut running = Running::of(run.env("GPUFLAME_CHECKPOINT", "0.05"));
    let all_are_there = |running: &mut Running, count: usize| {
        running.wait_for(|running| {
            let launched = launched(&running.folder);
            (launched.len() == count, format!("{launched:?}"))
        });
        launched(&running.folder)
    };
    let killed = all_are_there(&mut running, 2)[0];
    let left = format!("out-{killed}.gfr");
    running.wait_for(|running| {
        let read = run::read(running.folder.join(&left), &ReadOptions::default());
        let matched = read.map_or(0, |run| run.ledger().tally.activities.matched);
        (matched == LAUNCHES, format!("{matched}"))
    });
    running.tell(&format!("hangs-{killed}"));
    all_are_there(&mut running, 3);
    send(running.process(), libc::SIGHUP);
    let workers = all_are_there(&mut running, 5);
    let done = running.signalled(libc::SIGTERM);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    command(&done.folder, [PathBuf::from("recover"), PathBuf::from(left)]).ok();
    for worker in workers {
        let stacks = done.folded_file(&format!("out-{worker}.folded"));
        assert_eq!(stacks.iter().map(|(_, nanos)| nanos).sum::<u64>(), 1000 * LAUNCHES, "{stacks:?}");
    }
    // The server process itself has launched no GPU work, so it writes no files.
    assert_eq!(with_ending(&done.folder, ".set.json").len(), 5, "{}", done.stderr);
}

/// However a worker ended, its files must be available: the worker writes them at its exit, or `recover` writes them
/// from the worker's checkpoint.
#[test]
fn multiprocessing_workers_lose_no_launch_for_any_start_method() {
    for how in ["process", "pool"] {
        for method in METHODS {
            let Some(run) = workers(how, method) else { return };
            let (mut python, folder) = run.into_command();
            let mut child = python.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
            let deadline = Instant::now() + Duration::from_secs(100);
            let is_written = |path: &PathBuf| {
                let read = run::read(path, &ReadOptions::default());
                read.is_ok_and(|run| run.ledger().tally.activities.matched == LAUNCHES)
            };
            while with_ending(&folder, ".gfr").iter().filter(|path| is_written(path)).count() < WORKERS {
                assert!(child.try_wait().unwrap().is_none() && Instant::now() < deadline, "{how} {method}");
                std::thread::sleep(Duration::from_millis(10));
            }
            fs::write(folder.join("go"), "").unwrap();
            let done = Done::from_output(child.wait_with_output().unwrap(), folder);
            assert_eq!(done.code, Some(0), "{how} {method}: {}", done.stderr);
            let mut left = with_ending(&done.folder, ".gfr");
            left.retain(|path| !is_finished(path));
            if how == "process" {
                assert!(left.is_empty(), "the workers end by themselves: {left:?}");
            }
            if !left.is_empty() {
                command(&done.folder, [vec![PathBuf::from("recover")], left].concat()).ok();
            }
            assert_each_has_its_launches(&done);
        }
    }
}
