//! Measures the time from SIGTERM until a process that has large outputs to write has ended: `cargo bench --bench
//! ending`.
//!
//! Before the signal, each program launches from many stacks, or launches many different kernels, on the simulated CUDA
//! stack. gpuflame writes its output files to the page cache only. When the signal arrives, a program is either idle or
//! still launching kernels. If other programs use the machine, this affects the time until the process ends. Such use
//! does not affect the CPU time of the writing thread, which the scheduler counts.
//!
//! With `-- bytes`, the benchmark instead measures the bytes that checkpoints write per minute, and the share of CPU
//! time that the checkpoint thread takes. With `-- bytes`, the benchmark runs three programs. The first program
//! launches from ten stacks, the second program launches from 10,000 stacks that all change each second, and the third
//! program is recorded with all rows.

#[path = "staged.rs"]
mod staged;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

use staged::{built, command, compiled, stage};

const ROUNDS: usize = 7;
/// Time to wait before the signal is sent. When the signal arrives, the launches are already in a checkpoint, as in a
/// program that has run for some time.
const REST: Duration = Duration::from_millis(2500);

/// Arguments of `many` (ending/many.c), one list per case.
const CASES: [&[&str]; 7] = [
    &["stacks", "1000"],
    &["stacks", "100000"],
    &["names", "100"],
    &["names", "80000"],
    &["stacks", "100000", "on"],
    &["names", "100", "on"],
    &["names", "80000", "on"],
];

/// Duration for which the benchmark counts the written bytes.
const WATCHED: Duration = Duration::from_secs(20);

/// Prints how much checkpoints write while a program runs, and how much CPU time they take.
#[allow(clippy::print_stdout)]
fn print_written(program: &Path, cuda: &Path) {
    println!("{:16} {:>14} {:>14} {:>12}", "", "KB a minute", "launches/s", "% of time");
    for (name, stacks, formats) in
        [("10 stacks", "10", "svg"), ("10000 stacks", "10000", "svg"), ("rows", "10", "gfr")]
    {
        let folder = cuda.join("run");
        fs::create_dir_all(&folder).expect("the target folder is writable");
        let mut command = command(program, cuda);
        command.args(["again", stacks]).current_dir(&folder).env("GPUFLAME_FORMATS", formats);
        command.env("CUDA_INJECTION64_PATH", built("libgpuflame.so")).env("GPUFLAME_QUIET", "1");
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the program runs");
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().expect("it is piped"))
            .read_line(&mut line)
            .expect("it says text");
        thread::sleep(REST);
        let writer = thread_called(&child, if formats == "gfr" { "gpuflame-rows" } else { "gpuflame-keep" });
        let io = PathBuf::from(format!("{}/io", writer.display()));
        let (before, began) = ((written(&io), processor(&writer).unwrap_or(0.0)), Instant::now());
        thread::sleep(WATCHED);
        let (bytes, took) = (written(&io) - before.0, processor(&writer).unwrap_or(0.0) - before.1);
        let seconds = began.elapsed().as_secs_f64();
        let launches = launches(&mut child);
        println!(
            "{name:16} {:>14.0} {:>14.0} {:>12.2}",
            bytes * 60.0 / seconds / 1e3,
            launches,
            took / 10.0 / seconds
        );
        fs::remove_dir_all(&folder).expect("the folder is ours");
    }
}

/// Ends the program with SIGUSR1, and returns the number of launches per second that the program prints on exit.
fn launches(child: &mut Child) -> f64 {
    // SAFETY: this process has not waited for the child yet, so the child's id cannot have been reused.
    unsafe { libc::kill(child.id() as i32, libc::SIGUSR1) };
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().expect("it is piped")).read_line(&mut line).expect("it says text");
    let _ = child.wait();
    line.trim().parse().expect("the program prints its launches per second")
}

