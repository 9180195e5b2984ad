//! Whatever an application does to its descriptors and files, gpuflame does not interfere with the application's
//! descriptors, files, stderr or exit status.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::support::{Done, Run, Way, compile, gpuflame, skip};

fn prepare(mode: &str) -> Run {
    let program = compile("tests/programs/unharmed.c", &["-O2", "-g0"]);
    Run::new(&program, Way::Injected).arg(mode).env("GPUFLAME_FORMATS", "folded,csv,activities,gfr")
}

fn run(mode: &str) -> Done {
    prepare(mode).ok()
}

/// Asserts that the application's own files contain only what the application wrote.
fn assert_its_own(done: &Done, files: usize) {
    for number in 0..files {
        assert_eq!(done.file(&format!("mine{number}")), "mine\n", "mine{number}");
    }
}

/// Asserts that the recording and the table are complete, whatever the application did to its descriptors.
fn assert_all_written(done: &Done, launches: u64) {
    let folded = done.file("out.folded");
    // The compiler has inlined the function for the mode, whose frame would be between `main` and `work`.
    let values =
        folded.lines().map(|line| match line.split_once(";work;cudaLaunchKernel;[GPU_Kernel]step_d1000 ") {
            Some((outer, nanos)) if outer.starts_with("main") => nanos.parse::<u64>().unwrap(),
            _ => panic!("{line}"),
        });
    assert_eq!(values.sum::<u64>(), launches * 1000);
    assert_eq!(done.file("out.activities.csv").lines().count() as u64, 1 + launches);
    let again = ["-q", "flamegraph", "out.gfr", "-o", "-", "--format", "folded"];
    assert_eq!(crate::support::command::gpuflame(&done.folder, again).ok().stdout, folded);
}

#[test]
fn a_host_that_closes_descriptors_gets_no_rows_in_its_own_files() {
    let done = run("closes");
    assert_its_own(&done, 20);
    assert_all_written(&done, 11_000);
    done.assert_exact();
}

#[test]
fn a_data_file_on_descriptor_2_does_not_get_the_ledger() {
    let done = run("data");
    assert_its_own(&done, 1);
    assert_all_written(&done, 1_000);
}

/// Asserts that the ledger was written to a file next to the outputs and to the recording, not to stderr.
fn assert_in_ledger_file(done: &Done) {
    assert_eq!(done.ledger("launches ").len(), 0, "{}", done.stderr);
    let written = done.file("out.ledger.txt");
    assert_whole_ledger(&written);
    assert!(written.contains("gpuflame: launches 1000 = matched 1000 "), "{written}");
    let info = crate::support::command::gpuflame(&done.folder, ["info", "out.gfr"]).ok().stdout;
    assert!(info.contains("launches 1000 = matched 1000 "), "{info}");
}

#[test]
fn the_ledger_gets_its_own_file_if_stderr_is_a_data_file_before_cuda_starts() {
    let early = run("early");
    let (command, folder) = prepare("early").into_command();
    let preloaded = run_as(&command, folder, |run| run.env("LD_PRELOAD", gpuflame()));
    for done in [early, preloaded] {
        assert_its_own(&done, 1);
        assert_eq!(done.stderr, "");
        assert_all_written(&done, 1_000);
        assert_in_ledger_file(&done);
    }
}

/// Runs the same command again, with the environment that `change` makes.
fn run_as(command: &Command, folder: PathBuf, change: impl FnOnce(&mut Command) -> &mut Command) -> Done {
    let mut again = Command::new(command.get_program());
    again.args(command.get_args()).current_dir(&folder);
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => again.env(name, value),
            None => again.env_remove(name),
        };
    }
    let output = change(again.env_remove("CUDA_INJECTION64_PATH")).output().unwrap();
    Done::from_output(output, folder)
}

/// Starts the program in each possible way with a regular file as descriptor 2, and checks whether the ledger is
/// written to that file.
#[test]
fn a_regular_file_gets_the_ledger_if_appended_to_or_open_at_start() {
    let shipped = crate::processes::preload::shipped().join("libgpuflame-preload.so");
    let ran = |way: &str, is_appended: bool| {
        let (command, folder) = prepare("launches").into_command();
        let file =
            File::options().create(true).write(true).append(is_appended).open(folder.join("log")).unwrap();
        run_as(&command, folder, |run| {
            match way {
                "injected" => run.env("CUDA_INJECTION64_PATH", gpuflame()),
                "preloaded" => run.env("LD_PRELOAD", gpuflame()),
                "stub" => run.env("LD_PRELOAD", &shipped),
                _ => run.env("CUDA_INJECTION64_PATH", gpuflame()).env("_GPUFLAME_STDERR", identity(&file)),
            }
            .stderr(file)
        })
    };
    for (way, is_appended) in
        [("preloaded", false), ("stub", false), ("passed on", false), ("injected", true), ("preloaded", true)]
    {
        let done = ran(way, is_appended);
        assert_whole_ledger(&done.file("log"));
        assert!(!done.folder.join("out.ledger.txt").exists(), "{way}");
    }
    let done = ran("injected", false);
    assert_eq!(done.file("log"), "");
    assert_in_ledger_file(&done);
}

