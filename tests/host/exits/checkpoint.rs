//! Tests the checkpoint of a process that dies without running its exit handlers. The checkpoint holds everything
//! recorded until the last write, and every subcommand of `gpuflame` can read it.
//!
//! The program, `tests/programs/ending.c`, launches 1,100 kernels of 1,000 ns, and ends when a file or a signal from
//! the test tells it to.

use std::fs::{self, File};
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use gpuflame_model::record::Reader;
use gpuflame_offline::run::{self, ReadOptions};

use crate::faults::bad_input::Disk;
use crate::running::{FILE, Running, is_finished, send};
use crate::support::command::{Ran, gpuflame as command};
use crate::support::{Done, Run, Way, compile, scratch};

fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| compile("tests/programs/ending.c", &["-O2", "-g0"]))
}

fn left(how: &str) -> Run {
    Run::new(program(), Way::Injected).args(["left", how]).env("GPUFLAME_CHECKPOINT", "0.05")
}

/// Waits until the checkpoint contains all 1,100 launches, then ends the program in the way `how`.
fn ends(how: &str) -> Done {
    let mut running = Running::of(left(how));
    running.until(1100);
    if how == "kill" {
        return running.signalled(libc::SIGKILL);
    }
    running.tell("go");
    running.ended()
}

fn names(folder: &Path) -> Vec<String> {
    let entries =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = entries.filter(|name| name.starts_with("out")).collect();
    names.sort();
    names
}

fn cli(folder: &Path, args: &[&str]) -> Ran {
    command(folder, args)
}

/// Asserts that `recover` writes files that contain all launches.
fn assert_recovered(done: &Done, launches: u64) {
    let told = cli(&done.folder, &["recover", FILE]).ok().stderr;
    assert!(told.contains("its process ended without its exit hooks, after "), "{told}");
    assert!(told.contains("and 0 activities that CUPTI still held, are missing"), "{told}");
    let drawn = ["out.csv", "out.folded", "out.gfr", "out.idle.folded", "out.idle.svg"];
    assert_eq!(names(&done.folder), [&drawn[..], &["out.set.json", "out.svg"]].concat());
    let set: serde_json::Value = serde_json::from_str(&done.file("out.set.json")).unwrap();
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    assert_eq!(
        (set["host"].as_str(), set["launches"].as_u64()),
        (Some(host.trim()), Some(launches)),
        "{set}"
    );
    let folded = done.folded();
    let ours = folded.iter().filter(|(frames, _)| frames.contains(&"launch".to_owned()));
    assert_eq!(ours.map(|(_, nanos)| nanos).sum::<u64>(), 1000 * launches, "{folded:?}");
    assert!(
        folded.iter().all(|(frames, _)| frames.last().unwrap() == "[GPU_Kernel]step_d1000"),
        "{folded:?}"
    );
    assert!(done.file("out.csv").contains(&format!("step_d1000,0,{launches},")), "{}", done.file("out.csv"));
}

#[test]
fn a_process_that_dies_without_exit_handlers_leaves_all_launches_in_its_checkpoint() {
    let ways = [
        ("kill", None, Some(libc::SIGKILL)),
        ("_exit", Some(7), None),
        ("abort", None, Some(libc::SIGABRT)),
        ("fault", None, Some(libc::SIGSEGV)),
        ("exec", Some(0), None),
        ("fork", None, Some(libc::SIGABRT)),
        ("daemon", Some(0), None),
    ];
    for (how, code, signal) in ways {
        let done = ends(how);
        assert_eq!((done.code, done.signal), (code, signal), "{how}: {}", done.stderr);
        assert_eq!(done.stderr, "", "{how}");
        assert_eq!(names(&done.folder), [FILE], "{how}");
        assert_recovered(&done, 1100);
    }
}

/// The default action of some of these signals writes a core dump. If the program has installed its own action for a
/// signal, gpuflame leaves that action in place.
#[test]
fn unhandled_signals_leave_a_complete_checkpoint() {
    let signals = [
        libc::SIGPIPE,
        libc::SIGALRM,
        libc::SIGXCPU,
        libc::SIGUSR1,
        libc::SIGUSR2,
        libc::SIGQUIT,
        libc::SIGSYS,
    ];
    for signal in signals {
        let mut running = Running::of(left("kill"));
        running.until(1100);
        let done = running.signalled(signal);
        assert_eq!((done.code, done.signal, done.stderr.as_str()), (None, Some(signal), ""));
        assert_eq!(names(&done.folder), [FILE], "{signal}");
        assert_recovered(&done, 1100);
    }
}

#[test]
fn an_uncaught_cpp_exception_leaves_a_complete_checkpoint() {
    let program = compile("tests/programs/throwing.cpp", &["-O2", "-g0"]);
    let mut running = Running::of(Run::new(&program, Way::Injected).env("GPUFLAME_CHECKPOINT", "0.05"));
    running.until(1100);
    running.tell("go");
    let done = running.ended();
    assert_eq!(done.signal, Some(libc::SIGABRT), "{}", done.stderr);
    assert!(done.stderr.contains("what():  thrown") && !done.stderr.contains("gpuflame"), "{}", done.stderr);
    assert_eq!(names(&done.folder), [FILE]);
    assert_recovered(&done, 1100);
}

