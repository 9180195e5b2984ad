//! `gpuflame-bpf crosscheck`: watches a command's launches from outside its process, records them inside with
//! libgpuflame, and compares the two records.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::Args;
use gpuflame_model::error::{Error, ErrorKind, Result};

use crate::compare::{self, LaunchComparison, StackComparison};
use crate::grade::{self, Grade, MatchMethod};
use crate::kernel::WatchOptions;
use crate::probed_launches::ProbedLaunches;
use crate::record::{MARKER_VARIABLE, print_message, watch_command};
use crate::recorded_launches::RecordedLaunches;
use crate::watch::Watcher;

/// Compare gpuflame's recording of a command with probes from outside, launch by launch.
///
/// Both sides identify a launch by CUPTI's correlation id. Each side determines the thread, order, time and stack of
/// the launch in its own way, so they show whether both sides recorded the same launch.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit codes: 0 both agree, 1 they differ, 2 nothing could be compared. The command's exit \
                  code is printed."
)]
pub(crate) struct Crosscheck {
    /// Path of the libgpuflame.so to use [default: next to this command].
    #[arg(long, value_name = "FILE")]
    library: Option<PathBuf>,
    /// Size of the buffer for unread records, in MiB: a power of two.
    #[arg(long, value_name = "MIB", default_value_t = 64)]
    buffer: u32,
    /// Compare copies and fills as well. Removing their probes takes a few seconds.
    #[arg(long)]
    copies: bool,
    /// Print the accuracy figures as well, one per line, for other programs.
    #[arg(long)]
    figures: bool,
    /// Swap two recorded launches before the comparison, to test that the swap is detected.
    #[arg(long, hide = true)]
    swap_two: bool,
    /// Command and its arguments.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

const AGREE: u8 = 0;
const DIFFER: u8 = 1;
const NOT_DONE: u8 = 2;

impl Crosscheck {
    /// Runs the cross-check, and returns the exit code.
    pub(crate) fn run(&self) -> Result<u8> {
        let library = self.library()?;
        let folder = TempFolder::new()?;
        let watched =
            WatchOptions { copies: self.copies, buffer_mib: Some(self.buffer), ..WatchOptions::default() };
        let mut watch = Watcher::new(watched, Vec::new())?;
        let environment = environment(&library, &folder.0);
        let code = watch_command(&mut watch, &self.command, &environment)?;
        let ahead = realtime_ahead();
        let attached = watch.probe_count();
        let (probed, dropped, remarks) = watch.into_launches()?;
        remarks.iter().for_each(|remark| print_message(remark));
        print_line(&format!("the command ended with {code}"));
        if attached == 0 {
            let what = "the command never mapped a libcudart or libcuda: nothing to compare";
            return Err(Error::new(ErrorKind::State, what));
        }
        let mut inside = RecordedLaunches::read(&folder.0, &probed.files)?;
        inside.launches.retain(|id, _| !probed.copies.contains(id));
        if self.swap_two {
            swap_two(&mut inside);
        }
        let verdict = compare::compare(&probed, &inside, ahead);
        print_table(&verdict, &probed, &inside, dropped.hits + dropped.markers, ahead);
        if self.figures {
            print_figures(&verdict, &probed, &inside, ahead);
        }
        let LaunchComparison { launches, probe, inside: recorded, agree, .. } = verdict;
        print_line(&format!(
            "crosscheck launches={launches} probe={probe} inprocess={recorded} agree={agree}"
        ));
        if recorded == 0 {
            print_message(
                "the library inside recorded no launch: no device, or no callbacks; nothing was compared",
            );
            return Ok(NOT_DONE);
        }
        let explained: u64 = inside.lost.values().sum::<u64>() + inside.outside;
        let is_complete = dropped.hits + dropped.markers == 0;
        Ok(if is_complete && verdict.accounts_agree(explained) { AGREE } else { DIFFER })
    }