/// Returns the device number and the inode number of a file in the format in which `gpuflame run` passes them to the
/// program.
fn identity(file: &File) -> String {
    let facts = file.metadata().unwrap();
    format!("{:x}:{:x}", facts.dev(), facts.ino())
}

/// The program runs in the same way as a program under pytest. While CUDA starts, descriptor 2 is a temporary file.
#[test]
fn messages_held_during_the_run_appear_at_exit_or_in_the_ledger_file() {
    let run = || prepare("captured").env("GPUFLAME_NO_SUCH_SETTING", "1");
    let warning = "gpuflame: GPUFLAME_NO_SUCH_SETTING: no such setting; did you mean ";
    let done = run().ok();
    assert_eq!((done.file("captured").as_str(), done.stderr.as_str()), ("", ""));
    assert!(done.file("out.ledger.txt").starts_with(warning), "{}", done.file("out.ledger.txt"));
    assert_in_ledger_file(&done);
    let (command, folder) = run().into_command();
    let done = run_as(&command, folder, |run| run.env("LD_PRELOAD", gpuflame()));
    assert_eq!(done.file("captured"), "");
    let mut lines = done.stderr.lines();
    assert!(lines.next().unwrap().starts_with("gpuflame: results of process "), "{}", done.stderr);
    assert!(lines.next().unwrap().starts_with(warning), "{}", done.stderr);
    assert_whole_ledger(&done.stderr);
    assert!(!done.folder.join("out.ledger.txt").exists());
}

#[test]
fn a_refused_start_is_reported_in_the_ledger_file_if_stderr_is_unusable() {
    let none = crate::support::stage("no-cupti", &[]);
    let done = prepare("early").with_libraries(&none).env("GPUFLAME_CUPTI", "/nowhere/libcupti.so").ok();
    assert_its_own(&done, 1);
    let written = done.file("out.ledger.txt");
    assert!(written.starts_with("gpuflame: not recording: ") && written.lines().count() == 1, "{written}");
}

#[test]
fn the_ledger_starts_on_a_new_line_after_unfinished_output() {
    let begins = "gpuflame: launches 1000 = matched 1000 ";
    let done = run("unfinished");
    // gpuflame cannot check whether the text that is already in a pipe ends with a complete line. Therefore gpuflame
    // prints a heading before its messages.
    assert!(done.stderr.starts_with("half a linegpuflame: results of process "), "{}", done.stderr);
    assert!(done.stderr.contains(&format!("\n{begins}")), "{}", done.stderr);
    for (before, expected) in [("", ""), ("a line\n", "a line\n"), ("half a line", "half a line\n")] {
        let (command, folder) = prepare("launches").into_command();
        fs::write(folder.join("log"), before).unwrap();
        let log = File::options().append(true).open(folder.join("log")).unwrap();
        let done = run_as(&command, folder, |run| run.env("CUDA_INJECTION64_PATH", gpuflame()).stderr(log));
        assert!(done.file("log").starts_with(&format!("{expected}{begins}")), "{}", done.file("log"));
    }
}

#[test]
fn a_filter_that_refuses_poll_does_not_silence_the_ledger() {
    for calls in [&["poll"][..], &["poll", "ppoll"], &["poll", "ppoll", "ioctl"]] {
        let done = prepare("refused").args(calls.iter().copied()).done();
        if done.code == Some(75) {
            return skip("no filter of system calls can be set here");
        }
        assert_eq!(done.code, Some(0), "{}", done.stderr);
        assert_whole_ledger(&done.stderr);
    }
}

#[test]
fn a_log_that_stderr_was_moved_to_gets_the_ledger() {
    let done = run("log");
    assert_all_written(&done, 1_000);
    assert!(done.file("log").starts_with("gpuflame: launches 1000 = matched 1000 "), "{}", done.file("log"));
    assert_eq!(done.stderr, "");
}

#[test]
fn closed_descriptors_0_1_and_2_are_not_reused() {
    let done = run("closed");
    assert_its_own(&done, 3);
    assert_all_written(&done, 11_000);
    assert_eq!((done.stdout.as_str(), done.stderr.as_str()), ("", ""));
}

/// If the program hangs at its exit, a signal ends it and the test fails.
#[test]
fn a_full_unread_stderr_pipe_does_not_hang_the_exit() {
    let done = run("full");
    assert_all_written(&done, 1_000);
}