/// gpuflame reads the names of generated code from the perf map while the process lives, because these names are not
/// available when the process has ended. If the address of a function has since been reused for another function, the
/// function gets no name.
#[test]
fn recovered_generated_code_is_named_from_the_perf_map_of_the_killed_process() {
    let program = compile("tests/programs/generated.c", &["-O2", "-fomit-frame-pointer"]);
    for (more, outer) in [(false, "outer_jit"), (true, "[unknown]+0x9")] {
        let run = Run::new(&program, Way::Injected).arg("kept").env("GPUFLAME_CHECKPOINT", "0.05");
        let mut running = Running::of(run);
        running.until(1);
        if more {
            running.tell("more");
            running.until(2);
        }
        let map = format!("/tmp/perf-{}.map", running.process());
        let done = running.signalled(libc::SIGKILL);
        fs::remove_file(map).unwrap();
        cli(&done.folder, &["recover", FILE]).ok();
        let [(frames, nanos)] = &done.folded()[..] else { panic!("{:?}", done.folded()) };
        assert_eq!(*nanos, 500 * (1 + u64::from(more)));
        assert_eq!(frames[..6], ["main", "run", outer, "step", "inner jit", "leaf"], "{more}");
    }
}

/// gpuflame must not map its output files into memory, because the file server may become unreachable. In that case,
/// access to a mapped page would raise SIGBUS in the program.
#[test]
fn output_files_are_not_memory_mapped_while_they_are_written() {
    for formats in ["svg", "gfr", "chrome", "cupti-text"] {
        let mut running = Running::of(left("exit").env("GPUFLAME_FORMATS", formats));
        running.until(1100);
        let maps = fs::read_to_string(format!("/proc/{}/maps", running.process())).unwrap();
        assert!(maps.contains("libgpuflame.so"), "{maps}");
        let mapped = maps.lines().find(|line| line.contains(running.folder.to_str().unwrap()));
        assert!(mapped.is_none_or(|line| line.ends_with("/launched")), "{formats}: {mapped:?}");
        running.tell("go");
        assert_eq!(running.ended().code, Some(7));
    }
}

/// Returns the times at which the recording starts and ends.
fn moments(folder: &Path) -> Option<(u64, u64)> {
    let mut reader = Reader::new(BufReader::new(File::open(folder.join(FILE)).ok()?)).ok()?;
    while reader.next_row().ok()?.is_some() {}
    reader.mark().map(|mark| (mark.began.0, mark.time.0))
}

/// The first checkpoint is written early, because a worker may call `_exit` soon after its first launch. In this test,
/// the second checkpoint is due only after 1,000 s.
#[test]
fn the_first_checkpoint_is_written_100_ms_after_the_first_launch() {
    let is_soon = |_| {
        let mut running = Running::of(left("exit").env("GPUFLAME_CHECKPOINT", "1000"));
        running.wait_for(|running| (moments(&running.folder).is_some(), "no file".to_owned()));
        let (began, time) = moments(&running.folder).unwrap();
        assert!(time - began >= 100_000_000, "{} ns", time - began);
        running.tell("go");
        assert_eq!(running.ended().code, Some(7));
        time - began < 1_500_000_000
    };
    // On a busy machine a checkpoint may be delayed, so the test makes up to 20 tries.
    assert!((0..20).any(is_soon));
}

/// Like a worker of `torch.compile`, the process calls CUDA only to read its version.
#[test]
fn a_process_that_launches_nothing_writes_no_file() {
    let all = "svg,folded,idle,csv,wait,alloc,activities,chrome,cupti-text,gfr";
    for formats in ["svg,folded", all] {
        for (window, how) in [("1", "exit"), ("1", "SIGKILL"), ("1", "SIGTERM"), ("0", "exit")] {
            let run =
                Run::new(program(), Way::Injected).args(["idle", "exit"]).env("GPUFLAME_CHECKPOINT", "0.05");
            let run = run.env("GPUFLAME_FORMATS", formats).env("GPUFLAME_ENABLED", window);
            let mut running = Running::of(run);
            running.wait_for(|running| (running.folder.join("ready").exists(), "not ready".to_owned()));
            // The test waits 500 ms, which is the length of ten checkpoint intervals.
            std::thread::sleep(Duration::from_millis(500));
            assert_eq!(names(&running.folder), [""; 0], "{formats}, {how}: while it runs");
            let done = match how {
                "SIGKILL" => running.signalled(libc::SIGKILL),
                "SIGTERM" => running.signalled(libc::SIGTERM),
                _ => {
                    running.tell("go");
                    running.ended()
                }
            };
            assert_eq!(names(&done.folder), [""; 0], "{formats}, {how}: {}", done.stderr);
            if how != "SIGKILL" {
                assert_eq!(done.sum("launches").0, 0);
                assert!(
                    done.stderr.contains("nothing was launched, and no file is written"),
                    "{}",
                    done.stderr
                );
            }
        }
    }
}

