//! A host keeps its descriptors, its files and its stderr to itself, and its exit, whatever it does with them.

use std::fs;

use crate::support::{Done, Run, Way, compile};

fn prepare(mode: &str) -> Run {
    let program = compile("tests/programs/unharmed.c", &["-O2", "-g0"]);
    Run::new(&program, Way::Injected).arg(mode).env("GPUFLAME_FORMATS", "folded,csv,activities,gfr")
}

fn run(mode: &str) -> Done {
    prepare(mode).ok()
}

/// The host's own files have what the host wrote, and nothing else.
fn assert_its_own(done: &Done, files: usize) {
    for number in 0..files {
        assert_eq!(done.file(&format!("mine{number}")), "mine\n", "mine{number}");
    }
}

/// The recording and the table are whole, wherever the descriptors went on the way.
fn assert_all_written(done: &Done, launches: u64) {
    let folded = done.file("out.folded");
    // What lies between is the mode's function, inlined.
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
fn a_host_that_closes_3_to_255_and_opens_its_own_files_has_none_of_our_rows_in_them() {
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

#[test]
fn a_log_that_stderr_was_moved_to_gets_the_ledger() {
    let done = run("log");
    assert_all_written(&done, 1_000);
    assert!(done.file("log").starts_with("gpuflame: launches 1000 = matched 1000 "), "{}", done.file("log"));
    assert_eq!(done.stderr, "");
}

#[test]
fn descriptors_0_1_and_2_that_were_closed_at_the_start_are_not_taken() {
    let done = run("closed");
    assert_its_own(&done, 3);
    assert_all_written(&done, 11_000);
    assert_eq!((done.stdout.as_str(), done.stderr.as_str()), ("", ""));
}

/// The program ends itself by a signal where its exit hangs.
#[test]
fn a_full_pipe_that_nobody_reads_does_not_hold_up_the_exit_for_ever() {
    let done = run("full");
    assert_all_written(&done, 1_000);
}

/// The program looks at its flags after we have written, and fails where one is gone.
#[test]
fn a_stderr_that_does_not_block_gets_the_whole_ledger_and_stays_as_it_is() {
    let done = run("nonblocking");
    let read = fs::read_to_string(done.folder.join("read")).unwrap();
    let ledger = read.trim_start_matches("filling\n");
    let line =
        |word: &str| ledger.lines().filter(|line| line.starts_with(&format!("gpuflame: {word}"))).count();
    for word in ["launches 1000 = ", "activities 1000 = ", "lost: ", "own cost: ", "wrote "] {
        assert!(line(word) >= 1, "no {word} in\n{read}");
    }
    assert!(ledger.lines().all(|line| line.starts_with("gpuflame: ")), "{read}");
    assert!(ledger.ends_with('\n'), "{read}");
}

#[test]
fn what_a_killed_process_leaves_is_a_recording_under_its_own_name() {
    let done = prepare("killed").done();
    assert_eq!(done.code, None);
    let ran = crate::support::command::gpuflame(&done.folder, ["info", "out.gfr", "--format", "json"]).ok();
    let info: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    let facts = info["facts"].as_array().unwrap();
    let launches = facts.iter().find(|fact| fact["what"] == "launches").unwrap();
    // It was killed two seconds after the last of them.
    assert_eq!(launches["value"], 20_000);
    assert!(
        ran.stderr.contains("out.gfr: its process ended without its exit hooks, after "),
        "{}",
        ran.stderr
    );
}
