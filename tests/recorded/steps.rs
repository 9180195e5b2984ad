//! Steps that a program marks, in recordings with rows and in checkpoints.

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

/// Steps of a recording: numbers, names, and launches between the beginnings of two steps.
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

/// Value of a fact that `info` prints.
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
        // The copy of `save` is after the last step began.
        let launches: Vec<usize> = found.iter().map(|step| step.2).collect();
        assert_eq!(launches, [vec![2; 11], vec![3]].concat());
        assert_eq!(fact(&done.folder, "steps"), 12);
        assert_eq!(done.ledger("steps"), ["12 begun"]);
        // `stats` averages the eleven steps that have the same work.
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

#[test]
fn a_checkpoint_holds_the_number_of_steps() {
    let run = run(&["calls", "7", "abort"], &[]).env("GPUFLAME_CHECKPOINT", "0.05");
    let (mut process, folder) = run.into_command();
    let mut child = process.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let began = Instant::now();
    // The name of the checkpoint has the process's number until the process ends.
    while std::fs::read(folder.join("out.gfr")).is_err() || fact(&folder, "launches matched") != 17 {
        assert!(began.elapsed() < Duration::from_secs(60), "no complete checkpoint");
        std::thread::sleep(Duration::from_millis(50));
    }
    std::fs::write(folder.join("go"), "").unwrap();
    child.wait().unwrap();
    assert_eq!(fact(&folder, "steps"), 7);
    let merged = command(&folder, ["merge-ranks", "out.gfr", "--format", "json"]).ok().stdout;
    let merged: Value = serde_json::from_str(&merged).unwrap();
    assert_eq!(merged["ranks"][0]["steps"], 7);
}