#[test]
fn the_sums_replace_the_checkpoint_after_exit_and_after_sigterm() {
    let done = ends("exit");
    assert_eq!((done.code, done.sum("launches").0), (Some(7), 1100), "{}", done.stderr);
    let drawn = ["out.csv", "out.folded", "out.gfr", "out.idle.folded", "out.idle.svg"];
    let expected = [&drawn[..], &["out.set.json", "out.svg"]].concat();
    assert_eq!(names(&done.folder), expected);
    assert!(is_finished(&done.folder.join(FILE)));
    let mut running = Running::of(left("exit"));
    running.until(1100);
    let done = running.signalled(libc::SIGTERM);
    assert_eq!((done.signal, done.sum("launches").0), (Some(libc::SIGTERM), 1100), "{}", done.stderr);
    assert_eq!(names(&done.folder), expected);
}

#[test]
fn info_and_recover_distinguish_a_running_process_from_a_dead_one() {
    let mut running = Running::of(left("abort"));
    running.until(1100);
    let info = cli(&running.folder, &["info", FILE]).ok();
    assert!(
        info.stderr.contains("out.gfr: its process is still running; this is its state after "),
        "{}",
        info.stderr
    );
    cli(&running.folder, &["-q", "recover", FILE]).fails(1, &["its process is still running", "--alive"]);
    let done = running.signalled(libc::SIGKILL);
    assert!(cli(&done.folder, &["info", FILE]).ok().stderr.contains("ended without its exit hooks"));
}

#[test]
fn a_process_counts_as_running_while_its_exit_writes_files() {
    for formats in ["svg", "svg,gfr"] {
        let mut running = Running::of(in_trouble(left("exit").env("GPUFLAME_FORMATS", formats), "later"));
        running.until(1100);
        hold_outputs(&running);
        running.tell("go");
        wait_until_it_writes(&mut running);
        // If the program did not wait for the outputs, it would have ended within 200 ms.
        std::thread::sleep(Duration::from_millis(200));
        let info = cli(&running.folder, &["info", FILE]).ok();
        assert!(info.stderr.contains("its process is still running"), "{formats}: {}", info.stderr);
        let_outputs_go(&running.folder);
        assert_eq!(running.ended().code, Some(7));
    }
}

/// A job scheduler ends a job with SIGTERM. If the job takes too long to end, the scheduler sends SIGKILL.
#[test]
fn a_process_killed_while_writing_its_outputs_leaves_a_complete_checkpoint() {
    for how in ["SIGTERM", "exit"] {
        // The next periodic checkpoint is due only after 1,000 s, so it does not help.
        let run = Run::new(program(), Way::Injected).args(["left", "exit"]);
        let mut running = Running::of(in_trouble(run.env("GPUFLAME_CHECKPOINT", "1000"), "later"));
        running.wait_for(|running| (running.folder.join(FILE).exists(), "no file".to_owned()));
        running.tell("more");
        running.wait_for(|running| (!running.folder.join("more").exists(), "it is not taken".to_owned()));
        running.wait_for(|running| {
            let launched = fs::read(running.folder.join("launched")).unwrap();
            // The file `launched` contains one launch counter per thread. The second counter belongs to the main
            // thread, which launches 1,000 times.
            let launched = u64::from_ne_bytes(launched[8..16].try_into().unwrap());
            (launched == 1001, format!("{launched} launches"))
        });
        hold_outputs(&running);
        match how {
            "SIGTERM" => send(running.process(), libc::SIGTERM),
            _ => running.tell("go"),
        }
        wait_until_it_writes(&mut running);
        let done = running.signalled(libc::SIGKILL);
        let_outputs_go(&done.folder);
        assert_eq!((done.signal, names(&done.folder)), (Some(libc::SIGKILL), vec![FILE.to_owned()]), "{how}");
        assert_recovered(&done, 1101);
    }
}

#[test]
fn recover_works_after_a_kill_between_outputs_and_removes_the_partial_set_file() {
    let mut running = Running::of(in_trouble(left("exit"), "later").env("HELD", ".svg"));
    running.until(1100);
    hold_outputs(&running);
    running.tell("go");
    wait_until_it_writes(&mut running);
    let done = running.signalled(libc::SIGKILL);
    let_outputs_go(&done.folder);
    let left: Vec<_> = names(&done.folder).into_iter().filter(|name| name != "out.folded").collect();
    assert_eq!(left, [FILE, "out.set.json.part"]);
    cli(&done.folder, &["recover", FILE]).ok();
    assert!(!done.folder.join("out.set.json.part").exists());
    let name = if done.folder.join("out.folded").exists() { "out.1.folded" } else { "out.folded" };
    assert_eq!(launches_in(&done.folder, name), 1100);
}

fn launches_in(folder: &Path, name: &str) -> u64 {
    Done::from_folder(folder).folded_file(name).iter().map(|(_, nanos)| nanos / 1000).sum()
}

#[test]
fn recover_keeps_existing_files_and_writes_numbered_ones() {
    let done = ends("kill");
    fs::write(done.folder.join("out.svg"), "cut short").unwrap();
    cli(&done.folder, &["recover", FILE]).ok();
    assert_eq!(done.file("out.svg"), "cut short");
    let drawn =
        ["out.1.csv", "out.1.folded", "out.1.idle.folded", "out.1.idle.svg", "out.1.set.json", "out.1.svg"];
    assert_eq!(names(&done.folder), [&drawn[..], &["out.gfr", "out.svg"]].concat());
    assert_eq!(launches_in(&done.folder, "out.1.folded"), 1100);
    // If `recover` runs a second time, this is harmless.
    cli(&done.folder, &["recover", FILE]).ok();
    assert_eq!(launches_in(&done.folder, "out.2.folded"), 1100);
}

