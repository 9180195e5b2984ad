//! Tests the default recording, which contains only the sums of a run. gpuflame writes it at every normal exit.

use std::fs;
use std::path::Path;
use std::process::Command;

use gpuflame_model::record::Reader;

use crate::support::command::gpuflame;
use crate::support::{Done, Run, Way, compile, plugin};

/// Asserts that the command makes from the recording the same files that the process wrote at its exit.
fn assert_read_as_written(done: &Done) {
    let drawn = |args: &[&str]| gpuflame(&done.folder, args).ok();
    let folded = drawn(&["flamegraph", "out.gfr", "--format", "folded"]);
    assert_eq!((folded.stdout, folded.stderr.as_str()), (done.file("out.folded"), ""));
    assert_eq!(drawn(&["flamegraph", "out.gfr", "--format", "svg"]).stdout, done.file("out.svg"));
    let idle = drawn(&["flamegraph", "out.gfr", "--idle", "--format", "folded"]);
    assert_eq!(idle.stdout, done.file("out.idle.folded"));
}

#[test]
fn sums_read_the_same_without_the_program_and_its_libraries() {
    let program = compile("tests/programs/plugins.c", &["-O2"]);
    let (library, stripped) = (plugin("red"), plugin("gone"));
    assert!(Command::new("strip").arg("--strip-all").arg(&stripped).status().unwrap().success());
    let done = Run::new(&program, Way::Injected).arg(&library).arg(&stripped).ok();
    assert!(
        done.file("out.folded").contains("main;run;plugin_run;inner_red;"),
        "{}",
        done.file("out.folded")
    );
    for file in [&program, &library, &stripped] {
        fs::remove_file(file).unwrap();
    }
    assert_read_as_written(&done);
    let lines = gpuflame(&done.folder, ["top", "out.gfr", "--by", "line"]).ok().stdout;
    assert!(lines.contains("plugin.c:"), "{lines}");
}

fn finished() -> Done {
    let program = compile("tests/programs/plugins.c", &["-O2"]);
    Run::new(&program, Way::Injected).arg(plugin("red")).ok()
}

#[test]
fn a_finished_recording_differs_from_the_checkpoint_of_a_killed_process() {
    let done = finished();
    let folder = &done.folder;
    let bytes = fs::read(folder.join("out.gfr")).unwrap();
    let mut reader = Reader::new(&bytes[..]).unwrap();
    while reader.next_row().unwrap().is_some() {}
    assert!(reader.state().finished && reader.is_complete() && reader.has_sums());
    let info = gpuflame(folder, ["info", "out.gfr"]).ok();
    assert!(info.stdout.contains("the sums of the run, no single activities"), "{}", info.stdout);
    assert_eq!(info.stderr, "");
    let check = gpuflame(folder, ["check", "out.gfr"]).ok().stdout;
    let died = check.lines().find(|line| line.contains("the recording has its end"));
    assert!(died.is_some_and(|line| line.starts_with("ok")), "{check}");
    gpuflame(folder, ["recover", "out.gfr"])
        .fails(1, &["out.gfr: its process has written its files at its exit"]);
    let doctor = gpuflame(folder, ["doctor"]).stdout;
    assert!(doctor.contains("no process has left one in that folder"), "{doctor}");
    fs::write(folder.join("cut.gfr"), &bytes[..bytes.len() - 1]).unwrap();
    let cut = gpuflame(folder, ["info", "cut.gfr"]).ok().stderr;
    assert!(
        cut.contains("cut.gfr: its process exited normally, but the end of the file is missing"),
        "{cut}"
    );
}

#[test]
fn sums_can_be_switched_off_and_a_recording_of_every_row_replaces_them() {
    let program = compile("tests/programs/plugins.c", &["-O2"]);
    let library = plugin("red");
    let run = |formats| Run::new(&program, Way::Injected).arg(&library).env("GPUFLAME_FORMATS", formats).ok();
    let is_there = |done: &Done| Path::new(&done.folder).join("out.gfr").exists();
    assert!(!is_there(&run("folded")));
    assert!(is_there(&run("sums")));
    let rows = run("sums,gfr");
    assert!(gpuflame(&rows.folder, ["view", "out.gfr"]).ok().stdout.contains("step_d1000"));
}

/// Compares the recording `out.gfr` with the recording `after`. Returns three tables: `total`, `kernels` and `stacks`.
/// The table `run` is left out, because the idle time of two runs differs.
fn compared(folder: &Path, after: &str) -> serde_json::Value {
    let report = gpuflame(folder, ["diff", "out.gfr", after, "-n", "0", "--format", "json"]).ok().stdout;
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    assert!(report["kernels"].as_array().is_some_and(|rows| !rows.is_empty()), "{report}");
    ["total", "matched", "kernels", "stacks"].map(|table| report[table].clone()).into_iter().collect()
}

#[test]
fn diff_of_sums_equals_diff_of_rows() {
    let program = compile("tests/programs/plugins.c", &["-O2"]);
    let (red, far) = (plugin("red"), plugin("far"));
    let run = |formats, plugins: &[&Path]| {
        let run = Run::new(&program, Way::Injected).env("GPUFLAME_FORMATS", formats);
        plugins.iter().fold(run, |run, plugin| run.arg(plugin)).ok()
    };
    let [sums, rows] = ["sums", "gfr"].map(|formats| {
        let before = run(formats, &[&red, &red, &red, &red, &red, &red]);
        let after = run(formats, &[&red, &red, &far, &far, &far, &far, &far]);
        fs::copy(after.folder.join("out.gfr"), before.folder.join("after.gfr")).unwrap();
        compared(&before.folder, "after.gfr")
    });
    assert_eq!(sums, rows);
}
