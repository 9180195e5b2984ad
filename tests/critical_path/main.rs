//! `gpuflame critical-path` on random simulated programs. Each program runs again with one piece of work that takes longer or
//! shorter, and the simulator tells how much later or earlier the program ends: that is what slack and savings promise.

mod by_hand;
mod real_traces;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use gpusim_selftest::{Outcome, Run};
use serde_json::Value;

/// What a program leaves out, as `random.c` defines it.
const GRAPHS: u32 = 1;
const PROGRAMMATIC: u32 = 2;
const HOST_FUNCTIONS: u32 = 4;
const LEGACY_STREAM: u32 = 8;
const THREADS: u32 = 16;

fn number(row: &Value, key: &str) -> u64 {
    row[key].as_u64().unwrap_or_else(|| panic!("no {key} in {row}"))
}

/// A random program.
#[derive(Clone, Copy, Debug)]
struct Program {
    seed: u32,
    without: u32,
}

impl Program {
    fn run(self, change: Option<(u64, i64)>) -> Outcome {
        let args = [self.seed.to_string(), "60".to_owned(), self.without.to_string()];
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let mut run = Run::new("random", &args).stepped().env("GPUSIM_NDEV", "2");
        if let Some((op, by)) = change {
            run = run.env("GPUSIM_CHANGE", format!("{op}:{by}"));
        }
        let outcome = run.outcome();
        assert_eq!(outcome.code, Some(0), "{self:?} {change:?}: {}", outcome.stderr);
        outcome
    }
}

/// End of the last call or work that a trace has.
fn end_of(schedule: &[Value]) -> u64 {
    let rows = schedule.iter().filter(|row| row["what"] == "op" || row["what"] == "call");
    let known = rows.filter(|row| row["kind"] != "host" && row["kind"] != "pages");
    known.map(|row| number(row, "end")).max().unwrap()
}

fn deps(trace: &str, name: &str) -> Value {
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.json"));
    std::fs::write(&file, trace).unwrap();
    let run = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpuflame"));
        command.args(["-q", "deps", "--format", "json"]).arg(&file).output().unwrap()
    };
    let (one, other) = (run(), run());
    std::fs::remove_file(&file).unwrap();
    assert!(one.status.success(), "{name}: {}", String::from_utf8_lossy(&one.stderr));
    assert_eq!(one.stdout, other.stdout, "{name}: two runs print the same");
    serde_json::from_slice(&one.stdout).unwrap()
}

/// What the command says of a piece of work.
#[derive(Clone, Copy, Debug)]
struct Said {
    slack: u64,
    saving: u64,
    /// Why it began when it did.
    reason: &'static str,
}

/// Pieces of work as the command prints them, by begin, end and correlation id, as far as these are unique.
fn said(deps: &Value) -> BTreeMap<(u64, u64, u64), Option<Said>> {
    let mut all = BTreeMap::new();
    for node in deps["nodes"].as_array().unwrap().iter().filter(|node| node["kind"] == "work") {
        let key = (number(node, "start_ns"), number(node, "end_ns"), number(node, "correlation"));
        let reasons = [
            "launch",
            "stream",
            "programmatic",
            "event",
            "default_stream",
            "graph_launch",
            "graph_node",
            "same_graph",
        ];
        let reason = reasons.into_iter().find(|reason| node["decided_by"] == *reason).unwrap_or("nothing");
        let one = Said { slack: number(node, "slack_ns"), saving: number(node, "saving_ns"), reason };
        all.entry(key).and_modify(|known| *known = None).or_insert(Some(one));
    }
    all
}