/// When the second run exits, it does not overwrite the first run's checkpoint.
#[test]
fn a_run_does_not_overwrite_the_checkpoint_of_an_earlier_killed_run() {
    for how in ["exec", "another run"] {
        let folder = match how {
            "exec" => {
                let done = ends("exec_again");
                assert_eq!(done.code, Some(7), "{}", done.stderr);
                done.folder
            }
            _ => {
                let folder = ends("kill").folder;
                let run = Run::new(program(), Way::Injected).args(["quick"]).in_folder(&folder);
                assert_eq!(run.done().code, Some(7));
                folder
            }
        };
        assert_eq!(launches_in(&folder, "out.1.folded"), 100, "{how}");
        cli(&folder, &["recover", FILE]).ok();
        assert_eq!(launches_in(&folder, "out.folded"), 1100, "{how}");
    }
}

#[test]
fn a_checkpoint_grows_only_by_changes_and_is_closed_when_idle() {
    let mut running = Running::of(left("abort"));
    running.until(1100);
    let path = running.folder.join(FILE);
    let length = |path: &Path| fs::metadata(path).unwrap().len();
    // The last activity may arrive after the last checkpoint was written. If the checkpoint file stays unchanged for
    // six checkpoint intervals, the test takes it as complete.
    let (mut before, mut since) = (0, Instant::now());
    running.wait_for(|_| {
        let now = length(&path);
        if now != before {
            (before, since) = (now, Instant::now());
        }
        (since.elapsed() > Duration::from_millis(300), "it keeps growing".to_owned())
    });
    running.tell("more");
    running.until(1101);
    let holds_it = |descriptor: std::io::Result<fs::DirEntry>| {
        descriptor.is_ok_and(|it| fs::read_link(it.path()).is_ok_and(|link| link.ends_with(FILE)))
    };
    running.wait_for(|running| {
        let descriptors = fs::read_dir(format!("/proc/{}/fd", running.process())).unwrap();
        (!descriptors.into_iter().any(holds_it), "it is kept open".to_owned())
    });
    let more = length(&path) - before;
    assert!((1..=before / 4).contains(&more), "{more} of {before}");
    assert_recovered(&running.signalled(libc::SIGKILL), 1101);
}

#[test]
fn a_deleted_checkpoint_is_written_again_in_full() {
    let mut running = Running::of(left("abort"));
    running.until(1100);
    fs::remove_file(running.folder.join(FILE)).unwrap();
    running.tell("more");
    running.until(1101);
    assert_recovered(&running.signalled(libc::SIGKILL), 1101);
}

#[test]
fn an_oversized_checkpoint_is_rewritten() {
    let mut running = Running::of(left("abort").env("GPUFLAME_CHECKPOINT_MAX", "0"));
    let path = running.folder.join(FILE);
    let (mut lengths, mut launches) = (Vec::new(), 1100);
    while lengths.is_sorted() {
        running.until(launches);
        lengths.push(fs::metadata(&path).unwrap().len());
        running.tell("more");
        launches += 1;
        assert!(lengths.len() < 2000, "{lengths:?}");
    }
    // Between two complete rewrites, the checkpoint file may double in size. The limit on the file's size allows for
    // one more append, because the test reads the size only from time to time.
    let (anew, most) = (lengths.last().unwrap(), lengths.iter().max().unwrap());
    let step = lengths.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).max().unwrap();
    assert!(*most <= 2 * anew + step, "{lengths:?}");
    running.until(launches);
    assert_recovered(&running.signalled(libc::SIGKILL), launches);
}

#[test]
fn a_requested_recording_serves_as_the_checkpoint_and_is_complete_at_exit() {
    let mut running = Running::of(left("exit").env("GPUFLAME_FORMATS", "folded,gfr"));
    running.until(1100);
    running.tell("go");
    let done = running.ended();
    assert_eq!(done.code, Some(7), "{}", done.stderr);
    assert_eq!(names(&done.folder), ["out.folded", "out.gfr", "out.set.json"]);
    assert_eq!(cli(&done.folder, &["info", FILE]).ok().stderr, "");
}

#[test]
fn checkpoint_interval_0_writes_no_checkpoint() {
    let run = left("exit").env("GPUFLAME_CHECKPOINT", "0");
    let running = Running::of(run);
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(names(&running.folder), [""; 0]);
    running.tell("go");
    assert_eq!(running.ended().code, Some(7));
}

#[test]
fn a_checkpoint_contains_neither_arguments_nor_environment() {
    let mut running = Running::of(left("abort").arg("an-argument").env("A_SECRET", "a-value"));
    running.until(1100);
    let bytes = fs::read(running.folder.join(FILE)).unwrap();
    let has = |text: &str| bytes.windows(text.len()).any(|window| window == text.as_bytes());
    assert!(has("step_d1000") && has("ending"));
    assert!(!has("an-argument") && !has("A_SECRET") && !has("a-value"));
    running.signalled(libc::SIGKILL);
}

