//! Watches programs that run on the simulated CUDA stack, from outside their process.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use support::{
    can_probe, command, compile, crosscheck, cuda, finish, gpuflame, record, run, skip, until_ready,
};

/// Returns the frames in a line from the frame of `main` or of the thread's function up to the leaf. The C library's
/// frames below this frame are omitted.
fn own(frames: &str) -> &str {
    let at = [";main;", ";worker;"].iter().filter_map(|root| frames.find(root)).min();
    at.map_or(frames, |at| &frames[at + 1..])
}

/// Returns the four counts in the line `crosscheck launches=N probe=N inprocess=N agree=N`.
fn counts(stdout: &str) -> [u64; 4] {
    let line =
        stdout.lines().rfind(|line| line.starts_with("crosscheck ")).unwrap_or_else(|| panic!("{stdout}"));
    let numbers: Vec<u64> = line
        .split_whitespace()
        .skip(1)
        .map(|word| word.split_once('=').unwrap().1.parse().unwrap())
        .collect();
    numbers.try_into().unwrap()
}

#[test]
fn every_launch_is_recorded_with_its_thread_and_stack() {
    if !can_probe() {
        return;
    }
    let ran = record(&compile("tests/programs/threads.c", &[]), &["4", "3"]);
    let lines = ran.lines();
    assert_eq!(lines.len(), 4 * 3 * 2, "{ran:?}");
    let threads: BTreeSet<&str> = lines.iter().map(|line| &*line[3]).collect();
    assert_eq!(threads.len(), 4 * 3);
    for line in &lines {
        assert_eq!((&*line[1], own(&line[5])), ("threads", "worker;step_d700;cudaLaunchKernel"));
        assert_ne!(line[2], line[3], "the launch is made by a worker thread");
    }
    assert!(ran.stderr.contains("24 launches + 24 nested; 24 written"), "{}", ran.stderr);
    assert!(ran.stderr.contains("dropped 0 calls, 0 ids, 0 mappings"), "{}", ran.stderr);
}

#[test]
fn a_runtime_opened_late_is_probed_before_its_first_call() {
    if !can_probe() {
        return;
    }
    let ran = record(&compile("bpf-optional/tests/programs/late.c", &[]), &["libcudart.so.13", "5"]);
    assert_eq!(ran.stdout, "failed 5\n");
    assert_eq!(ran.lines().len(), 5, "{ran:?}");
    assert_eq!(own(&ran.lines()[0][5]), "main;open_late;cudaLaunchKernel");
}

#[test]
fn a_running_process_is_recorded_after_attaching() {
    if !can_probe() {
        return;
    }
    let late = compile("bpf-optional/tests/programs/late.c", &[]);
    let mut program = Command::new(late);
    program.args(["libcudart.so.13", "7", "wait"]).env("LD_LIBRARY_PATH", cuda());
    let mut program = program.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let pid = program.id().to_string();
    let (mut watching, folder) = command(["record", "-E", "-o", "cpu.txt", "--pid", &pid]);
    let watching = watching.stderr(Stdio::piped()).spawn().unwrap();
    until_ready(&watching);
    program.stdin.take().unwrap().write_all(b"!").unwrap();
    assert!(program.wait().unwrap().success());
    let output = watching.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = fs::read_to_string(folder.join("cpu.txt")).unwrap();
    assert_eq!(text.lines().filter(|line| line.contains(&format!(" {pid} {pid} "))).count(), 7, "{text}");
}

#[test]
fn child_processes_and_executed_programs_are_recorded() {
    if !can_probe() {
        return;
    }
    let program = compile("tests/programs/threads.c", &[]);
    let script = format!("{0} 1 1; {0} 1 2 & wait", program.display());
    let ran = record("/bin/sh".as_ref(), &["-c", &script]);
    let mut processes: BTreeMap<String, usize> = BTreeMap::new();
    ran.lines().iter().for_each(|line| *processes.entry(line[2].clone()).or_default() += 1);
    let mut counts: Vec<usize> = processes.into_values().collect();
    counts.sort_unstable();
    assert_eq!(counts, [2, 4], "{ran:?}");
}

