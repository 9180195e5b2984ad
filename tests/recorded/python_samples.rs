//! Tests samples of threads that run Python code. The stacks of the samples contain Python functions. The reference is
//! py-spy, which reads the process from outside.
//!
//! If the Linux kernel does not allow sampling, these tests print this and are skipped. In CI, the Linux kernel must
//! allow sampling.
#![cfg(target_arch = "x86_64")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::python::{known, library, py_spy, python_frames};
use crate::support::{Done, Run, Way, compile, root, skip};

const NOT_READ: &str = "[Python frames not read]";

/// The test programs, each with the names of the functions that use most of the program's time.
const PROGRAMS: [(&str, &[&str]); 5] = [
    ("loader", &["decode"]),
    ("comprehensions", &["<genexpr>", "<dictcomp>", "<listcomp>", "table", "squares"]),
    ("extension", &["digest", "spins_in_c", "adds"]),
    ("held", &["holds", "keeps_on"]),
    ("asyncio", &["parses", "encodes"]),
];

fn sampled(python: &Path, what: &str, seconds: &str) -> Run {
    let run = Run::new(python, Way::Injected).arg(root().join("tests/programs/sampled.py"));
    let run = run.args([what, seconds]).arg(library()).env("GPUFLAME_FORMATS", "folded,idle,gfr");
    run.env("GPUFLAME_CPU_SAMPLES", "200").env("GPUFLAME_OFF_CPU", "1")
}

/// Returns whether the Linux kernel refuses to sample waits, which these tests need.
fn is_refused(done: &Done) -> bool {
    let refused = done.ledger("GPUFLAME_OFF_CPU: perf_event_open: ");
    refused.first().inspect(|why| skip(&format!("the kernel refuses samples of waits: {why}"))).is_some()
}

/// Returns one Python interpreter for each Python version.
fn one_of_each_version() -> Vec<PathBuf> {
    let by_version: BTreeMap<_, _> = known().into_iter().rev().collect();
    by_version.into_values().collect()
}

/// Returns the name of the Python function in a frame `Class.name (file:line)`. Since Python 3.11 gpuflame shows
/// qualified names.
fn function(frame: &str) -> String {
    let name = frame.split(" (").next().unwrap_or_default();
    name.rsplit('.').next().unwrap_or_default().to_owned()
}

/// Returns the sampled nanoseconds for each innermost Python function, and the nanoseconds of stacks whose Python
/// frames gpuflame did not read.
fn by_function(stacks: &[(Vec<String>, u64)]) -> (BTreeMap<String, u64>, u64) {
    let (mut functions, mut not_read) = (BTreeMap::new(), 0);
    for (frames, nanos) in stacks {
        match python_frames(frames).last() {
            _ if frames.iter().any(|frame| frame == NOT_READ) => not_read += nanos,
            Some(frame) => *functions.entry(function(frame)).or_default() += nanos,
            None => {}
        }
    }
    (functions, not_read)
}

fn percent(part: u64, rest: u64) -> f64 {
    100.0 * part as f64 / (part + rest) as f64
}

/// Returns the names of the functions, sorted by time, with the longest time first. The first name is that of the
/// function with the most nanoseconds.
fn top(functions: &BTreeMap<String, u64>) -> Vec<&str> {
    let mut top: Vec<_> = functions.iter().collect();
    top.sort_by_key(|(_, nanos)| std::cmp::Reverse(**nanos));
    top.into_iter().map(|(name, _)| name.as_str()).collect()
}