#[test]
fn launches_with_undelivered_activities_are_pending_in_the_checkpoint() {
    let mut running = Running::of(left("abort").env("GPUSIM_FAULTS", "flush_hangs"));
    let path = running.folder.join(FILE);
    running.wait_for(|_| {
        let read = run::read(&path, &ReadOptions::default());
        let pending = read.as_ref().map_or(0, |run| run.ledger().tally.launches.pending);
        (pending == 1100, pending.to_string())
    });
    let done = running.signalled(libc::SIGKILL);
    let told = cli(&done.folder, &["recover", FILE]).ok().stderr;
    assert!(told.contains("and 1100 activities that CUPTI still held, are missing"), "{told}");
    let folded = done.folded();
    assert!(folded.iter().all(|(frames, _)| frames.last().unwrap() == "[GPU_Launch_Pending]"), "{folded:?}");
    assert!(folded.iter().any(|(frames, _)| frames.contains(&"launch".to_owned())), "{folded:?}");
}

#[test]
fn a_sigterm_with_a_hung_collector_names_the_checkpoint_to_recover() {
    let faults = "read_hangs:after=1101";
    let mut running =
        Running::of(left("exit").env("GPUSIM_FAULTS", faults).env("GPUFLAME_EXIT_LIMIT", "0.5"));
    running.until(1100);
    running.tell("more");
    // The launch is in the checkpoint file, but the collector hangs when it processes the launch's activity.
    running.wait_for(|running| {
        let read = run::read(running.folder.join(FILE), &ReadOptions::default());
        let launches = read.map(|run| run.ledger().tally.launches);
        (launches.as_ref().is_ok_and(|launches| launches.seen == 1101), format!("{launches:?}"))
    });
    let done = running.signalled(libc::SIGTERM);
    assert_eq!((done.code, done.signal), (None, Some(libc::SIGTERM)));
    assert!(done.stderr.contains(&format!("{FILE}: run `gpuflame recover ")), "{}", done.stderr);
    let told = cli(&done.folder, &["recover", FILE]).ok().stderr;
    assert!(told.contains("and 1 activities that CUPTI still held, are missing"), "{told}");
    let nanos: u64 = done.folded().iter().map(|(_, nanos)| nanos).sum();
    assert_eq!(nanos, 1100 * 1000);
}

#[test]
fn every_command_reads_a_checkpoint_or_reports_that_it_has_only_sums() {
    let done = ends("_exit");
    let folder = &done.folder;
    let table = cli(folder, &["top", FILE, "--format", "csv"]).ok().stdout;
    assert!(table.contains("1100000,100.0000,1100,1000,1000,1000,1000,1000,0,step_d1000"), "{table}");
    let info = cli(folder, &["info", FILE]).ok().stdout;
    assert!(info.contains("launches matched") && info.contains("1,100"), "{info}");
    let check = cli(folder, &["check", FILE]).ok().stdout;
    assert!(
        check.lines().any(|line| line.contains("note") && line.contains("ended without its exit hooks")),
        "{check}"
    );
    assert!(
        cli(folder, &["flamegraph", FILE])
            .ok()
            .stdout
            .contains("launch;cudaLaunchKernel;[GPU_Kernel]step_d1000")
    );
    assert!(cli(folder, &["flamegraph", FILE, "--idle"]).ok().stdout.contains("launch;cudaLaunchKernel"));
    assert!(cli(folder, &["merge-ranks", FILE]).ok().stdout.contains("step_d1000"));
    cli(folder, &["convert", FILE, "--to", "pprof", "-o", "x.pprof"]).ok();
    let want_rows: [&[&str]; 6] = [
        &["view", FILE],
        &["top", FILE, "--by", "delay"],
        &["diff", FILE, FILE],
        &["extract", FILE, "x.csv", "0,1"],
        &["convert", FILE, "--to", "chrome", "-o", "x.json"],
        &["stats", FILE, "x.csv", "none", "1000"],
    ];
    for args in want_rows {
        let ran = cli(folder, &[&["-q"], args].concat());
        ran.fails(1, &["out.gfr: has only sums", "GPUFLAME_FORMATS=gfr"]);
    }
}

#[test]
fn an_unwritable_checkpoint_path_is_reported_at_most_once_and_the_program_continues() {
    let run = left("exit").env("GPUFLAME_OUTPUT", "/proc/nowhere/out");
    let running = Running::of(run);
    std::thread::sleep(Duration::from_millis(500));
    running.tell("go");
    let done = running.ended();
    assert_eq!(done.code, Some(7), "{}", done.stderr);
    assert!(done.ledger("checkpoints stop: ").len() <= 1, "{}", done.stderr);
    assert_eq!(done.sum("launches").0, 1100);
}

/// Preloads `tests/programs/filesystem.c`, which makes file operations fail in the way that `trouble` names.
pub(crate) fn in_trouble(run: Run, trouble: &str) -> Run {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    let library = LIBRARY.get_or_init(|| {
        let library = scratch("filesystem").join("filesystem.so");
        let source = crate::support::root().join("tests/programs/filesystem.c");
        let mut compiler = Command::new("gcc");
        compiler.args(["-O2", "-shared", "-fPIC", "-Wall", "-Werror"]).arg(source).arg("-o").arg(&library);
        assert!(compiler.arg("-ldl").status().unwrap().success());
        library
    });
    run.env("LD_PRELOAD", library).env("TROUBLE", trouble)
}

