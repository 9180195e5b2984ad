//! Faults in a program that gpuflame itself records, on the simulated CUDA stack. The costs of these faults are from
//! the truth file of the simulated stack. A recording can show what a trace cannot, such as moves of unified memory and
//! threads without a processor.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde_json::Value;

use crate::support::{self, Done, Run, Way, compile, root};
use crate::training_loop::Shows;

/// Source file of the program.
const SOURCE: &str = "tests/programs/faults.c";
/// Strengths of a fault, each given as the percentage of the run that the fault costs.
pub(crate) const STRENGTHS: [u64; 3] = [3, 12, 40];
/// GPU time of the program without a fault, in ns: 30 steps of eight layers of 400 us.
pub(crate) const HEALTHY_NS: u64 = 30 * 8 * 400_000;

/// A fault, its culprit, and the options with which a user would record the program.
pub(crate) struct Program {
    pub(crate) id: &'static str,
    /// Function that contains the culprit. A comment in the source marks the culprit's line.
    pub(crate) function: &'static str,
    pub(crate) device: Option<u32>,
    pub(crate) shows: Shows,
    /// Second fault, whose cost is larger. Only faults that a trace cannot show have a partner. The fourth run has both
    /// faults.
    pub(crate) partner: Option<&'static str>,
    /// `options` are options of `gpuflame run`. `settings` are environment variables.
    options: &'static [&'static str],
    settings: &'static [(&'static str, &'static str)],
}

const fn program(id: &'static str, function: &'static str) -> Program {
    Program { id, function, device: None, shows: Shows::Idle, partner: None, options: &[], settings: &[] }
}

pub(crate) const PROGRAMS: &[Program] = &[
    program("sync_read", "log_metrics"),
    program("tiny_kernels", "add_bias_per_token"),
    program("pageable_copies", "load_batch"),
    program("sync_copies", "load_batch"),
    Program {
        options: &["--formats", "folded,idle,alloc,gfr"],
        ..program("allocation_in_loop", "with_workspace")
    },
    Program { options: &["--cpu-samples", "99", "--off-cpu", "--rows"], ..program("pauses", "write_log") },
    Program { shows: Shows::Busy, ..program("slow_steps", "forward") },
    Program { shows: Shows::Busy, device: Some(0), ..program("late_slowdown", "forward") },
    Program { shows: Shows::SecondIdle, device: Some(1), ..program("idle_gpu", "forward") },
    Program {
        settings: &[("GPUFLAME_UNIFIED", "1")],
        partner: Some("late_slowdown"),
        ..program("managed_memory", "touch_table")
    },
    Program {
        options: &["--cpu-samples", "99", "--off-cpu", "--rows"],
        partner: Some("late_slowdown"),
        ..program("starved_thread", "compute_on_host")
    },
];

/// A finished run, and the cost of its fault.
pub(crate) struct Recorded {
    pub(crate) done: Done,
    pub(crate) cost_ns: u64,
    /// Cost of the second fault, if the second fault makes kernels longer.
    pub(crate) lengthened_ns: u64,
    /// Time that the launching thread waited for a processor during the run, in ns.
    pub(crate) waited_ns: u64,
}

impl Program {
    /// Runs the program under `gpuflame run`. The recording is `out.gfr` in the folder of the run.
    pub(crate) fn record(&self, strength: u64, is_right: bool) -> Recorded {
        let right = if is_right { "--right" } else { "" };
        self.record_with(self.options(), &["--strength", &strength.to_string(), right])
    }

    /// Runs the program under gpuflame without options, so that gpuflame writes its default files.
    pub(crate) fn record_sums(&self, strength: u64) -> Recorded {
        self.record_with(&[], &["--strength", &strength.to_string()])
    }

