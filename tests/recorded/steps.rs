//! Tests the steps that a program marks, both in recordings with rows and in checkpoints.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::support::command::gpuflame as command;
use crate::support::{Done, Run, Way, compile};
use gpuflame_model::record::{Reader, Row};
use serde_json::Value;

fn run(args: &[&str], flags: &[&str]) -> Run {
    let program = compile("tests/programs/steps.c", &[&["-O2"], flags].concat());
    Run::new(&program, Way::Injected).args(args.iter().copied())
}

fn recorded(args: &[&str], flags: &[&str]) -> Done {
    let run = run(args, flags).env("GPUFLAME_FORMATS", "gfr").env("GPUFLAME_STEP_RANGE", "batch *");
    run.ok()
}

/// Returns the steps in a recording. For each step, returns its number, its name, and the number of launches until the
/// next step begins.
fn steps(done: &Done) -> Vec<(u64, String, usize)> {
    let mut reader = Reader::new(BufReader::new(File::open(done.folder.join("out.gfr")).unwrap())).unwrap();
    let (mut steps, mut launches) = (Vec::new(), Vec::new());
    while let Some(row) = reader.next_row().unwrap() {
        match row {
            Row::Step(step) => steps.push((step.time, step.number, step.name.to_owned(), step.thread.0)),
            Row::Launch(launch) => launches.push(launch.time),
            _ => {}
        }
    }
    assert!(steps.iter().all(|step| step.3 == steps[0].3), "{steps:?}");
    let next = |at: usize| steps.get(at + 1).map(|next| next.0);
    let count = |at: usize| {
        let inside = launches.iter().filter(|time| **time > steps[at].0);
        inside.filter(|time| next(at).is_none_or(|next| **time < next)).count()
    };
    (0..steps.len()).map(|at| (steps[at].1, steps[at].2.clone(), count(at))).collect()
}

/// Returns the value that `gpuflame info` prints after the name `what`.
fn fact(folder: &Path, what: &str) -> Value {
    let info = command(folder, ["info", "out.gfr", "--format", "json"]).ok().stdout;
    let info: Value = serde_json::from_str(&info).unwrap();
    let facts = info["facts"].as_array().unwrap();
    facts.iter().find(|fact| fact["what"] == what).map_or(Value::Null, |fact| fact["value"].clone())
}

#[test]
fn steps_of_calls_and_of_ranges_are_recorded_with_their_launches() {
    for (mode, name) in [("calls", ""), ("ranges", "batch ")] {
        let done = recorded(&[mode, "12"], &[]);
        let found = steps(&done);
        let numbers: Vec<u64> = found.iter().map(|step| step.0).collect();
        assert_eq!(numbers, (1..=12).collect::<Vec<_>>(), "{mode}");
        let named = |number: u64| if name.is_empty() { String::new() } else { format!("{name}{number}") };
        assert!(found.iter().all(|step| step.1 == named(step.0)), "{found:?}");
        // The program's function `save` launches its copy after the last step has begun, so the copy belongs to the
        // last step.
        let launches: Vec<usize> = found.iter().map(|step| step.2).collect();
        assert_eq!(launches, [vec![2; 11], vec![3]].concat());
        assert_eq!(fact(&done.folder, "steps"), 12);
        assert_eq!(done.ledger("steps"), ["12 recorded"]);
        // `gpuflame stats` averages the eleven steps that have the same GPU work.
        let stats = command(&done.folder, ["stats", "out.gfr", "-", "none", "1000"]).ok();
        assert!(stats.stderr.contains("averaged 11 of 12 steps"), "{}", stats.stderr);
        let names: Vec<_> =
            stats.stdout.lines().skip(1).map(|line| line.split(',').next().unwrap()).collect();
        assert_eq!(names, ["forward_d20000", "update_d10000"]);
    }
}

#[test]
fn a_step_that_began_before_cuda_is_recorded() {
    let done = recorded(&["early", "5"], &["-DLINKED"]);
    let found = steps(&done);
    assert_eq!(
        found.iter().map(|step| (step.0, step.2)).collect::<Vec<_>>(),
        [(1, 2), (2, 2), (3, 2), (4, 2), (5, 3)]
    );
}

#[test]
fn steps_without_gpu_work_are_listed_and_idle_time_stays_known() {
    let done = recorded(&["gaps", "7"], &[]);
    assert_eq!(fact(&done.folder, "steps without GPU work"), "2, 5, counted from 0");
    assert_eq!(fact(&done.folder, "idle time"), Value::Null);
}

#[test]
fn diff_and_merge_ranks_count_the_steps_of_recordings() {
    let (one, other) = (recorded(&["calls", "10"], &[]), recorded(&["calls", "20"], &[]));
    let path = |done: &Done| done.folder.join("out.gfr").into_os_string().into_string().unwrap();
    let diff = command(&one.folder, ["diff", &path(&one), &path(&other), "--format", "json"]).ok().stdout;
    let diff: Value = serde_json::from_str(&diff).unwrap();
    let rows = diff["run"].as_array().unwrap();
    let busy =
        |what: &str| rows.iter().find(|row| row["what"] == what).unwrap()["after_ns"].as_u64().unwrap();
    assert_eq!(busy("busy of a step"), busy("busy") / 20);
    let args = ["merge-ranks", "--assume-order", &path(&one), &path(&other), "--format", "json"];
    let ranks: Value = serde_json::from_str(&command(&one.folder, args).ok().stdout).unwrap();
    assert_eq!((&ranks["ranks"][0]["steps"], &ranks["ranks"][1]["steps"]), (&10.into(), &20.into()));
}