/// Makes a running program hang at the moment when it begins to write its outputs. The program must have been started
/// with `later` as the trouble.
pub(crate) fn hold_outputs(running: &Running) {
    fs::write(running.folder.join("wait"), "").unwrap();
}

/// Waits until the program is about to write its outputs.
pub(crate) fn wait_until_it_writes(running: &mut Running) {
    running.wait_for(|running| {
        (running.folder.join("waits").exists(), "the program does not write yet".to_owned())
    });
}

pub(crate) fn let_outputs_go(folder: &Path) {
    ["waits", "wait"].iter().for_each(|name| fs::remove_file(folder.join(name)).unwrap());
}

#[test]
fn a_hanging_output_is_reported_and_the_process_still_dies_of_its_signal() {
    let run = in_trouble(left("exit"), "hang").env("HELD", ".svg").env("GPUFLAME_EXIT_LIMIT", "1");
    let mut running = Running::of(run);
    running.until(1100);
    let done = running.signalled(libc::SIGTERM);
    assert_eq!(done.signal, Some(libc::SIGTERM), "{}", done.stderr);
    assert_eq!(done.ledger("writing the outputs makes no progress").len(), 1, "{}", done.stderr);
    assert_eq!(done.ledger("wrote "), [""; 0], "{}", done.stderr);
    cli(&done.folder, &["recover", FILE]).ok();
    // `recover` writes `out.folded`. If the process had already created `out.folded` before it hung, `recover` writes
    // `out.1.folded`.
    let name = if done.folder.join("out.1.folded").exists() { "out.1.folded" } else { "out.folded" };
    assert_eq!(launches_in(&done.folder, name), 1100);
}

#[test]
fn a_checkpoint_on_a_hanging_file_system_blocks_neither_collector_nor_exit() {
    let running = Running::of(in_trouble(left("exit"), "hang"));
    // The thread that writes checkpoints hangs 0.1 s after the start. gpuflame must nevertheless collect the launches
    // that the program makes later.
    std::thread::sleep(Duration::from_millis(500));
    running.tell("more");
    std::thread::sleep(Duration::from_millis(300));
    running.tell("go");
    let done = running.ended();
    assert_eq!(done.code, Some(7), "{}", done.stderr);
    let launches = done.sum("launches").0;
    assert!((1100..=1101).contains(&launches), "{}", done.stderr);
    assert_eq!(done.folded().iter().map(|(_, nanos)| nanos).sum::<u64>(), 1000 * launches);
}

#[test]
fn the_exit_updates_the_checkpoint_only_if_something_changed() {
    for (more, is_same) in [(false, true), (true, false)] {
        // The checkpoint interval of 2 s gives the test time to read the file. After the test has read the file, only
        // the exit should write another checkpoint.
        let run = in_trouble(left("exit").env("GPUFLAME_CHECKPOINT", "2"), "later");
        let mut running = Running::of(run);
        running.until(1100);
        let before = fs::read(running.folder.join(FILE)).unwrap();
        hold_outputs(&running);
        if more {
            running.tell("more");
            running.wait_for(|running| (!running.folder.join("more").exists(), "it is not taken".to_owned()));
        }
        running.tell("go");
        wait_until_it_writes(&mut running);
        assert_eq!(fs::read(running.folder.join(FILE)).unwrap() == before, is_same);
        let_outputs_go(&running.folder);
        let done = running.ended();
        assert_eq!((done.code, done.sum("launches").0), (Some(7), 1100 + u64::from(more)), "{}", done.stderr);
        assert!(is_finished(&done.folder.join(FILE)));
    }
}

#[test]
fn streamed_outputs_on_a_hanging_file_system_block_neither_start_nor_exit() {
    // While the program runs, a file is written under a temporary name that contains `held`. All operations on files
    // with such names hang.
    for (format, held) in
        [("gfr", ".gfr"), ("activities", ".activities."), ("chrome", "out.json."), ("cupti-text", ".cupti.")]
    {
        let run = left("exit").env("GPUFLAME_FORMATS", format!("folded,{format}"));
        let run = run.env("GPUFLAME_EXIT_LIMIT", "0.5").env("GPUFLAME_CHECKPOINT", "0").env("HELD", held);
        let running = Running::of(in_trouble(run, "hang"));
        running.tell("more");
        std::thread::sleep(Duration::from_millis(300));
        running.tell("go");
        let done = running.ended();
        assert_eq!(done.code, Some(7), "{format}: {}", done.stderr);
        let launches = done.sum("launches").0;
        assert!((1100..=1101).contains(&launches), "{format}: {}", done.stderr);
        assert_eq!(done.folded().iter().map(|(_, nanos)| nanos).sum::<u64>(), 1000 * launches, "{format}");
        let why = "its file system has accepted no data for 0.25 s";
        assert_eq!(done.stderr.matches(why).count(), 1, "{format}: {}", done.stderr);
    }
}