/// When gpuflame has written the ledger, the program checks the flags of its stderr. The program fails if gpuflame has
/// cleared one of these flags.
#[test]
fn a_nonblocking_stderr_gets_the_complete_ledger_and_keeps_its_flags() {
    let done = run("nonblocking");
    assert_whole_ledger(&fs::read_to_string(done.folder.join("read")).unwrap());
}

/// Asserts that the pipe contains its earlier content, and after that the complete ledger.
fn assert_whole_ledger(read: &str) {
    let ledger = read.trim_start_matches("filling\n");
    let line =
        |word: &str| ledger.lines().filter(|line| line.starts_with(&format!("gpuflame: {word}"))).count();
    for word in ["launches 1000 = ", "activities 1000 = ", "lost: ", "own cost: ", "wrote "] {
        assert!(line(word) >= 1, "no {word} in\n{read}");
    }
    assert!(ledger.lines().all(|line| line.starts_with("gpuflame: ")), "{read}");
    assert!(ledger.ends_with('\n'), "{read}");
}

/// Creates a pipe of two pages, neither of which is empty, with 4,000 bytes free. Returns the read end of the pipe, the
/// write end, and the number of bytes in the pipe.
fn nearly_full_pipe() -> (File, File, usize) {
    let mut ends = [0; 2];
    // SAFETY: `ends` has room for the two numbers that pipe2 writes.
    assert_eq!(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) }, 0);
    // SAFETY: pipe2 has just created both descriptors, and no other code owns them.
    let [from, mut to] = ends.map(|end| unsafe { File::from_raw_fd(end) });
    // SAFETY: this fcntl command takes two integers and writes no memory.
    assert_eq!(unsafe { libc::fcntl(to.as_raw_fd(), libc::F_SETPIPE_SZ, 8192) }, 8192);
    let filling = "filling\n".repeat((8192 - 4000) / 8);
    to.write_all(filling.as_bytes()).unwrap();
    (from, to, filling.len())
}

/// Reads the pipe in small steps until it is empty and no process has its write end open.
fn read_slowly(mut from: &File, child: &mut Child) -> String {
    let mut text = Vec::new();
    let mut part = [0; 128];
    loop {
        let has_ended = child.try_wait().unwrap().is_some();
        if held(from) > 0 {
            let read = from.read(&mut part).unwrap();
            text.extend_from_slice(&part[..read]);
        } else if has_ended {
            return String::from_utf8(text).unwrap();
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// Returns the number of bytes in a pipe.
fn held(pipe: &File) -> usize {
    let mut bytes = 0;
    // SAFETY: FIONREAD writes one int, and `bytes` has room for it.
    assert_eq!(unsafe { libc::ioctl(pipe.as_raw_fd(), libc::FIONREAD, &raw mut bytes) }, 0);
    bytes as usize
}

/// Polls the flags of the pipe until `is_over` is set. Returns the number of polls, and whether O_NONBLOCK was ever
/// set. The program uses the same open file description as this test, so the test sees the flags that the program
/// changes.
fn watch_flags(pipe: &File, is_over: &AtomicBool) -> (u64, bool) {
    let (mut looks, mut was_changed) = (0, false);
    while !is_over.load(Ordering::Relaxed) || looks <= 1000 {
        // SAFETY: F_GETFL takes no pointer.
        let flags = unsafe { libc::fcntl(pipe.as_raw_fd(), libc::F_GETFL) };
        was_changed |= flags & libc::O_NONBLOCK != 0;
        looks += 1;
        thread::yield_now();
    }
    (looks, was_changed)
}

/// Waits until the file exists, for at most a minute.
fn wait_for_file(path: &Path) {
    for _ in 0..60_000 {
        if path.exists() {
            return;
        }
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_nearly_full_slow_pipe_gets_the_complete_ledger_and_stays_blocking() {
    let (from, to, filled) = nearly_full_pipe();
    let (mut command, folder) = prepare("launches").into_command();
    let mut child = command.stderr(to.try_clone().unwrap()).spawn().unwrap();
    let is_over = AtomicBool::new(false);
    let (waiting, read, (looks, was_changed)) = thread::scope(|scope| {
        let watch = scope.spawn(|| watch_flags(&to, &is_over));
        // gpuflame writes the files before the ledger.
        wait_for_file(&folder.join("out.folded"));
        thread::sleep(Duration::from_millis(200));
        let waiting = (held(&from), child.try_wait().unwrap());
        let read = read_slowly(&from, &mut child);
        is_over.store(true, Ordering::Relaxed);
        (waiting, read, watch.join().unwrap())
    });
    assert_eq!(waiting, (filled, None), "the program waits for room, and writes nothing before");
    assert!(!was_changed, "in {looks} looks");
    assert!(child.wait().unwrap().success());
    assert_whole_ledger(&read);
}
