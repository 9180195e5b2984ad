//! Tests the five-line summary that a process prints when it exits. The process prints the ledger only if the user
//! requests it. The ledger is in the recording even if the process does not print it.

use std::fs::File;
use std::io::BufReader;

use crate::support::{Done, Run, Way, compile};
use gpuflame_model::record::{Provenance, Reader, Row};

fn without_ledger(program: &str, args: &[&str]) -> Run {
    let program = compile(program, &["-O2", "-pthread"]);
    Run::new(&program, Way::Injected).args(args.iter().copied()).env("GPUFLAME_VERBOSE", "0")
}

/// Returns the lines that gpuflame printed, without their prefix and without the heading. (gpuflame prints a heading
/// because standard error is a pipe, and it cannot know whether the text before its own ends with a complete line.)
fn printed(done: &Done) -> Vec<&str> {
    let lines = done.ledger("");
    assert!(lines[0].starts_with("results of process "), "{lines:?}");
    lines[1..].to_vec()
}

/// Returns the lines of the ledger in the recording.
fn recorded_ledger(done: &Done) -> Vec<String> {
    let mut reader = Reader::new(BufReader::new(File::open(done.folder.join("out.gfr")).unwrap())).unwrap();
    let mut lines = Vec::new();
    while let Some(row) = reader.next_row().unwrap() {
        if let Row::Provenance { what: Provenance::LEDGER, text } = row {
            lines.push(text.to_owned());
        }
    }
    lines
}

#[test]
fn the_summary_has_five_lines_and_the_ledger_is_in_the_recording() {
    let run = without_ledger("tests/programs/devices.c", &[]).env("GPUSIM_NDEV", "2");
    let done = run.env("GPUFLAME_FORMATS", "folded,svg,csv,idle,gfr").ok();
    let [busy, idle, work, complete, next] = printed(&done)[..] else {
        panic!("five lines:\n{}", done.stderr)
    };
    assert!(busy.starts_with("GPU 0 busy ") && busy.contains(", GPU 1 busy "), "{busy}");
    assert!(idle.starts_with("idle "), "{idle}");
    // The copy takes 43,943 ns, the fill takes 2,048 ns, and the eight kernels take 12,000 ns.
    let expected = "GPU work 57.991 us: 75.8 % PtoP copies, 20.7 % step_d1500 (8 x 1.500 us), 3.5 % fills";
    assert_eq!(work, expected);
    let launches = done.truth().count("count");
    assert_eq!(complete, format!("complete: {launches} launches, none lost"));
    // The last line of the summary names one of two flame graphs. The share of time that the GPU is busy decides which
    // flame graph it names; this share depends on the machine.
    let pictures = ["out.svg", "out.idle.svg"].map(|name| done.folder.join(name));
    let lines = pictures.map(|file| format!("next: open {}; 6 more files were written", file.display()));
    assert!(lines.contains(&next.to_owned()), "{next}");
    let ledger = recorded_ledger(&done);
    assert!(ledger[0].starts_with(&format!("launches {launches} = matched {launches} + ")), "{ledger:?}");
    assert!(ledger.iter().any(|line| line.starts_with("own cost: ")), "{ledger:?}");
}

#[test]
fn a_printed_ledger_precedes_the_summary_and_is_not_in_the_recording() {
    let run = without_ledger("tests/programs/devices.c", &[]).env("GPUSIM_NDEV", "2");
    let run = run.env("GPUFLAME_VERBOSE", "1").env("GPUFLAME_FORMATS", "svg,gfr");
    let done = run.ok();
    let lines = printed(&done);
    assert!(lines[0].starts_with("launches "), "{}", done.stderr);
    assert!(lines[lines.len() - 5].starts_with("GPU 0 busy "), "{}", done.stderr);
    assert!(lines[lines.len() - 2].starts_with("complete: "), "{}", done.stderr);
    assert_eq!(recorded_ledger(&done), [""; 0]);
}

#[test]
fn the_summary_names_the_calls_around_the_largest_pause() {
    let done = without_ledger("tests/programs/culprits.c", &["sleep", "10"]).ok();
    let [busy, idle, ..] = printed(&done)[..] else { panic!("{}", done.stderr) };
    assert!(busy.contains(" % of ") && busy.contains("start-up"), "{busy}");
    let place = " % between cudaDeviceSynchronize in train and cudaLaunchKernel in compute)";
    assert!(idle.contains(" % host late (") && idle.ends_with(place), "{idle}");
}

#[test]
fn each_line_of_a_rank_names_the_rank_and_the_process() {
    let done = without_ledger("tests/programs/devices.c", &[]).env("GPUSIM_NDEV", "2").env("RANK", "3").ok();
    let lines = printed(&done);
    assert!(lines.len() == 5 && lines.iter().all(|line| line.starts_with("rank 3, process ")), "{lines:?}");
}
