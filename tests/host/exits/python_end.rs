//! However a Python program ends, gpuflame writes its flame graph, and the program ends as it would without gpuflame.
//! Ctrl+C is special, because Python installs its handler for SIGINT before CUDA starts, and sends the signal to itself
//! at its very end.
//!
//! The program is `tests/programs/interrupted.py`, whose kernels take 1,000 ns. The tests run it with each Python on
//! this machine.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::exits::checkpoint::{hold_outputs, in_trouble, let_outputs_go, wait_until_it_writes};
use crate::running::{FILE, Running, is_finished, send};
use crate::support::pythons::{debian_pythons, pythons};
use crate::support::{Done, Run, Way, compile, root, skip};

const SCRIPT: &str = "tests/programs/interrupted.py";
/// Number of launches that the program makes before it is ready.
const LAUNCHES: u64 = 200;

fn all() -> Vec<PathBuf> {
    let all = pythons("ctypes").into_iter().chain(debian_pythons()).map(|(_, python)| python);
    let all: Vec<_> = all.collect();
    assert!(!all.is_empty(), "the tests need Python 3.9 or later");
    all
}

fn run(python: &Path, way: Way, how: &str) -> Run {
    let run = Run::new(python, way).arg(root().join(SCRIPT)).arg(how);
    run.env("GPUSIM_TRUTH", "started:truth.jsonl").env("GPUFLAME_UNIT", "ns")
}

/// Waits until the program is ready and the given `files` exist, then interrupts the program.
fn interrupted(run: Run, files: &[&str]) -> Done {
    let mut running = Running::of(run);
    running.wait_for(|running| {
        let are_there = ["ready"].iter().chain(files).all(|name| running.folder.join(name).exists());
        (are_there, "not ready".to_owned())
    });
    running.signalled(libc::SIGINT)
}

/// Asserts that the output files contain exactly the GPU work that ran, to the nanosecond, and that the final sums have
/// replaced the checkpoint. Returns the number of kernels in these files.
fn assert_written(done: &Done) -> u64 {
    let ran = done.file("truth.jsonl").lines().count() as u64;
    let nanos: u64 = done.folded().iter().map(|(_, nanos)| nanos).sum();
    assert_eq!(nanos, 1000 * ran, "{}", done.stderr);
    assert_eq!(done.sum("launches").1["matched"], ran, "{}", done.stderr);
    for name in ["out.svg", "out.csv", "out.idle.svg", "out.idle.folded", "out.set.json"] {
        assert!(done.folder.join(name).exists(), "{name}: {}", done.stderr);
    }
    assert!(is_finished(&done.folder.join(FILE)));
    ran
}

/// Returns those lines on stderr that the program itself printed, not gpuflame.
fn own_words(done: &Done) -> Vec<&str> {
    done.stderr.lines().filter(|line| !line.starts_with("gpuflame: ")).collect()
}

fn assert_ends_as_without_us(done: &Done, without: &Done) {
    let end = |done: &Done| (done.code, done.signal, done.stdout.clone());
    assert_eq!(end(done), end(without), "{}", done.stderr);
    assert_eq!(own_words(done), own_words(without));
}

#[test]
fn an_uncaught_interrupt_leaves_the_files_and_kills_python() {
    for python in all() {
        for how in ["sleeping", "asyncio"] {
            let without = interrupted(run(&python, Way::None, how), &[]);
            assert_eq!(without.signal, Some(libc::SIGINT), "{python:?}: {}", without.stderr);
            let done = interrupted(run(&python, Way::Injected, how), &[]);
            assert_ends_as_without_us(&done, &without);
            assert_eq!(assert_written(&done), LAUNCHES, "{python:?}");
            // The program runs a second time, and is interrupted when a checkpoint is on disk.
            let kept = run(&python, Way::Injected, how).env("GPUFLAME_CHECKPOINT", "0.05");
            let done = interrupted(kept, &[FILE]);
            assert_ends_as_without_us(&done, &without);
            assert_eq!(assert_written(&done), LAUNCHES, "{python:?}");
        }
    }
}

#[test]
fn an_interrupt_while_python_launches_loses_no_launch() {
    for python in all() {
        let done = interrupted(run(&python, Way::Injected, "launching"), &[]);
        assert_eq!(done.signal, Some(libc::SIGINT), "{python:?}: {}", done.stderr);
        assert!(done.stderr.contains("KeyboardInterrupt"), "{}", done.stderr);
        assert!(assert_written(&done) >= LAUNCHES);
    }
}