    fn options(&self) -> &'static [&'static str] {
        if self.options.is_empty() { &["--rows"] } else { self.options }
    }

    /// Runs the program with two faults: this fault in middle strength, and its partner in full strength.
    pub(crate) fn record_combined(&self) -> Recorded {
        let partner = self.partner.expect("a partner");
        self.record_with(self.options(), &["--strength", "12", "--fault", partner, "--strength", "40"])
    }

    fn record_with(&self, options: &[&str], arguments: &[&str]) -> Recorded {
        let program = compiled().to_str().unwrap();
        let run = Run::new(Path::new(env!("CARGO_BIN_EXE_gpuflame")), Way::None)
            .args(["run", "--library", support::gpuflame().to_str().unwrap()])
            .args(options.iter().copied())
            .args(["--", program, "--fault", self.id])
            .args(arguments.iter().copied().filter(|argument| !argument.is_empty()))
            .env("GPUSIM_CLOCK", "real")
            .env("GPUSIM_NDEV", if self.id == "idle_gpu" { "2" } else { "1" })
            .env("GPUSIM_TRUTH", "lines.jsonl");
        let run = self.settings.iter().fold(run, |run, (name, value)| run.env(name, value));
        let done = run.ok();
        let layers = layers(&done.file("lines.jsonl"));
        let start = layers.iter().map(|layer| layer.1).min().unwrap();
        let end = layers.iter().map(|layer| layer.2).max().unwrap();
        let busy =
            |device| union(layers.iter().filter(|layer| layer.0 == device).map(|layer| (layer.1, layer.2)));
        let printed: Vec<u64> =
            done.stdout.split_whitespace().map(|number| number.parse().unwrap()).collect();
        let [lengthened_ns, waited_ns] = printed[..] else { panic!("{}", done.stdout) };
        let cost_ns = match self.shows {
            Shows::Busy => lengthened_ns,
            Shows::SecondIdle => (busy(0) - busy(1)) / 2,
            _ => end - start - busy(0),
        };
        Recorded { done, cost_ns, lengthened_ns, waited_ns }
    }

    /// Returns whether the cost of the fault depends only on the GPU. Costs of host work are larger on a busy machine.
    pub(crate) fn is_exact(&self) -> bool {
        self.shows != Shows::Idle
    }

    /// Returns whether a folded file of the run names the culprit. Also returns true if the Linux kernel refused the
    /// samples that are needed to name the culprit.
    pub(crate) fn is_named(&self, done: &Done) -> bool {
        let files = fs::read_dir(&done.folder).unwrap().map(|entry| entry.unwrap().path());
        let mut folded = files.filter(|path| path.extension().is_some_and(|ending| ending == "folded"));
        done.stderr.contains("perf_event_open")
            || folded.any(|path| fs::read_to_string(path).unwrap().contains(self.function))
    }

    /// Returns the number of the line in the source that is the culprit.
    pub(crate) fn line(&self) -> usize {
        let source = fs::read_to_string(root().join(SOURCE)).unwrap();
        let is_marked = |line: &str| {
            line.split_once("/* fault: ").is_some_and(|(_, ids)| ids.split(' ').any(|id| id == self.id))
        };
        source.lines().position(is_marked).expect("a mark in the source") + 1
    }
}

fn compiled() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| compile(SOURCE, &["-O2", "-pthread"]))
}

/// Returns the device, start and end of each kernel that the loop launched.
fn layers(truth: &str) -> Vec<(u64, u64, u64)> {
    let rows = truth.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let number = |row: &Value, field: &str| row[field].as_u64().unwrap();
    rows.filter(|row| row["name"].as_str().is_some_and(|name| name.contains("layer_d")))
        .map(|row| (number(&row, "device"), number(&row, "start"), number(&row, "end")))
        .collect()
}

/// Returns the length of the union of the given intervals.
fn union(intervals: impl Iterator<Item = (u64, u64)>) -> u64 {
    let mut sorted: Vec<_> = intervals.collect();
    sorted.sort_unstable();
    let (mut sum, mut until) = (0, 0);
    for (start, end) in sorted {
        sum += end.saturating_sub(start.max(until));
        until = until.max(end);
    }
    sum
}
