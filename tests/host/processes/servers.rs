//! If servers are stopped by SIGTERM or Ctrl+C, they write all files.
//!
//! The program, `tests/programs/served.py`, ends like the servers of uvicorn, gunicorn and `multiprocessing`. The
//! program's kernels take 1,000 ns.

use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::running::is_finished;
use crate::support::{Done, Run, Way, root, skip};

/// Number of launches made by each process that launches kernels.
const LAUNCHES: u64 = 200;

/// Returns the ids of the processes that have launched kernels.
fn ready(folder: &Path) -> Vec<u32> {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter_map(|name| name.strip_prefix("ready-")?.parse().ok()).collect()
}

fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn signal(to: i32, signal: i32) {
    // SAFETY: SAFETY: `to` is a process for which the test has not waited, or the group of such a process. Therefore
    // the id cannot have been reused.
    assert_eq!(unsafe { libc::kill(to, signal) }, 0, "{}", io::Error::last_os_error());
}

/// Runs a server until its processes have launched kernels, waits for the duration `after`, and stops the server.
/// Either SIGTERM goes to the server alone, or SIGINT goes to its process group, as with Ctrl+C in a terminal. The
/// outcome must not depend on whether the first checkpoint is written during `after`.
fn stopped(way: Way, args: &[&str], serving: usize, by: i32, after: Duration) -> (Done, Vec<u32>) {
    let run = Run::new(Path::new("python3"), way).arg(root().join("tests/programs/served.py"));
    let run = run.args(args.iter().copied()).env("GPUFLAME_OUTPUT", "out-%p").env("GPUFLAME_UNIT", "ns");
    let (mut command, folder) = run.into_command();
    let child = command.process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let group = child.id() as i32;
    wait_for("it does not launch", || ready(&folder).len() == serving);
    std::thread::sleep(after);
    signal(if by == libc::SIGINT { -group } else { group }, by);
    let done = Done::from_output(child.wait_with_output().unwrap(), folder);
    let servers = ready(&done.folder);
    (done, servers)
}

fn assert_all_files(done: &Done, server: u32) {
    for ending in ["svg", "csv", "idle.svg", "idle.folded", "set.json"] {
        let name = format!("out-{server}.{ending}");
        assert!(done.folder.join(&name).exists(), "{name}: {}", done.stderr);
    }
    let stacks = done.folded_file(&format!("out-{server}.folded"));
    assert_eq!(stacks.iter().map(|(_, nanos)| nanos).sum::<u64>(), 1000 * LAUNCHES, "{stacks:?}");
    assert!(is_finished(&done.folder.join(format!("out-{server}.gfr"))), "{}", done.stderr);
}

fn assert_leaves_files(args: &[&str], serving: usize) {
    if Command::new("python3").arg("--version").output().is_err() {
        return skip("there is no python3");
    }
    for by in [libc::SIGTERM, libc::SIGINT] {
        for after in [Duration::ZERO, Duration::from_millis(2500)] {
            let (without, _) = stopped(Way::None, args, serving, by, Duration::ZERO);
            let (done, servers) = stopped(Way::Injected, args, serving, by, after);
            let end = |done: &Done| (done.code, done.signal);
            assert_eq!(end(&done), end(&without), "{args:?} {by}: {}", done.stderr);
            servers.iter().for_each(|server| assert_all_files(&done, *server));
        }
    }
}

#[test]
fn a_server_that_restores_its_handlers_and_resends_the_signal_leaves_files() {
    assert_leaves_files(&["early"], 1);
    assert_leaves_files(&["late"], 1);
}

#[test]
fn a_server_whose_workers_resend_the_signal_leaves_files() {
    assert_leaves_files(&["workers"], 2);
}

#[test]
fn a_server_whose_forked_worker_resends_the_signal_leaves_files() {
    assert_leaves_files(&["forked"], 1);
}

#[test]
fn a_server_managed_by_multiprocessing_leaves_files() {
    assert_leaves_files(&["managed", "fork"], 1);
    assert_leaves_files(&["managed", "spawn"], 1);
}