#[test]
fn processes_in_other_namespaces_have_pids_of_the_recorders_namespace() {
    if !can_probe() {
        return;
    }
    let program = compile("tests/programs/threads.c", &[]);
    let ran = record("unshare".as_ref(), &["--fork", "--pid", program.to_str().unwrap(), "1", "1"]);
    let lines = ran.lines();
    assert_eq!(lines.len(), 2, "{ran:?}");
    // In its own PID namespace, the process has the id 1.
    assert!(lines.iter().all(|line| line[2] != "1" && line[2] != "0"), "{lines:?}");
}

#[test]
fn uprobe_records_another_function_and_kernel_stacks_are_placed_on_top() {
    if !can_probe() {
        return;
    }
    let program = compile("tests/programs/threads.c", &[]);
    let words =
        ["record", "-o", "cpu.txt", "--kernel-stacks", "--uprobe", "threads:worker", "--"].map(OsStr::new);
    let ran = run(words.into_iter().chain([program.as_os_str(), OsStr::new("3")]));
    assert_eq!(ran.code, 0, "{ran:?}");
    let text = fs::read_to_string(ran.folder.join("cpu.txt")).unwrap();
    let line =
        text.lines().find(|line| line.contains(";worker;") && !line.contains("cudaLaunch")).expect(&text);
    assert!(line.contains("_[k];") && line.ends_with(" 3"), "{text}");
}

#[test]
fn lines_end_in_the_correlation_id_if_the_library_is_injected() {
    if !can_probe() {
        return;
    }
    let program = compile("tests/programs/threads.c", &[]);
    let words = ["record", "-E", "-o", "cpu.txt", "--"].map(OsStr::new);
    let (mut command, folder) = command(words.into_iter().chain([program.as_os_str(), OsStr::new("2")]));
    command.env("CUDA_INJECTION64_PATH", gpuflame()).env("GPUFLAME_OUTPUT", "out");
    let ran = finish(command, folder);
    let ids: BTreeSet<String> = ran
        .lines()
        .iter()
        .map(|line| line[5].rsplit_once(";[correlation ").expect("an id").1.trim_end_matches(']').to_owned())
        .collect();
    assert_eq!(ids, ["1", "2", "3", "4"].map(str::to_owned).into());
}

/// Returns the number of launches that the simulated GPU received.
fn truth(folder: &std::path::Path) -> u64 {
    let text = fs::read_to_string(folder.join("truth.json")).unwrap();
    text.lines().filter(|line| line.contains("\"kind\":\"kernel\"")).count() as u64
}

#[test]
fn both_accounts_of_the_c_example_agree_with_the_truth() {
    if !can_probe() {
        return;
    }
    let program = compile("examples/llm_inference.c", &[]);
    let library = gpuflame();
    let words = ["crosscheck", "--library"].map(OsStr::new).into_iter().chain([library.as_os_str()]);
    let rest = [OsStr::new("--"), program.as_os_str(), OsStr::new("--tokens"), OsStr::new("8")];
    let (mut command, folder) = command(words.chain(rest));
    command.env("GPUSIM_TRUTH", "truth.json");
    let ran = finish(command, folder);
    assert_eq!(ran.code, 0, "{ran:?}");
    let truth = truth(&ran.folder);
    assert!(truth > 100);
    assert_eq!(counts(&ran.stdout), [truth; 4], "{}", ran.stdout);
    let same = ran.stdout.lines().find(|line| line.contains("stacks the same from main to call")).unwrap();
    assert!(same.ends_with(&format!(" {truth}")), "{}", ran.stdout);
}

/// Returns the path of the demo program, if it was built.
fn demo() -> Option<PathBuf> {
    let demo = std::env::current_exe().unwrap().ancestors().nth(2).unwrap().join("examples/demo");
    if !demo.exists() {
        skip("the demo is not built; run `cargo build --example demo`");
        return None;
    }
    Some(demo)
}

