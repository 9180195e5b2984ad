//! Tests random programs on the stepped clock: two runs have the same schedule, and the schedule obeys CUDA's ordering
//! rules.

use gpusim_selftest::{Outcome, Run};
use serde_json::Value;
use std::collections::{BTreeSet, HashMap};

fn run(seed: u32) -> Outcome {
    let run = Run::new("random", &[&seed.to_string()]).stepped();
    run.env("GPUSIM_NDEV", "2").env("GPUSIM_WATCHDOG_MS", "10000").outcome().expect_success()
}

fn number(row: &Value, key: &str) -> u64 {
    row[key].as_u64().unwrap_or_else(|| panic!("no {key} in {row}"))
}

fn waits(op: &Value) -> &[Value] {
    op["waits"].as_array().expect("a list")
}

/// Checks that an operation begins as soon as it has reached the GPU, 5 us after its API call began, and all its
/// dependencies are done.
fn check_begin(op: &Value) {
    let until = waits(op).iter().map(|wait| number(wait, "until")).max().unwrap_or(0);
    let enqueue = number(op, "enqueue");
    assert_eq!(number(op, "ready"), until.max(enqueue), "{op}");
    assert_eq!(number(op, "begin"), until.max(enqueue + 5_000), "{op}");
}

/// Checks that a kernel takes the time in its name. A kernel may take longer if it waits, while it runs, for the kernel
/// before it.
fn check_duration(op: &Value) {
    let Some(name) = op["name"].as_str() else { return };
    let expected: u64 = name.trim_end_matches('v').rsplit_once("_d").unwrap().1.parse().unwrap();
    let took = number(op, "end") - number(op, "begin");
    // A programmatically launched kernel may also take longer without a recorded wait, if the trigger happened before
    // the launch call.
    assert!(took == expected || op["programmatic"] == true && took > expected, "{op}");
}

/// Checks that a wait for an operation ends when the operation ends. A wait for a kernel's trigger ends while the
/// kernel runs.
fn check_waits(op: &Value, ends: &HashMap<u64, (u64, u64)>) {
    for wait in waits(op).iter().filter(|wait| number(wait, "op") != 0) {
        let (until, (begin, end)) = (number(wait, "until"), ends[&number(wait, "op")]);
        match wait["why"].as_str().unwrap() {
            "programmatic" => assert!((begin..=end).contains(&until), "{op}"),
            // A CUDA event may be recorded long after the earlier work on its stream has ended.
            "event" => assert!(until >= end, "{op}"),
            _ => assert_eq!(until, end, "{op}"),
        }
    }
}

/// Checks that the operations of a stream end in order, and that they begin in order unless the launch is programmatic.
/// Graph edges determine the order of the nodes in one graph launch.
fn check_streams(ops: &[&Value]) {
    let mut last: HashMap<(u64, u64), Vec<&Value>> = HashMap::new();
    for op in ops {
        let stream = last.entry((number(op, "context"), number(op, "stream"))).or_default();
        let same_launch = |other: &&&Value| number(op, "graph") != 0 && other["corr"] == op["corr"];
        for before in stream.iter().filter(|other| !same_launch(other)) {
            assert!(number(op, "end") >= number(before, "end"), "{before}\n{op}");
            let begins_after = number(op, "begin") >= number(before, "end");
            assert!(begins_after || op["programmatic"] == true, "{before}\n{op}");
        }
        stream.push(op);
    }
}

/// Checks that the legacy default stream and the blocking streams of its context never run at the same time.
fn check_default_stream(ops: &[&Value], free: &BTreeSet<u64>) -> usize {
    let is_legacy = |op: &&&Value| number(op, "stream") == 7;
    let mut pairs = 0;
    for legacy in ops.iter().filter(is_legacy) {
        let blocking = |op: &&&Value| !free.contains(&number(op, "stream")) && number(op, "stream") != 7;
        for other in ops.iter().filter(blocking).filter(|op| op["context"] == legacy["context"]) {
            let (a, b) = (number(legacy, "begin"), number(other, "begin"));
            assert!(a >= number(other, "end") || b >= number(legacy, "end"), "{legacy}\n{other}");
            pairs += 1;
        }
    }
    pairs
}

#[test]
fn two_runs_of_a_random_program_are_the_same_and_keep_the_rules() {
    let (mut causes, mut pairs) = (BTreeSet::new(), 0);
    for seed in 0..24 {
        let outcome = run(seed);
        let again = run(seed);
        assert!(
            outcome.schedule == again.schedule && outcome.kineto == again.kineto,
            "seed {seed} is repeatable"
        );
        let rows = |what: &str| outcome.schedule.iter().filter(|row| row["what"] == what).collect::<Vec<_>>();
        let ops = rows("op");
        let span = |op: &&Value| (number(op, "op"), (number(op, "begin"), number(op, "end")));
        let ends: HashMap<u64, (u64, u64)> = ops.iter().map(span).collect();
        for op in &ops {
            check_begin(op);
            check_duration(op);
            check_waits(op, &ends);
            causes.insert(op["cause"].as_str().unwrap().to_owned());
        }
        check_streams(&ops);
        let free = rows("stream").into_iter().filter(|row| row["blocking"] == false);
        pairs += check_default_stream(&ops, &free.map(|row| number(row, "stream")).collect());
    }
    let all = ["default_stream", "edge", "event", "graph", "launch", "programmatic", "stream"];
    assert_eq!(causes, all.map(str::to_owned).into(), "the programs meet every cause");
    assert!(pairs > 1_000, "{pairs} pairs of work on a default and a blocking stream");
}
