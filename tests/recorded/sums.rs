//! The default recording: the sums of a run, which every normal exit leaves.

use std::fs;
use std::path::Path;
use std::process::Command;

use gpuflame_explain::symbolize::{SymbolizeOptions, Symbolizer};
use gpuflame_explain::{Explain, FinishedSums, Options, Snapshot};
use gpuflame_model::record::{Detail, Nanos, Reader, Row};

use crate::support::command::gpuflame;
use crate::support::{Done, Run, Way, compile, gpuflame as library, plugin};

/// Asserts that the command reads the same from the recording as the exit wrote into the other files.
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
fn verbs_that_need_single_activities_name_the_command_that_records_them() {
    let done = finished();
    for args in [
        &["view", "out.gfr"][..],
        &["top", "out.gfr", "--by", "comm"],
        &["convert", "out.gfr", "--to", "chrome", "-o", "x.json"],
        &["stats", "out.gfr", "x.csv", "none", "1000"],
    ] {
        let ran = gpuflame(&done.folder, [&["-q"], args].concat());
        ran.fails(1, &["out.gfr: has the sums of the run", "`gpuflame run --rows PROGRAM`"]);
        assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
    }
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

/// Keeps the tables `total`, `kernels` and `stacks`, without their `run` table: idle time differs between two runs.
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

/// Makes the sums from a recording with rows, as the recorded process would have written them.
fn sums_of(rows: &[u8]) -> Vec<u8> {
    let mut explain = Explain::new(Options { has_squares: true, ..Options::default() });
    let mut reader = Reader::new(rows).unwrap();
    while let Some(row) = reader.next_row().unwrap() {
        explain.push(&row, &mut ());
    }
    let Snapshot { profile, ledger } = explain.finish(&[], &mut ());
    let mut symbolizer = Symbolizer::with_rows(SymbolizeOptions::default());
    symbolizer.name(profile);
    let functions = symbolizer.take_rows();
    let (mut file, time) = (Vec::new(), Nanos(1));
    let sums = FinishedSums {
        profile,
        ledger: &ledger,
        functions: &functions,
        are_threads_merged: false,
        outputs_failed: false,
        time,
    };
    sums.write(&mut file).unwrap();
    file
}

/// Verbs that claim to work on sums, with flags that show all rows of their tables.
const VERBS_OF_SUMS: [&[&str]; 14] = [
    &["flamegraph", "out.gfr", "--format", "folded"],
    &["flamegraph", "out.gfr", "--format", "svg"],
    &["flamegraph", "out.gfr", "--idle", "--format", "folded"],
    &["top", "out.gfr", "-n", "0", "--by", "kernels"],
    &["top", "out.gfr", "-n", "0", "--by", "stacks"],
    &["top", "out.gfr", "-n", "0", "--by", "function"],
    &["top", "out.gfr", "-n", "0", "--by", "function", "--self"],
    &["top", "out.gfr", "-n", "0", "--by", "line"],
    &["top", "out.gfr", "-n", "0", "--by", "idle"],
    &["top", "out.gfr", "-n", "0", "--by", "delay"],
    &["top", "out.gfr", "-n", "0", "--by", "delay", "--format", "json"],
    &["diff", "out.gfr", "out.gfr", "-n", "0", "--format", "json"],
    &["flamegraph", "out.gfr", "--wait", "--format", "folded"],
    &["flamegraph", "out.gfr", "--alloc", "--format", "folded"],
];

/// Runs a program with all rows, makes sums from them, and asserts that every verb shows the same from both.
fn assert_same_numbers(source: &str, args: &[&str], variables: &[(&str, &str)]) {
    let program = compile(&format!("tests/programs/{source}.c"), &["-O2"]);
    let run = Run::new(&program, Way::Injected).args(args.iter().copied());
    let run = run.env("GPUFLAME_FORMATS", "gfr,wait,alloc");
    let done = variables.iter().fold(run, |run, (name, value)| run.env(name, value)).ok();
    let rows = fs::read(done.folder.join("out.gfr")).unwrap();
    let sums = done.folder.join("sums");
    fs::create_dir(&sums).unwrap();
    fs::write(sums.join("out.gfr"), sums_of(&rows)).unwrap();
    for verb in VERBS_OF_SUMS {
        let [of_rows, of_sums] = [&done.folder, &sums].map(|folder| gpuflame(folder, verb));
        let about = format!("{source} {args:?}: {verb:?}\n{}{}", of_rows.stderr, of_sums.stderr);
        assert_eq!((of_sums.code, of_sums.stdout), (of_rows.code, of_rows.stdout), "{about}");
    }
    assert_copies_are_complete(&rows, &sums.join("out.gfr"));
}

/// Asserts that the sums contain the copies of the rows by direction and kinds of memory.
fn assert_copies_are_complete(rows: &[u8], sums: &Path) {
    let mut expected = std::collections::BTreeMap::<_, (u64, u64)>::new();
    let mut reader = Reader::new(rows).unwrap();
    while let Some(row) = reader.next_row().unwrap() {
        if let Row::Activity(activity) = row
            && let Detail::Copy(copy) = activity.detail
        {
            let sum = expected.entry((activity.device, copy.kind, copy.from, copy.to)).or_default();
            (sum.0, sum.1) = (sum.0 + 1, sum.1 + copy.bytes);
        }
    }
    let mut explain = Explain::default();
    let file = fs::read(sums).unwrap();
    let mut reader = Reader::new(&file[..]).unwrap();
    while let Some(row) = reader.next_row().unwrap() {
        explain.push(&row, &mut ());
    }
    let copies = explain.finish(&[], &mut ()).profile.copies().to_vec();
    let found = copies
        .iter()
        .map(|(path, weight)| ((path.device, path.kind, path.from, path.to), (weight.count, weight.bytes)));
    assert_eq!(found.collect::<std::collections::BTreeMap<_, _>>(), expected);
}

#[test]
fn verbs_show_the_same_numbers_from_sums_as_from_rows() {
    let gpus: &[(&str, &str)] = &[("GPUSIM_NDEV", "2")];
    let library = library();
    let ranges: &[(&str, &str)] = &[("NVTX_INJECTION64_PATH", library.to_str().unwrap())];
    assert_same_numbers("copies", &[], gpus);
    assert_same_numbers("devices", &[], gpus);
    assert_same_numbers("roots", &[], gpus);
    assert_same_numbers("unified", &[], &[("GPUSIM_NDEV", "2"), ("GPUFLAME_UNIFIED", "1")]);
    assert_same_numbers("load", &["--threads", "2", "--launches", "500"], &[]);
    assert_same_numbers("threads", &["4", "20"], &[]);
    assert_same_numbers("stacks", &["2", "2", "2", "2", "1"], &[]);
    assert_same_numbers("host", &[], &[("GPUSIM_CLOCK", "real")]);
    assert_same_numbers("events", &[], &[("GPUFLAME_DEPS", "1")]);
    assert_same_numbers("ranges", &["--steps", "3"], ranges);
    assert_same_numbers("steps", &["gaps", "5"], &[]);
    assert_same_numbers("steps", &["early", "7"], &[]);
    assert_same_numbers("stall", &["--steps", "20", "--devices", "2"], gpus);
    assert_same_numbers("flood", &["stacks", "200", "40"], &[]);
    assert_same_numbers("flood", &["kernels", "50"], &[]);
    for mode in ["captured", "explicitly", "copies", "children", "updated", "update_that_fails"] {
        assert_same_numbers("graphs", &[mode, "10"], &[]);
    }
}