#[test]
fn samples_of_python_programs_name_the_function_that_used_the_time() {
    for python in one_of_each_version() {
        for (what, culprits) in PROGRAMS {
            let done = sampled(&python, what, "0.8").ok();
            if is_refused(&done) {
                return;
            }
            let about = format!("{what} on {}\n{}", python.display(), done.stderr);
            let all = done.folded_file("out.cpu.folded");
            let (functions, not_read) = by_function(&all);
            let read: u64 = functions.values().sum();
            // Either of the two threads may get the GIL more often, so the culprit may be any of the first three
            // functions.
            let rows = if what == "held" { 3 } else { 1 };
            let is_named = top(&functions).into_iter().take(rows).any(|name| culprits.contains(&name));
            assert!(is_named, "{functions:?} {about}");
            // On a busy machine, gpuflame's thread may be too late to read Python frames. In this case, more samples
            // than usual have no Python frames.
            assert!(not_read < read / 2, "{not_read} of {read} ns {about}");
            for (frames, _) in all.iter().filter(|(frames, _)| !python_frames(frames).is_empty()) {
                let is_evaluator = |frame: &String| frame.starts_with("_PyEval_EvalFrameDefault");
                assert!(!frames.iter().any(is_evaluator), "{frames:?} {about}");
            }
            if what == "held" {
                let [line] = done.ledger("cpu samples")[..] else { panic!("{about}") };
                assert!(
                    line.contains(" of other threads while a launching thread waited for the GIL"),
                    "{about}"
                );
                // If a thread waits for the GIL, this time counts for the Python function that waits.
                let waits = by_function(&done.folded_file("out.off-cpu.folded")).0;
                assert!(["run", "works"].contains(&top(&waits)[0]), "{waits:?} {about}");
            }
            if what == "loader" {
                let idle = done.folded_file("out.idle.folded");
                // If other programs used the processor during idle time, there are no samples of that time. Idle time
                // without samples is shown under `[after`, a frame that names the calls before and after the gap.
                let is_sampled = |frames: &[String]| {
                    frames.last().unwrap().contains("host late")
                        && !frames.iter().any(|frame| frame.starts_with("[after"))
                };
                let first =
                    idle.iter().filter(|(frames, _)| is_sampled(frames)).max_by_key(|(_, nanos)| *nanos);
                let frames = python_frames(&first.unwrap().0);
                assert_eq!(function(frames.last().unwrap()), "decode", "{frames:?} {about}");
            }
        }
    }
}

#[test]
fn the_recording_has_the_delay_of_python_frames_and_draws_the_same_samples() {
    let python = one_of_each_version().remove(0);
    let done = sampled(&python, "loader", "0.5").ok();
    if is_refused(&done) {
        return;
    }
    let [line] = done.ledger("python frames in samples ")[..] else { panic!("{}", done.stderr) };
    let words = line.split([' ', ',', ';']);
    let numbers = words.filter_map(|word| word.parse::<f64>().ok());
    let [read, _not_read, middle, high] = numbers.collect::<Vec<_>>()[..] else { panic!("{line}") };
    assert!(read > 20.0 && middle > 0.0 && middle <= high && high < 500.0, "{line}");
    let info = crate::support::command::gpuflame(&done.folder, ["info", "out.gfr"]).ok();
    assert!(info.stdout.contains(line), "{line} is not in\n{}", info.stdout);
    let again = ["-q", "flamegraph", "out.gfr", "--view", "cpu", "-o", "-", "--format", "folded"];
    let ran = crate::support::command::gpuflame(&done.folder, again).ok();
    assert_eq!(ran.stdout, done.file("out.cpu.folded"));
}

#[test]
fn timer_samples_of_python_programs_have_python_functions() {
    let python = one_of_each_version().pop().unwrap();
    let done = sampled(&python, "loader", "2").arg("refused").ok();
    let (functions, not_read) = by_function(&done.folded_file("out.cpu.folded"));
    let read: u64 = functions.values().sum();
    assert!(done.ledger("cpu samples")[0].contains("taken by timer signals"), "{}", done.stderr);
    assert_eq!(top(&functions)[0], "decode", "{functions:?} {}", done.stderr);
    assert!(not_read < read, "{not_read} of {read} ns\n{}", done.stderr);
}

#[test]
fn at_most_32_threads_that_do_not_launch_are_sampled_and_the_others_are_counted() {
    let python = one_of_each_version().pop().unwrap();
    let done = sampled(&python, "held", "0.8").arg("crowded").ok();
    if is_refused(&done) {
        return;
    }
    // The line reports samples of 1 launching thread. The program has 41 other threads (the thread that holds the GIL,
    // and 40 more), and 9 of them are not sampled.
    let line = done.ledger("cpu samples")[0];
    assert!(line.contains(" on 1 threads, ") && line.ends_with("threads not sampled 9)"), "{line}");
}

/// Reading a stack of 900 calls takes more than 0.3 ms, and gpuflame spends at most a tenth of the time on reading. If
/// other programs use the processors, this program has few samples, and gpuflame may read the Python frames of all
/// samples. Therefore the test makes up to five tries.
#[test]
fn deep_stacks_are_not_read_for_every_sample_because_that_takes_too_long() {
    let python = one_of_each_version().pop().unwrap();
    for _ in 0..5 {
        let done = sampled(&python, "deep", "2").env("GPUFLAME_CPU_SAMPLES", "999").ok();
        if is_refused(&done) {
            return;
        }
        let (functions, not_read) = by_function(&done.folded_file("out.cpu.folded"));
        let read: u64 = functions.values().sum();
        if read + not_read >= 1_000_000_000 {
            return assert!(0 < read && read < not_read, "{read} and {not_read} ns {}", done.stderr);
        }
    }
    skip("other programs use the processors");
}