/// Returns the busy time and the idle time of the start-up, the steady part and the shutdown, as `gpuflame info` prints
/// them.
fn parts(folder: &Path) -> Vec<(String, u64, u64)> {
    let info = command(folder, ["info", "out.gfr", "--format", "json"]).ok().stdout;
    let info: Value = serde_json::from_str(&info).unwrap();
    let nanos = |row: &Value, column: &str| row[column].as_u64().unwrap();
    let rows = info["parts"].as_array().unwrap().iter();
    let parts: Vec<_> = rows
        .map(|row| (row["part"].as_str().unwrap().to_owned(), nanos(row, "busy_ns"), nanos(row, "idle_ns")))
        .collect();
    let whole: u64 = parts.iter().map(|(_, busy, idle)| busy + idle).sum();
    assert_eq!(info["devices"][0]["window_ns"], whole, "{info}");
    parts
}

/// Returns the idle time under the root frame `mark` in the flame graph that the library wrote.
fn idle_in_picture(done: &Done, mark: &str) -> u64 {
    let stacks = done.folded_file("out.idle.folded");
    stacks.iter().filter(|(frames, _)| frames[0] == mark).map(|(_, nanos)| nanos).sum()
}

#[test]
fn start_up_and_shutdown_are_apart_and_equal_in_library_and_command() {
    // The program's function `prepare` takes 30 ms and runs three kernels of 5 us. Each step runs kernels of 20 and 10
    // us. The copy of 1,000 bytes in `save` takes 2,040 ns. The work of `save` counts as shutdown only if the program
    // does not mark steps.
    for (mode, words, steps_busy, shutdown_busy) in
        [("calls", "steps", 12 * 30_000 + 2040, 0), ("none", "repeated launches", 12 * 30_000, 2040)]
    {
        let done = run(&[mode, "12"], &[]).env("GPUFLAME_FORMATS", "gfr,idle").ok();
        let parts = parts(&done.folder);
        let busy: Vec<_> = parts.iter().map(|(part, busy, _)| (part.as_str(), *busy)).collect();
        assert_eq!(busy, [("start-up", 15_000), (words, steps_busy), ("shutdown", shutdown_busy)]);
        let (start_up, shutdown) = (parts[0].2, parts[2].2);
        assert!(start_up > 30_000_000, "{start_up}");
        assert_eq!(shutdown > 40_000_000, mode == "none", "{shutdown}");
        assert_eq!(idle_in_picture(&done, "[start-up]"), start_up);
        assert_eq!(idle_in_picture(&done, "[shutdown]"), shutdown);
        let (_, idle) = done.sum("GPU 0 idle_ns");
        assert_eq!((idle["start_up"], idle["shutdown"]), (start_up, shutdown));
        let headline = done.ledger("GPU 0: ")[0];
        assert!(headline.contains(&format!(" s of {words}, between 0.0")), "{headline}");
        assert_eq!(fact(&done.folder, "steady part"), words);
        // The command `gpuflame flamegraph` draws the same flame graph from the recording.
        command(&done.folder, ["flamegraph", "out.gfr", "--idle", "-o", "again.folded"]).ok();
        assert_eq!(done.file("again.folded"), done.file("out.idle.folded"));
    }
}

#[test]
fn a_checkpoint_holds_the_steps_and_the_parts_of_the_run() {
    let run = run(&["calls", "7", "abort"], &[]).env("GPUFLAME_CHECKPOINT", "0.05");
    let (mut process, folder) = run.into_command();
    let mut child = process.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let began = Instant::now();
    // Until the process ends, the name of the checkpoint file contains the process id.
    while std::fs::read(folder.join("out.gfr")).is_err() || fact(&folder, "launches matched") != 17 {
        assert!(began.elapsed() < Duration::from_secs(60), "no complete checkpoint");
        std::thread::sleep(Duration::from_millis(50));
    }
    std::fs::write(folder.join("go"), "").unwrap();
    child.wait().unwrap();
    assert_eq!(fact(&folder, "steps"), 7);
    let busy: Vec<_> = parts(&folder).into_iter().map(|(part, busy, _)| (part, busy)).collect();
    let expected = [("start-up", 15_000), ("steps", 7 * 30_000), ("shutdown", 0)];
    assert_eq!(busy, expected.map(|(part, busy)| (part.to_owned(), busy)));
    let merged = command(&folder, ["merge-ranks", "out.gfr", "--format", "json"]).ok().stdout;
    let merged: Value = serde_json::from_str(&merged).unwrap();
    assert_eq!(merged["ranks"][0]["steps"], 7);
}