#[test]
fn rows_queued_for_a_slow_file_system_are_all_written_once_it_answers() {
    let run = left("exit").env("GPUFLAME_FORMATS", "folded,gfr");
    let mut running = Running::of(in_trouble(run, "until"));
    wait_until_it_writes(&mut running);
    running.tell("more");
    running.wait_for(|running| (!running.folder.join("more").exists(), "it is not taken".to_owned()));
    assert!(!running.folder.join(FILE).exists());
    ["answers", "go"].iter().for_each(|word| running.tell(word));
    let done = running.ended();
    assert_eq!(done.code, Some(7), "{}", done.stderr);
    let launches = done.sum("launches").0;
    assert_eq!(done.folded().iter().map(|(_, nanos)| nanos).sum::<u64>(), 1000 * launches);
    let read = run::read(done.folder.join(FILE), &ReadOptions::default()).unwrap();
    assert_eq!(read.ledger().tally.activities.matched, launches);
    assert_eq!(read.remarks(), [""; 0]);
}

#[test]
fn a_file_system_error_is_reported_once_and_earlier_checkpoints_stay_valid() {
    let troubles = [
        ("full", "No space left on device"),
        ("quota", "Disk quota exceeded"),
        ("stale", "Stale file handle"),
        ("read_only", "Read-only file system"),
    ];
    for (trouble, why) in troubles {
        assert_told_once(trouble, why);
    }
}

/// Runs a program until its recording has 1,100 launches and cannot grow any more, and until gpuflame has marked the
/// recording as incomplete. The program continues to launch kernels.
fn until_rows_have_no_room(run: Run) -> Running {
    let mut running = Running::of(in_trouble(run, "full"));
    running.until(1100);
    running.tell("trouble");
    running.wait_for(|running| {
        running.tell("more");
        let bytes = fs::read(running.folder.join(FILE)).unwrap();
        (bytes[12..16] == [1, 0, 0, 0], "it says nothing".to_owned())
    });
    running
}

#[test]
fn rows_recorded_before_a_full_disk_stay_valid_and_readers_report_the_loss() {
    let run = left("abort").env("GPUFLAME_FORMATS", "gfr");
    let running = until_rows_have_no_room(run);
    running.tell("go");
    let done = running.ended();
    assert_eq!(done.signal, Some(libc::SIGABRT), "{}", done.stderr);
    let read = run::read(done.folder.join(FILE), &ReadOptions::default()).unwrap();
    assert!(read.ledger().tally.activities.matched >= 1100);
    let remarks = read.remarks().join("\n");
    assert!(remarks.contains("the file could no longer be written: everything after that"), "{remarks}");
}

#[test]
fn a_truncated_recording_of_an_exited_process_is_reported_as_exited() {
    let run = left("exit").env("GPUFLAME_FORMATS", "folded,gfr");
    let running = until_rows_have_no_room(run);
    let alive = cli(&running.folder, &["info", FILE]).ok().stderr;
    assert!(
        alive.contains("its process is still running; ") && alive.contains("could no longer be written"),
        "{alive}"
    );
    running.tell("go");
    let done = running.ended();
    assert_eq!(done.code, Some(7), "{}", done.stderr);
    let [line] = done.ledger("cannot write ")[..] else { panic!("one line, not: {}", done.stderr) };
    assert!(line.contains("out.gfr: No space left on device"), "{line}");
    // All rows for which there was room are in the file. gpuflame did not remove an earlier row to make room for a
    // later row.
    assert_eq!(names(&done.folder), ["out.folded", FILE, "out.set.json"]);
    let launches = done.sum("launches").0;
    assert_eq!(done.folded().iter().map(|(_, nanos)| nanos).sum::<u64>(), 1000 * launches);
    let read = run::read(done.folder.join(FILE), &ReadOptions::default()).unwrap();
    assert!((1100..launches).contains(&read.ledger().tally.activities.matched), "{:?}", read.ledger().tally);
    let [remark] = read.remarks() else { panic!("one remark, not {:?}", read.remarks()) };
    assert!(remark.contains("its process exited but could not write its files, after "), "{remark}");
    assert!(remark.contains("the file could no longer be written: everything after that"), "{remark}");
}

#[test]
fn a_checkpoint_is_kept_if_the_outputs_have_no_disk_space() {
    assert_stays(false, "; all launches are in the file");
    let late = "; the file could no longer be written: everything after that, and 0 activities that CUPTI still held, \
                are missing";
    assert_stays(true, late);
}