#[test]
fn other_python_exits_are_unchanged_and_leave_the_files() {
    for python in all() {
        for (how, code) in [("exit", 7), ("exception", 1), ("returns", 0)] {
            let without = run(&python, Way::None, how).done();
            assert_eq!(without.code, Some(code), "{}", without.stderr);
            let done = run(&python, Way::Injected, how).done();
            assert_ends_as_without_us(&done, &without);
            assert_eq!(assert_written(&done), LAUNCHES, "{python:?} {how}");
        }
    }
}

#[test]
fn a_forked_python_child_exits_even_if_the_loader_lock_was_held() {
    for python in all() {
        let without = run(&python, Way::None, "forks").done();
        assert_eq!(without.stdout, "child 3 0\n", "{}", without.stderr);
        let done = run(&python, Way::Injected, "forks").done();
        assert_ends_as_without_us(&done, &without);
        assert_eq!(assert_written(&done), LAUNCHES);
    }
}

/// When gpuflame writes its files, Python has already restored the default action of the signal. Therefore a second
/// signal would kill the process before gpuflame has written all files.
#[test]
fn a_second_interrupt_while_files_are_written_loses_nothing() {
    for python in all() {
        let mut running = Running::of(in_trouble(run(&python, Way::Injected, "sleeping"), "later"));
        running.wait_for(|running| (running.folder.join("ready").exists(), "not ready".to_owned()));
        hold_outputs(&running);
        send(running.process(), libc::SIGINT);
        wait_until_it_writes(&mut running);
        send(running.process(), libc::SIGINT);
        let_outputs_go(&running.folder);
        let done = running.ended();
        assert_eq!(done.signal, Some(libc::SIGINT), "{python:?}: {}", done.stderr);
        assert_eq!(assert_written(&done), LAUNCHES);
    }
}

/// The second signal arrives at one of two times: while Python still handles the first signal, or at Python's end,
/// after it has restored the default action.
#[test]
fn two_quick_interrupts_leave_the_files() {
    let pythons = all();
    for turn in 0..18 {
        let python = &pythons[turn % pythons.len()];
        let mut running = Running::of(run(python, Way::Injected, "sleeping"));
        running.wait_for(|running| (running.folder.join("ready").exists(), "not ready".to_owned()));
        send(running.process(), libc::SIGINT);
        std::thread::sleep(Duration::from_millis(20 + 30 * turn as u64 / 17));
        let done = running.signalled(libc::SIGINT);
        assert_eq!(done.signal, Some(libc::SIGINT), "{python:?}: {}", done.stderr);
        assert_eq!(assert_written(&done), LAUNCHES, "{python:?}");
    }
}

/// Runs `tests/programs/finalizes.c` with each Python that has a shared library.
fn embedded(arguments: &[&str], each: impl Fn(Done)) {
    let program = compile("tests/programs/finalizes.c", &["-O2"]);
    let asked = "import sys, sysconfig; print(sys.base_prefix); \
                 print(sysconfig.get_config_var('LIBDIR') + '/' + sysconfig.get_config_var('LDLIBRARY'))";
    let mut any = false;
    for python in all() {
        let output = Command::new(&python).args(["-c", asked]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let (home, library) = text.trim_end().split_once('\n').unwrap();
        if !library.ends_with(".so") || !Path::new(library).exists() {
            continue;
        }
        any = true;
        let run = Run::new(&program, Way::Injected).args([library, arguments[0]]).arg(root().join(SCRIPT));
        let run = run.args(arguments[1..].iter().copied()).env("PYTHONHOME", home);
        let run = run.env("PYTHONPATH", root().join("tests/programs"));
        each(run.env("GPUSIM_TRUTH", "started:truth.jsonl").ok());
    }
    if !any {
        skip("no Python on this machine has a shared library");
    }
}

#[test]
fn a_program_that_finalizes_embedded_python_is_recorded_until_its_own_exit() {
    embedded(&["goes_on"], |done| {
        assert_eq!(assert_written(&done), LAUNCHES + 100, "{}", done.stderr);
        assert!(!done.stderr.contains("the Python program ended"), "{}", done.stderr);
    });
}

#[test]
fn launches_after_pythons_main_program_ended_are_reported_as_missing() {
    embedded(&["main", "returns"], |done| {
        assert_eq!(done.sum("launches").1["matched"], LAUNCHES, "{}", done.stderr);
        assert_eq!(done.file("truth.jsonl").lines().count() as u64, LAUNCHES + 100);
        let line = "not in any file: launches made after the Python program ended";
        assert_eq!(done.ledger("not in any"), [&line["not in any ".len()..]], "{}", done.stderr);
    });
}
