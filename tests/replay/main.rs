//! Tests `gpuflame replay` and `gpuflame what-if` on random simulated programs. Each change is also made in the
//! simulator, which runs the program again. The predicted end must equal the real end, to the nanosecond.

mod by_hand;
mod changes_by_hand;
mod gaps_by_hand;
mod nsys_records;
#[path = "../support/random_program.rs"]
mod random_program;
mod records_by_hand;
mod steps_by_hand;

use std::ops::Range;
use std::path::PathBuf;
use std::process::Command;

use gpusim_selftest::Outcome;
use serde_json::Value;

use random_program::{
    Counts, GRAPHS, HOST_FUNCTIONS, LEGACY_STREAM, PROGRAMMATIC, THREADS, assert_features, count_features,
    end_with_host_functions as end_of, number,
};

/// Kinds of rows that determine the times of a program. torch.profiler does not write these rows, but other tools do
/// (docs/replay.md).
const ROWS: (&str, &str) = ("GPUSIM_KINETO_ROWS", "streams,host_functions,threads,events");

/// A change of a program: the options of `what-if`, and the variables with which the simulator makes the same change.
struct Edit {
    name: &'static str,
    options: &'static [&'static str],
    variables: &'static [(&'static str, &'static str)],
}

const LAUNCHES_OF_3_US: &str = "cudaLaunchKernel=3us,cudaLaunchKernelExC=3us,cudaMemcpyAsync=3us,cudaMemsetAsync=3us,\
                                cudaMemcpyPeerAsync=3us,cudaGraphLaunch=3us";
const LAUNCHES_OF_200_NS: &str = "cudaLaunchKernel=200ns,cudaLaunchKernelExC=200ns,cudaMemcpyAsync=200ns,\
                                  cudaMemsetAsync=200ns,cudaMemcpyPeerAsync=200ns,cudaGraphLaunch=200ns";

const EDITS: [Edit; 8] = [
    Edit {
        name: "half",
        options: &["--scale", "small=0.5"],
        variables: &[("GPUSIM_KERNELS", "small_d2700=1350ns")],
    },
    Edit {
        name: "double",
        options: &["--scale", "large=2"],
        variables: &[("GPUSIM_KERNELS", "large_d40000=80us")],
    },
    Edit {
        name: "four times as fast",
        options: &["--gpu-speed", "4"],
        variables: &[(
            "GPUSIM_KERNELS",
            "tiny_d300=75ns,small_d2700=675ns,medium_t9000_d12345=3086ns,large_d40000=10us,patient_s800_d6001=1500ns",
        )],
    },
    Edit {
        name: "slow launches",
        options: &["--launch-ns", "3000"],
        variables: &[("GPUSIM_COSTS", LAUNCHES_OF_3_US)],
    },
    Edit {
        name: "fast launches",
        options: &["--launch-ns", "200"],
        variables: &[("GPUSIM_COSTS", LAUNCHES_OF_200_NS)],
    },
    Edit {
        name: "removed",
        options: &["--remove", "large"],
        variables: &[("GPUSIM_LEAVE_OUT", "large_d40000")],
    },
    Edit { name: "no waits", options: &["--no-sync"], variables: &[("GPUSIM_LEAVE_OUT", "waits")] },
    Edit {
        name: "two together",
        options: &["--scale", "large=0.25", "--launch-ns", "3000"],
        variables: &[("GPUSIM_KERNELS", "large_d40000=10us"), ("GPUSIM_COSTS", LAUNCHES_OF_3_US)],
    },
];

/// A random program, whose steps the seed determines.
#[derive(Clone, Copy, Debug)]
struct Program {
    seed: u32,
    without: u32,
}

impl Program {
    fn run(self, variables: &[(&str, &str)]) -> Outcome {
        random_program::run(self.seed, self.without, variables)
    }
}

fn gpuflame(args: &[&str]) -> (Option<i32>, Value, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_gpuflame"))
        .arg("-q")
        .args(args)
        .args(["--format", "json"])
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), serde_json::from_slice(&output.stdout).unwrap_or(Value::Null), errors)
}