#[test]
fn the_last_checkpoint_of_launching_threads_matches_the_ledger() {
    // The SVG file alone is larger than the disk.
    let Some(disk) = Disk::new(16) else { return };
    let run = Run::new(program(), Way::Injected).args(["beside", "4"]).env("GPUFLAME_CHECKPOINT", "0.05");
    let run = run.env("GPUFLAME_OUTPUT", disk.0.join("out")).env("GPUFLAME_FORMATS", "svg");
    let mut running = Running::of(run);
    running.wait_for(|_| (disk.0.join(FILE).exists(), "it has no checkpoint".to_owned()));
    let done = running.signalled(libc::SIGTERM);
    assert_eq!(done.signal, Some(libc::SIGTERM), "{}", done.stderr);
    assert_eq!((names(&disk.0), done.ledger("cannot write ").len()), (vec![FILE.to_owned()], 1));
    let read = run::read(disk.0.join(FILE), &ReadOptions::default()).unwrap();
    let (launches, became) = done.sum("launches");
    let found = read.ledger().tally.launches;
    assert_eq!((found.seen, found.matched), (launches, became["matched"]), "{}", done.stderr);
    // When the process ends, each thread may be in the middle of a launch, and CUPTI may be in the middle of delivering
    // an activity.
    let pending = became["launch_pending"];
    assert!(pending <= 4 || done.stderr.contains("CUPTI did not answer"), "{}", done.stderr);
    let missing = match pending {
        0 => "; all launches are in the file".to_owned(),
        _ => format!("; {pending} activities that CUPTI still held are missing"),
    };
    let [remark] = read.remarks() else { panic!("one remark, not {:?}", read.remarks()) };
    assert!(remark.ends_with(&missing), "{remark}\n{}", done.stderr);
}

/// Runs a program whose disk is full when the program ends. With `more`, the program also launches kernels when the
/// disk is full. If a launch is made while the disk is full, it cannot be added to the checkpoint.
fn assert_stays(more: bool, missing: &str) {
    let Some(disk) = Disk::new(512) else { return };
    let run = left("exit").env("GPUFLAME_OUTPUT", disk.0.join("out"));
    let mut running = Running::of(in_trouble(run, "full"));
    running.wait_for(|_| {
        let read = run::read(disk.0.join(FILE), &ReadOptions::default());
        let matched = read.map(|run| run.ledger().tally.activities.matched);
        (matched.as_ref().is_ok_and(|matched| *matched == 1100), format!("{matched:?}"))
    });
    let filler = disk.0.join("filler");
    assert!(fs::write(&filler, vec![1; 1 << 20]).is_err());
    if more {
        running.tell("trouble");
        running.tell("more");
        running.wait_for(|running| (!running.folder.join("more").exists(), "it is not taken".to_owned()));
    }
    running.tell("go");
    let done = running.ended();
    assert_eq!((done.code, done.sum("launches").0), (Some(7), 1100 + u64::from(more)), "{}", done.stderr);
    assert_eq!(names(&disk.0), [FILE]);
    let kept = disk.0.join(FILE);
    let told = format!("in {0}: run `gpuflame recover {0}` once the files can be written", kept.display());
    assert_eq!(done.ledger("the results are saved "), [told], "{}", done.stderr);
    let read = run::read(&kept, &ReadOptions::default()).unwrap();
    let [remark] = read.remarks() else { panic!("one remark, not {:?}", read.remarks()) };
    assert!(remark.contains("its process exited but could not write its files, after "), "{remark}");
    assert!(remark.ends_with(missing), "{remark}");
    fs::remove_file(filler).unwrap();
    cli(&disk.0, &["recover", FILE]).ok();
    let folded = fs::read_to_string(disk.0.join("out.folded")).unwrap();
    let weights = folded.lines().map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap());
    assert_eq!(weights.sum::<u64>(), 1000 * 1100);
}

fn assert_told_once(trouble: &str, why: &str) {
    let mut running = Running::of(in_trouble(left("abort"), trouble));
    running.until(1100);
    running.tell("trouble");
    running.wait_for(|running| {
        running.tell("more");
        (running.stderr().contains("checkpoints stop: "), running.stderr())
    });
    // The program makes further launches, which gpuflame cannot write to the checkpoint.
    for _ in 0..2 {
        running.tell("more");
        running.wait_for(|running| (!running.folder.join("more").exists(), "it is not taken".to_owned()));
    }
    // The recording of the process does not grow any more, but `gpuflame info` finds that the process is alive.
    let info = cli(&running.folder, &["info", FILE]).ok();
    assert!(info.stderr.contains("its process is still running"), "{}", info.stderr);
    running.tell("go");
    let done = running.ended();
    let launches = fs::read(done.folder.join("launched")).unwrap();
    let launches: u64 =
        launches.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap())).sum();
    assert_eq!(done.signal, Some(libc::SIGABRT));
    let [line] = done.ledger("checkpoints stop: ")[..] else { panic!("one line, not: {}", done.stderr) };
    assert!(line.starts_with(why) && line.ends_with("recording continues"), "{line}");
    let read = run::read(done.folder.join(FILE), &ReadOptions::default()).unwrap();
    let written = read.ledger().tally.activities.matched;
    assert!((1100..launches).contains(&written), "{written} of {launches}");
    let [remark] = read.remarks() else { panic!("one remark, not {:?}", read.remarks()) };
    assert!(remark.contains("its process ended without its exit hooks"), "{remark}");
    // On a full disk, existing bytes can still be overwritten. Therefore the checkpoint file itself can state that it
    // is incomplete. After an error other than a full disk, only the message that the process printed states this.
    let said = match trouble {
        "full" | "quota" => "the file could no longer be written: everything after that, and 0 ",
        _ => "are missing, unless it printed that checkpoints stop",
    };
    assert!(remark.contains(said), "{trouble}: {remark}");
}