#[test]
fn no_python_frames_are_read_for_samples_in_a_sandbox_that_refuses_process_vm_readv() {
    let python = one_of_each_version().pop().unwrap();
    let done = sampled(&python, "loader", "0.8").arg("sandboxed").ok();
    if is_refused(&done) {
        return;
    }
    let [line] = done.ledger("python frames in samples ")[..] else { panic!("{}", done.stderr) };
    assert!(line.starts_with("0, ") && line.ends_with("refused by a sandbox: process_vm_readv"), "{line}");
    let (functions, _) = by_function(&done.folded_file("out.cpu.folded"));
    assert!(functions.is_empty(), "{functions:?} {}", done.stderr);
}

#[test]
fn python_that_is_loaded_after_the_first_launches_has_its_functions_in_samples() {
    let program = compile("tests/programs/finalizes.c", &["-O2"]);
    let asked = "import sys, sysconfig; print(sys.base_prefix); \
                 print(sysconfig.get_config_var('LIBDIR') + '/' + sysconfig.get_config_var('LDLIBRARY'))";
    for python in one_of_each_version() {
        let output = Command::new(&python).args(["-c", asked]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let (home, shared) = text.trim_end().split_once('\n').unwrap();
        if !shared.ends_with(".so") || !Path::new(shared).exists() {
            continue;
        }
        let run = Run::new(&program, Way::Injected).args([shared, "late"]);
        let run = run.arg(root().join("tests/programs/sampled.py")).args(["loader", "0.8"]).arg(library());
        let run = run.env("PYTHONHOME", home).env("GPUFLAME_FORMATS", "folded");
        let done = run.env("GPUFLAME_CPU_SAMPLES", "200").env("GPUFLAME_OFF_CPU", "1").ok();
        if is_refused(&done) {
            return;
        }
        let (functions, not_read) = by_function(&done.folded_file("out.cpu.folded"));
        let read: u64 = functions.values().sum();
        assert_eq!(top(&functions).first(), Some(&"decode"), "{functions:?} {}", done.stderr);
        assert!(not_read < read / 2, "{not_read} of {read} ns {}", done.stderr);
        assert!(done.ledger("cpu samples")[0].contains(" s on 1 threads"), "{}", done.stderr);
    }
}

/// Returns each function whose CPU time the program measures, with its share of that time in percent twice: as sampled
/// and as measured.
fn measured_shares(done: &Done) -> Vec<(String, f64, f64)> {
    let stacks = done.folded_file("out.cpu.folded");
    let nanos = |wanted: &str| -> u64 {
        let has = |frames: &[String]| python_frames(frames).iter().any(|frame| function(frame) == wanted);
        stacks.iter().filter(|(frames, _)| has(frames)).map(|(_, nanos)| nanos).sum()
    };
    let line = |line: &str| {
        line.rsplit_once(' ').map(|(name, nanos)| (name.to_owned(), nanos.parse::<f64>().unwrap()))
    };
    let measured: BTreeMap<String, f64> = done.stdout.lines().filter_map(line).collect();
    let (sampled_in_all, all) = (nanos("run") as f64, measured["all"]);
    let share = |(name, taken): (&String, &f64)| {
        (name.clone(), 100.0 * nanos(name) as f64 / sampled_in_all, 100.0 * taken / all)
    };
    measured.iter().filter(|(name, _)| *name != "all").map(share).collect()
}

#[test]
fn shares_by_function_equal_those_of_the_cpu_time_that_the_program_measures() {
    let python = one_of_each_version().remove(2);
    for (what, functions) in [("loader", 3), ("comprehensions", 3), ("extension", 3), ("held", 3)] {
        let done = sampled(&python, what, "5").arg("measured").env("GPUFLAME_CPU_SAMPLES", "999").ok();
        if is_refused(&done) {
            return;
        }
        let shares = measured_shares(&done);
        assert_eq!(shares.len(), functions, "{}", done.stdout);
        eprintln!("{what}: {shares:.1?} by samples and as measured");
        for (name, by_samples, measured) in shares {
            // A program that gets half of a processor has 2,000 samples, so a share has a standard deviation of 1.1
            // percentage points.
            assert!((by_samples - measured).abs() < 4.0, "{name}: {by_samples} {measured} {}", done.stderr);
        }
    }
}

/// Returns the share of samples of each innermost function, in percent.
fn shares(functions: &BTreeMap<String, u64>) -> BTreeMap<String, f64> {
    let all: u64 = functions.values().sum();
    functions.iter().map(|(name, count)| (name.clone(), 100.0 * *count as f64 / all as f64)).collect()
}

/// Runs py-spy on a running process, and returns the number of py-spy's samples for each innermost function. py-spy
/// samples all threads that are not idle. With the option `--gil`, py-spy samples only the thread that holds the GIL.
fn seen_by_py_spy(spy: &str, process: u32, flags: &[&str], folder: &Path) -> BTreeMap<String, u64> {
    let file = folder.join("spy.txt");
    let mut command = Command::new(spy);
    command.args(["record", "-r", "200", "-f", "raw", "-d", "30", "--pid", &process.to_string(), "-o"]);
    let ran = command.arg(&file).args(flags).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let mut functions = BTreeMap::new();
    for line in std::fs::read_to_string(file).unwrap().lines() {
        let (stack, count) = line.rsplit_once(' ').unwrap();
        let leaf = stack.rsplit(';').next().unwrap();
        *functions.entry(function(leaf)).or_default() += count.parse::<u64>().unwrap();
    }
    functions
}

/// Runs a program for 33 s, and py-spy on it for 30 s. Returns `None` if other programs used the processors for part of
/// the time, because py-spy's shares of wall time are then not shares of CPU time.
fn shares_by_py_spy(spy: &str, python: &Path, what: &str) -> Option<BTreeMap<String, f64>> {
    let run = sampled(python, what, "33").env("GPUFLAME_CPU_SAMPLES", "0").env("GPUFLAME_OFF_CPU", "0");
    let (mut command, folder) = run.into_command();
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    std::thread::sleep(Duration::from_secs(1));
    // py-spy does not always count a thread that waits for the GIL as idle, because such a thread wakes up repeatedly.
    let flags: &[&str] = if what == "held" { &["--gil"] } else { &[] };
    let found = seen_by_py_spy(spy, child.id(), flags, &folder);
    let done = Done::from_output(child.wait_with_output().unwrap(), folder);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let all = done.stdout.lines().find_map(|line| line.strip_prefix("all ")).unwrap();
    (all.parse::<f64>().unwrap() > 0.95 * 33e9).then(|| shares(&found))
}

/// gpuflame and py-spy sample separate runs of the same program, because two profilers at the same time would slow each
/// other down. With 6,000 samples, a share has a standard deviation of 0.65 percentage points or less.
#[test]
#[ignore = "a minute for each of five programs; .ci/long runs it"]
fn shares_by_function_are_within_3_points_of_py_spys() {
    let Some(spy) = py_spy() else { return };
    let python = std::env::var_os("GPUFLAME_TEST_PYTHON").map(PathBuf::from);
    let python = python.unwrap_or_else(|| one_of_each_version().remove(2));
    let mut far = Vec::new();
    for (what, _) in PROGRAMS {
        let done = sampled(&python, what, "30").ok();
        if is_refused(&done) {
            return;
        }
        let Some(theirs) = shares_by_py_spy(&spy, &python, what) else {
            skip(&format!("{what}: other programs use the processors"));
            continue;
        };
        let (ours, not_read) = by_function(&done.folded_file("out.cpu.folded"));
        let read: u64 = ours.values().sum();
        let line = done.ledger("python frames in samples ")[0];
        eprintln!("{what}: {:.1} % not read; {line}", percent(not_read, read));
        let ours = shares(&ours);
        let names: BTreeSet<_> = ours.keys().chain(theirs.keys()).collect();
        for name in names {
            let [our, their] = [&ours, &theirs].map(|shares| shares.get(name).copied().unwrap_or(0.0));
            if our.max(their) >= 0.5 {
                eprintln!("    {name}: {our:.1} %, py-spy {their:.1} %");
            }
            if (our - their).abs() > 3.0 {
                far.push(format!("{what} {name}: {our:.1} %, py-spy {their:.1} %"));
            }
        }
    }
    assert!(far.is_empty(), "{far:#?}");
}