#[test]
fn both_accounts_of_the_demo_agree_with_the_truth() {
    if !can_probe() {
        return;
    }
    let (library, Some(demo)) = (gpuflame(), demo()) else { return };
    let words = ["crosscheck", "--library"].map(OsStr::new).into_iter().chain([library.as_os_str()]);
    let (mut command, folder) =
        command(words.chain([OsStr::new("--"), demo.as_os_str(), OsStr::new("workload")]));
    command.env("GPUSIM_TRUTH", "truth.json");
    let ran = finish(command, folder);
    assert_eq!(ran.code, 0, "{ran:?}");
    let truth = truth(&ran.folder);
    assert!(truth > 100);
    assert_eq!(counts(&ran.stdout), [truth; 4], "{}", ran.stdout);
}

#[test]
fn both_accounts_of_four_threads_agree_and_nothing_is_dropped() {
    if !can_probe() {
        return;
    }
    let program = compile("tests/programs/load.c", &[]);
    let ran = crosscheck(&[], &program, &["--threads", "4", "--launches", "100000"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert_eq!(counts(&ran.stdout), [100_000; 4], "{}", ran.stdout);
    let dropped = ran.stdout.lines().find(|line| line.contains("buffer was full")).unwrap();
    assert!(dropped.ends_with(" 0"), "{dropped}");
    let same = ran.stdout.lines().find(|line| line.contains("stacks the same from main to call")).unwrap();
    assert!(same.ends_with(" 100000"), "{same}");
}

#[test]
fn two_swapped_launches_are_detected() {
    if !can_probe() {
        return;
    }
    let program = compile("tests/programs/load.c", &[]);
    let ran = crosscheck(&["--swap-two"], &program, &["--threads", "2", "--launches", "1000"]);
    assert_eq!((ran.code, counts(&ran.stdout)), (1, [1000, 1000, 1000, 998]), "{ran:?}");
}

/// In debug builds only, a setting makes the library swap two launches.
#[test]
fn a_library_that_swaps_two_launches_is_detected() {
    if !can_probe() || !cfg!(debug_assertions) {
        return;
    }
    let program = compile("tests/programs/load.c", &[]);
    let library = gpuflame();
    let words = ["crosscheck", "--library"].map(OsStr::new).into_iter().chain([library.as_os_str()]);
    let rest = ["--threads", "2", "--launches", "1000"].map(OsStr::new);
    let rest = [OsStr::new("--"), program.as_os_str()].into_iter().chain(rest);
    let (mut command, folder) = command(words.chain(rest));
    command.env("GPUFLAME_TEST_MIX_UP", "1");
    let ran = finish(command, folder);
    let [launches, probe, inside, agree] = counts(&ran.stdout);
    assert_eq!((ran.code, [launches, probe, inside]), (1, [1000; 3]), "{ran:?}");
    // One of the two launches that were swapped may be a copy. `crosscheck` does not compare the copies that the
    // program makes.
    assert!((998..1000).contains(&agree), "{}", ran.stdout);
}

#[test]
fn crosscheck_without_frame_pointers_reports_incomplete_stacks_and_no_contradiction() {
    if !can_probe() {
        return;
    }
    let program = compile("examples/llm_inference.c", &["-fomit-frame-pointer"]);
    let ran = crosscheck(&[], &program, &["--tokens", "4"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    let [launches, _, _, agree] = counts(&ran.stdout);
    assert_eq!(launches, agree);
    let same = ran.stdout.lines().find(|line| line.contains("stacks the same from main to call")).unwrap();
    assert!(!same.ends_with(&format!(" {launches}")), "{}", ran.stdout);
}

#[test]
fn a_run_without_a_device_is_not_compared() {
    if !can_probe() {
        return;
    }
    let program = compile("bpf-optional/tests/programs/late.c", &[]);
    let (mut command, folder) = {
        let library = gpuflame();
        let words = ["crosscheck", "--library"].map(OsStr::new).into_iter().chain([library.as_os_str()]);
        let rest = [OsStr::new("--"), program.as_os_str(), OsStr::new("libcudart.so.13"), OsStr::new("3")];
        command(words.chain(rest))
    };
    command.env("GPUSIM_NDEV", "0");
    let ran = finish(command, folder);
    assert_eq!((ran.code, counts(&ran.stdout)), (2, [3, 3, 0, 0]), "{ran:?}");
    assert!(ran.stderr.contains("no device, or no callbacks"), "{}", ran.stderr);
}