/// Returns the number of bytes that a thread has written to files, from its `io` file in `/proc`.
fn written(io: &Path) -> f64 {
    let text = fs::read_to_string(io).expect("the thread is there");
    let line = text.lines().find_map(|line| line.strip_prefix("wchar: "));
    line.and_then(|bytes| bytes.parse().ok()).expect("the kernel counts them")
}

#[allow(clippy::print_stdout)]
fn main() {
    let cuda = stage("ending");
    let program = compiled("tests/bench/ending/many.c", &[], &cuda);
    if std::env::args().any(|argument| argument == "bytes") {
        print_written(&program, &cuda);
        return fs::remove_dir_all(cuda).expect("the folder is ours");
    }
    println!("{:24} {:>20} {:>20}", "", "ms until death", "ms of processor");
    for case in CASES {
        let runs: Vec<_> = (0..ROUNDS).map(|_| ended(&program, &cuda, case)).collect();
        let [death, processor] = [0, 1].map(|which| {
            let mut all: Vec<f64> = runs.iter().map(|run| run[which]).collect();
            all.sort_by(f64::total_cmp);
            format!("{:.1} ({:.1})", all[0], all[ROUNDS / 2])
        });
        let (what, launches_on) = (format!("{} {}", case[1], case[0]), ["", ", launching"][case.len() - 2]);
        println!("{:24} {death:>20} {processor:>20}", format!("{what}{launches_on}"));
    }
    println!("the least of {ROUNDS} runs, and the median");
    fs::remove_dir_all(cuda).expect("the folder is ours");
}

/// Returns the time from SIGTERM until the process has ended, and the CPU time of the writing thread, both in
/// milliseconds.
fn ended(program: &Path, cuda: &Path, case: &[&str]) -> [f64; 2] {
    let folder = cuda.join("run");
    fs::create_dir_all(&folder).expect("the target folder is writable");
    let mut command = command(program, cuda);
    command.args(case).current_dir(&folder);
    command.env("CUDA_INJECTION64_PATH", built("libgpuflame.so")).env("GPUFLAME_QUIET", "1");
    let mut child = command.stdout(Stdio::piped()).spawn().expect("the program runs");
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().expect("it is piped")).read_line(&mut line).expect("it says text");
    assert_eq!(line, "ready\n");
    thread::sleep(REST);
    let writer = writer(&child);
    let (before, began) = (processor(&writer).unwrap_or(0.0), Instant::now());
    // SAFETY: this process has not waited for the child yet, so the child's id cannot have been reused.
    unsafe { libc::kill(child.id() as i32, libc::SIGTERM) };
    let mut taken = before;
    while let Some(now) = processor(&writer) {
        taken = now;
        thread::sleep(Duration::from_micros(500));
        if child.try_wait().expect("it is ours").is_some() {
            break;
        }
    }
    let _ = child.wait();
    let death = began.elapsed().as_secs_f64() * 1e3;
    assert!(has_a_picture(&folder), "the program wrote no picture");
    fs::remove_dir_all(&folder).expect("the folder is ours");
    [death, taken - before]
}

fn has_a_picture(folder: &Path) -> bool {
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    files.into_iter().any(|file| file.path().extension().is_some_and(|ending| ending == "svg"))
}

/// Returns the folder in `/proc` of gpuflame's thread that writes the outputs on exit.
fn writer(child: &Child) -> PathBuf {
    thread_called(child, "gpuflame-end")
}

fn thread_called(child: &Child, name: &str) -> PathBuf {
    let threads = fs::read_dir(format!("/proc/{}/task", child.id())).expect("it runs");
    let is_it = |thread: &PathBuf| {
        fs::read_to_string(thread.join("comm")).is_ok_and(|found| found.trim_end() == name)
    };
    threads.flatten().map(|entry| entry.path()).find(is_it).expect("the process has gpuflame's threads")
}

/// Returns the CPU time of a thread in milliseconds.
fn processor(thread: &Path) -> Option<f64> {
    let text = fs::read_to_string(thread.join("schedstat")).ok()?;
    Some(text.split(' ').next()?.parse::<f64>().ok()? / 1e6)
}