/// Returns the time at which the first thread first waits for the other threads.
fn first_meeting(schedule: &[Value]) -> u64 {
    let waits = schedule.iter().filter(|row| row["what"] == "thread_wait");
    waits.map(|row| number(row, "begin")).min().unwrap()
}

fn check(program: Program, counts: &mut Counts) {
    let outcome = program.run(&[ROWS]);
    count_features(&outcome.schedule, counts);
    if !outcome.schedule.iter().any(|row| row["what"] == "op" && row["kind"] == "kernel") {
        return;
    }
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("replay-{}-{}.json", program.seed, program.without));
    std::fs::write(&file, &outcome.kineto).unwrap();
    let input = file.to_str().unwrap();
    let (code, replay, errors) = gpuflame(&["replay", input, "--check"]);
    assert_eq!(code, Some(0), "{program:?}: {errors}{replay}");
    let end = end_of(&outcome.schedule);
    for edit in &EDITS {
        let (code, said, errors) = gpuflame(&[&["what-if", input], edit.options].concat());
        // This error message means that the program has no kernel with this name, or no wait.
        if code == Some(1) && errors.contains("no work has a name") || errors.contains("no call is recorded")
        {
            continue;
        }
        assert_eq!(code, Some(0), "{program:?}: {errors}");
        let total = &said["total"][0];
        // The path begins when the first thread has set up the program. The change may also affect the calls that set
        // up the program.
        assert_eq!(end - number(total, "before_ns"), first_meeting(&outcome.schedule), "{program:?}");
        let predicted = number(total, "after_ns");
        let rerun = program.run(edit.variables);
        let real = end_of(&rerun.schedule) - first_meeting(&rerun.schedule);
        let rules = said["assumptions"].as_array().unwrap().iter();
        let rests: Vec<&str> = rules
            .map(|row| row["rule"].as_str().unwrap())
            .filter(|rule| !matches!(*rule, "full_speed" | "change"))
            .collect();
        let is_right = predicted == real;
        let verdict = if is_right { "right" } else { "wrong" };
        counts.add(format!("all {verdict}"));
        counts.add(format!("set {} {verdict}", program.seed % 8));
        counts.add(format!("{} {verdict}", edit.name));
        rests.iter().for_each(|rule| counts.add(format!("{rule} {verdict}")));
        if rests.is_empty() {
            counts.add(format!("recorded {verdict}"));
        }
        if !is_right {
            eprintln!(
                "{program:?}, {}: {predicted} ns predicted, {real} ns in reality; {rests:?}",
                edit.name
            );
        }
    }
    std::fs::remove_file(&file).unwrap();
}

/// Returns the features that the random program with this seed leaves out. The test uses eight sets of such features;
/// the seeds use the sets in turn. The last set of features is empty.
fn left_out(seed: u32) -> u32 {
    let known = HOST_FUNCTIONS | THREADS;
    match seed % 8 {
        0 => known | PROGRAMMATIC | LEGACY_STREAM,
        1 => known | PROGRAMMATIC,
        2 => known | LEGACY_STREAM,
        3 => known | GRAPHS,
        4 => LEGACY_STREAM | HOST_FUNCTIONS | PROGRAMMATIC,
        5 => LEGACY_STREAM | THREADS | PROGRAMMATIC,
        6 => HOST_FUNCTIONS,
        _ => 0,
    }
}

/// Checks random programs that use all features. If a prediction uses only recorded dependencies, it must be exact.
fn check_programs(seeds: Range<u32>) -> Counts {
    let mut counts = Counts::default();
    seeds.for_each(|seed| check(Program { seed, without: left_out(seed) }, &mut counts));
    eprintln!("{counts:#?}");
    assert_eq!(counts.of("recorded wrong"), 0, "{counts:?}");
    counts
}

#[test]
#[ignore = "takes minutes"]
fn predictions_for_1000_random_programs_come_true() {
    let counts = check_programs(40..1040);
    assert_features(&counts, 200);
}

#[test]
fn predictions_for_random_programs_come_true() {
    let counts = check_programs(0..40);
    assert!(counts.of("recorded right") > 150, "{counts:?}");
    for edit in &EDITS {
        assert!(counts.of(&format!("{} right", edit.name)) > 20, "{}: {counts:?}", edit.name);
    }
}