    fn library(&self) -> Result<PathBuf> {
        let beside = || Ok::<_, std::io::Error>(std::env::current_exe()?.with_file_name("libgpuflame.so"));
        let library = self.library.clone().map_or_else(beside, Ok)?;
        library.canonicalize().map_err(|error| {
            let hint = "build it with `cargo build --release`, or name one with --library";
            Error::new(ErrorKind::Io, format!("{}: {error}; {hint}", library.display()))
        })
    }
}

fn environment(library: &Path, folder: &Path) -> Vec<(&'static str, OsString)> {
    vec![
        ("CUDA_INJECTION64_PATH", library.into()),
        ("GPUFLAME_OUTPUT", folder.join("run.%p").into()),
        ("GPUFLAME_FORMATS", "gfr".into()),
        ("GPUFLAME_QUIET", "1".into()),
        (MARKER_VARIABLE, "1".into()),
    ]
}

/// A folder for recordings, which is removed when this value is dropped.
struct TempFolder(PathBuf);

impl TempFolder {
    fn new() -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("gpuflame-crosscheck-{}", std::process::id()));
        std::fs::create_dir(&folder)
            .map_err(|error| Error::new(ErrorKind::Io, format!("{}: {error}", folder.display())))?;
        Ok(Self(folder))
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns `CLOCK_REALTIME` minus `CLOCK_MONOTONIC`, in ns. Measures this difference several times, and returns the
/// value from the measurement that took the least time.
fn realtime_ahead() -> i64 {
    let read = |clock| {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the call writes only to `time`.
        unsafe { libc::clock_gettime(clock, &mut time) };
        time.tv_sec * 1_000_000_000 + time.tv_nsec
    };
    let tries = (0..16).map(|_| {
        let before = read(libc::CLOCK_MONOTONIC);
        let realtime = read(libc::CLOCK_REALTIME);
        let after = read(libc::CLOCK_MONOTONIC);
        (after - before, realtime - (before + (after - before) / 2))
    });
    tries.min().map_or(0, |(_, ahead)| ahead)
}

/// Swaps the records of two consecutive launches by one thread, which must have different stacks.
fn swap_two(inside: &mut RecordedLaunches) {
    let ids: Vec<_> = inside.launches.keys().copied().collect();
    let pair = ids.windows(2).find(|pair| {
        let (one, other) = (&inside.launches[&pair[0]], &inside.launches[&pair[1]]);
        one.tid == other.tid && one.stack != other.stack
    });
    let Some(&[one, other]) = pair else {
        return print_message("no two launches with different stacks to swap");
    };
    let (Some(first), Some(second)) = (inside.launches.remove(&one), inside.launches.remove(&other)) else {
        return;
    };
    inside.launches.insert(one, second);
    inside.launches.insert(other, first);
}

fn print_table(
    verdict: &LaunchComparison,
    probed: &ProbedLaunches,
    inside: &RecordedLaunches,
    dropped: u64,
    ahead: i64,
) {
    let nested = probed.launches.iter().filter(|launch| launch.nested).count();
    let row = |what: &str, count: u64| print_line(&format!("  {what:<52} {count:>12}"));
    row("calls seen by probes", probed.launches.len() as u64);
    row("  made by CUDA inside other calls", nested as u64);
    row("launches seen by probes", verdict.probe);
    row("  without an id (no CUPTI callback, or no window)", verdict.without_id);
    row("  with an id that was not recorded", verdict.probe_only);
    row("  dropped because the kernel's buffer was full", dropped);
    row("launches recorded inside", verdict.inside);
    row("  that no probe saw", verdict.inside_only);
    for (what, count) in &inside.lost {
        row(&format!("  counted inside as {what}"), *count);
    }
    row("  copies and fills, left out without --copies", probed.copies.len() as u64);
    row("on another thread", verdict.other_thread);
    row("in another order", verdict.other_order);
    for stacks in StackComparison::ALL {
        let count = verdict.stacks.get(&stacks).copied().unwrap_or(0);
        row(&format!("stacks {}", stacks.label()), count);
    }
    if let Some(id) = verdict.example {
        row(&format!("  first launch that differs, of process {}: id", id.0), u64::from(id.1));
    }
    let at = |permille: usize| {
        verdict.delays_ns.get((verdict.delays_ns.len().saturating_sub(1)) * permille / 1000)
    };
    if let (Some(least), Some(half), Some(most_of), Some(most)) = (at(0), at(500), at(990), at(1000)) {
        print_line(&format!(
            "  inside is later by (ns): min {least}, median {half}, p99 {most_of}, max {most}"
        ));
    }
    for (way, name) in METHODS {
        print_line(&format!("  by {name}: {}", describe_grade(&grade::grade(probed, inside, ahead, way))));
    }
}

const METHODS: [(MatchMethod, &str); 2] = [
    (MatchMethod::Order, "order of the process instead of ids"),
    (MatchMethod::Nearest, "nearest time instead of ids"),
];

fn describe_grade(grade: &Grade) -> String {
    let share = |part: u64, whole: u64| 100.0 * part as f64 / whole.max(1) as f64;
    format!(
        "{} of {} launches get the stack of another launch, {:.2} % of GPU time gets a wrong stack",
        grade.wrong_launches,
        grade.launches,
        share(grade.wrong_nanos, grade.nanos)
    )
}

/// Prints the figures from which `accuracy/run` builds its tables.
fn print_figures(verdict: &LaunchComparison, probed: &ProbedLaunches, inside: &RecordedLaunches, ahead: i64) {
    for (way, name) in [(MatchMethod::Order, "order"), (MatchMethod::Nearest, "nearest")] {
        let Grade { launches, wrong_launches, wrong_stacks, nanos, wrong_nanos } =
            grade::grade(probed, inside, ahead, way);
        print_line(&format!(
            "figure {name} {launches} {wrong_launches} {wrong_stacks} {nanos} {wrong_nanos}"
        ));
    }
    let differ = verdict.stacks.get(&StackComparison::Differ).copied().unwrap_or(0);
    print_line(&format!("figure ids {} {differ}", verdict.stacks.values().sum::<u64>()));
}

/// Prints one line of the result to standard output.
#[expect(clippy::print_stdout, reason = "the answer is what standard output is for")]
fn print_line(line: &str) {
    println!("{line}");
}