/// How often each thing was checked.
#[derive(Debug, Default)]
struct Counts(BTreeMap<&'static str, u32>);

impl Counts {
    fn add(&mut self, what: &'static str) {
        *self.0.entry(what).or_default() += 1;
    }

    fn of(&self, what: &str) -> u32 {
        self.0.get(what).copied().unwrap_or(0)
    }
}

const STEP_NS: u64 = 1_000;

fn check(program: Program, counts: &mut Counts) {
    let outcome = program.run(None);
    let schedule = &outcome.schedule;
    let ops: Vec<&Value> = schedule.iter().filter(|row| row["what"] == "op").collect();
    if ops.iter().all(|op| op["kind"] == "host") {
        return;
    }
    let deps = deps(&outcome.kineto, &format!("path-{}-{}", program.seed, program.without));
    let facts = &deps["facts"];
    let zero = number(facts, "start_ns");
    let end = end_of(schedule);
    assert_eq!(zero + number(facts, "duration_ns"), end, "{program:?}: the path ends with the program");
    let parts = deps["path"].as_array().unwrap();
    let mut at = 0;
    for part in parts {
        assert_eq!(number(part, "start_ns"), at, "{program:?}: no gap and no overlap: {part}");
        at += number(part, "duration_ns");
    }
    assert_eq!(zero + at, end, "{program:?}: the parts add up");
    let said = said(&deps);
    // Every third piece of work is enough; all of them would take minutes.
    for (at, op) in ops.iter().enumerate() {
        let key = (number(op, "begin") - zero, number(op, "end") - zero, number(op, "corr"));
        let Some(Some(one)) = said.get(&key).copied() else { continue };
        check_reason(program, op, one, counts);
        if at % 3 == (program.seed as usize) % 3 && key.1 - key.0 > STEP_NS {
            check_change(program, op, one, end, counts);
        }
    }
}

/// Compares the reason with the cause that the simulator logged.
fn check_reason(program: Program, op: &Value, said: Said, counts: &mut Counts) {
    let cause = op["cause"].as_str().unwrap();
    let is_node = number(op, "graph") != 0;
    let tied = |why: &str| {
        let waits = op["waits"].as_array().unwrap().iter();
        let mut until =
            waits.filter(|wait| wait["until"] == op["ready"]).map(|wait| wait["why"].as_str().unwrap());
        // A kernel that a trigger lets begin within a microsecond of its launch is taken for launched.
        let late_ns = number(op, "begin") - number(op, "arrive");
        let is_launch = late_ns == 0 || (cause == "programmatic" && late_ns <= 1_000);
        until.any(|other| other == why) || (is_launch && why == "launch")
    };
    let same = match said.reason {
        // A stream reaches an event wait, which then decides; the next work is in the order of the stream.
        "stream" => tied("stream") || tied("event") || tied("programmatic"),
        "graph_launch" | "graph_node" | "same_graph" => is_node,
        "nothing" => false,
        reason => tied(reason),
    };
    let clear = HOST_FUNCTIONS | LEGACY_STREAM | THREADS;
    if program.without & clear == clear {
        assert!(same, "{program:?}: {cause} but {said:?}: {op}");
        counts.add(match said.reason {
            "stream" => "stream",
            "launch" => "launch",
            "programmatic" => "programmatic",
            _ => "graph",
        });
    }
}

/// Runs the program again with one piece of work longer by its slack, or shorter, and compares the ends.
fn check_change(program: Program, op: &Value, said: Said, end: u64, counts: &mut Counts) {
    let rerun = |by: i64| {
        let changed = program.run(Some((number(op, "op"), by)));
        end_of(&changed.schedule) as i64 - end as i64
    };
    if said.slack > 0 {
        let later = rerun(said.slack as i64);
        assert_eq!(later, 0, "{program:?}: longer by its slack, {said:?}: {op}");
        counts.add("longer by its slack");
    }
    let saved = -rerun(-(STEP_NS as i64));
    let claimed = said.saving.min(STEP_NS) as i64;
    assert!(claimed <= saved, "{program:?}: it saves {saved}, {said:?}: {op}");
    counts.add(if claimed > 0 { "shorter on the path" } else { "shorter off the path" });
    // The trace has all that decides the times of these programs.
    let all_is_known = GRAPHS | PROGRAMMATIC | HOST_FUNCTIONS | LEGACY_STREAM | THREADS;
    if program.without == all_is_known {
        assert_eq!(claimed, saved, "{program:?}: {said:?}: {op}");
        let later = rerun((said.slack + STEP_NS) as i64);
        assert_eq!(later, STEP_NS as i64, "{program:?}: longer by more than its slack, {said:?}: {op}");
        counts.add("exact");
    }
}

fn check_programs(seeds: std::ops::Range<u32>) {
    let mut counts = Counts::default();
    for seed in seeds {
        let without = match seed % 4 {
            0 => GRAPHS | PROGRAMMATIC | HOST_FUNCTIONS | LEGACY_STREAM | THREADS,
            1 => PROGRAMMATIC | HOST_FUNCTIONS | LEGACY_STREAM | THREADS,
            2 => GRAPHS | HOST_FUNCTIONS | LEGACY_STREAM | THREADS,
            _ => HOST_FUNCTIONS | LEGACY_STREAM | THREADS,
        };
        check(Program { seed, without }, &mut counts);
    }
    let all = [
        ("stream", 100),
        ("launch", 100),
        ("graph", 100),
        // Most triggers of these programs come so late that the stream's order decides.
        ("programmatic", 2),
        ("longer by its slack", 100),
        ("shorter on the path", 50),
        ("exact", 50),
    ];
    for (what, least) in all {
        assert!(counts.of(what) > least, "{what}: {counts:?}");
    }
}

#[test]
fn slack_and_savings_of_random_programs_come_true() {
    check_programs(0..40);
}

#[test]
#[ignore = "takes minutes"]
fn slack_and_savings_of_400_random_programs_come_true() {
    check_programs(40..440);
}
