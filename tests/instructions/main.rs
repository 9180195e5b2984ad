//! Tests `gpuflame instructions` on random simulated programs, whose instructions and dependencies follow from the
//! simulator's log.
//!
//! This file computes the expected instructions from the log alone. A trace contains less information than the log. A
//! trace has no rows for host functions in streams and for moves of unified memory. A trace contains the record of a
//! CUDA event only if something waited for the event.

mod counts;
#[path = "../support/skip.rs"]
mod skip;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::{Command, Output};

use gpusim_selftest::Run;
use serde_json::{Value, json};

/// A stream, given as its device, CUDA context and stream id.
type Key = (u64, u64, u64);

fn number(row: &Value, key: &str) -> u64 {
    row[key].as_u64().unwrap_or_else(|| panic!("no {key} in {row}"))
}

fn key(row: &Value) -> Key {
    (number(row, "device"), number(row, "context"), number(row, "stream"))
}

/// An instruction in the simulator's log: a launch, an event record, a wait or the like.
struct Expected<'a> {
    kind: &'static str,
    /// Row of the instruction in the log. For a graph launch, this is the row of the launch call.
    row: &'a Value,
    /// Streams whose order determines when the instruction runs.
    streams: BTreeSet<Key>,
    /// Nodes of the graph launch that are in the trace.
    nodes: Vec<&'a Value>,
}

/// Instructions that a trace of this run contains, in the order in which they were issued, with their calls.
struct Program<'a> {
    calls: BTreeMap<u64, &'a Value>,
    all: Vec<Expected<'a>>,
}

impl<'a> Program<'a> {
    /// `contexts` maps the correlation id of each wait to the context of the waiting stream, or to `None` if the trace
    /// does not name the context.
    fn new(schedule: &'a [Value], contexts: &BTreeMap<u64, Option<u64>>) -> Self {
        let rows = |what: &'static str| schedule.iter().filter(move |row| row["what"] == what);
        let calls: BTreeMap<u64, &Value> = rows("call").map(|call| (number(call, "corr"), call)).collect();
        let mut all = Vec::new();
        let mut launches: BTreeMap<u64, Vec<&Value>> = BTreeMap::new();
        for op in rows("op").filter(|op| op["kind"] != "pages") {
            let is_node = number(op, "graph") != 0;
            if op["kind"] == "host" && !is_node {
                continue;
            }
            let kind = match op["kind"].as_str().unwrap() {
                "host" => "host_function",
                "kernel" => "kernel",
                "memset" => "fill",
                _ => "copy",
            };
            let streams = if is_node { BTreeSet::new() } else { [key(op)].into() };
            all.push(Expected { kind, row: op, streams, nodes: Vec::new() });
            if is_node {
                launches.entry(number(op, "corr")).or_default().push(op);
            }
        }
        for (&corr, &call) in &calls {
            let nodes = launches.remove(&corr).unwrap_or_default();
            if call["name"].as_str().unwrap().contains("GraphLaunch") {
                let streams = nodes.iter().map(|node| key(node)).collect();
                all.push(Expected { kind: "graph", row: call, streams, nodes });
            }
        }
        let done = || rows("wait").filter(|wait| wait["result"] == 0);
        let waits = done().filter(|wait| wait["kind"] != "record");
        let waited: BTreeSet<u64> = waits.filter_map(|wait| wait["record"].as_u64()).collect();
        let devices: BTreeMap<u64, u64> =
            rows("stream").map(|row| (number(row, "context"), number(row, "device"))).collect();
        let stream_of_wait = |wait: &Value| {
            let context = contexts[&number(wait, "corr")];
            context.map(|context| (devices[&context], context, number(wait, "stream")))
        };
        for wait in done() {
            let kind = match wait["kind"].as_str().unwrap() {
                "record" if !waited.contains(&number(wait, "corr")) => continue,
                "record" => "record",
                "stream_wait" => "wait",
                _ => "synchronize",
            };
            let streams = match kind {
                "synchronize" => BTreeSet::new(),
                "wait" => stream_of_wait(wait).into_iter().collect(),
                _ => [key(wait)].into(),
            };
            all.push(Expected { kind, row: wait, streams, nodes: Vec::new() });
        }
        // The nodes of a graph follow the launch of the graph. The nodes are sorted by begin, end and node id.
        all.sort_by_key(|one| {
            let corr = number(one.row, "corr");
            let ran = ["begin", "end", "node"].map(|key| one.row[key].as_u64().unwrap_or(0));
            let [begin, end, node] = ran;
            (
                number(calls[&corr], "begin"),
                corr,
                one.kind != "graph",
                begin,
                end,
                one.kind == "host_function",
                node,
            )
        });
        Self { calls, all }
    }

    fn call(&self, one: &Expected<'_>) -> &'a Value {
        self.calls[&number(one.row, "corr")]
    }

    fn last(&self, before: usize, is_it: impl Fn(&Expected<'_>) -> bool) -> Option<usize> {
        self.all[..before].iter().rposition(is_it)
    }

    /// Returns the dependencies of an expected instruction, as pairs (index of an earlier instruction, reason).
    fn after(&self, at: usize) -> BTreeSet<(u64, &'static str)> {
        let one = &self.all[at];
        let corr = number(one.row, "corr");
        let mut after = BTreeSet::new();
        let mut add = |found: Option<usize>, why| after.extend(found.map(|found| (found as u64, why)));
        for stream in &one.streams {
            add(self.last(at, |other| other.streams.contains(stream)), "stream");
        }
        if let Some(record) = one.row["record"].as_u64().filter(|record| *record != corr) {
            let is_record =
                |other: &Expected<'_>| other.kind == "record" && number(other.row, "corr") == record;
            add(self.last(at, is_record), "event");
        }
        match (one.kind, one.row["kind"].as_str()) {
            ("graph", _) if !one.nodes.is_empty() => {
                let graph = &one.nodes[0]["graph"];
                let is_same = |other: &Expected<'_>| {
                    other.kind == "graph" && other.nodes.first().is_some_and(|node| node["graph"] == *graph)
                };
                add(self.last(at, is_same), "same_graph");
            }
            ("synchronize", Some("stream")) => {
                let stream = key(one.row);
                add(self.last(at, |other| other.streams.contains(&stream)), "stream");
            }
            ("synchronize", Some("context")) => {
                let since = self.last(at, |other| {
                    other.kind == "synchronize"
                        && ["kind", "context", "thread"].iter().all(|key| other.row[key] == one.row[key])
                });
                let context = number(one.row, "context");
                let streams: BTreeSet<Key> =
                    self.all[..at].iter().flat_map(|other| &other.streams).copied().collect();
                for stream in streams.iter().filter(|stream| stream.1 == context) {
                    let last = self.last(at, |other| other.streams.contains(stream));
                    add(last.filter(|last| since.is_none_or(|since| *last > since)), "context");
                }
            }
            _ if one.row["graph"].as_u64().unwrap_or(0) != 0 => {
                let is_launch =
                    |other: &Expected<'_>| other.kind == "graph" && number(other.row, "corr") == corr;
                add(self.last(at, is_launch), "graph");
                let waits = one.row["waits"].as_array().unwrap().iter();
                for wait in waits.filter(|wait| wait["why"] == "edge" || wait["why"] == "programmatic") {
                    let is_awaited = |other: &Expected<'_>| {
                        other.row["op"] == wait["op"] && number(other.row, "corr") == corr
                    };
                    add(self.last(at, is_awaited), "graph_edge");
                }
            }
            _ => {}
        }
        after
    }
}

fn run(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpuflame"));
    command.args(["-q", "instructions"]).args(args).stdin(std::process::Stdio::null()).output().unwrap()
}

/// Returns the lines of JSON that the command prints for a trace: the head and the instructions.
fn printed(trace: &str, name: &str, args: &[&str]) -> (Value, Vec<Value>) {
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.json"));
    std::fs::write(&file, trace).unwrap();
    let args = [&[file.to_str().unwrap(), "--format", "jsonl"], args].concat();
    let (one, other) = (run(&args), run(&args));
    std::fs::remove_file(&file).unwrap();
    assert!(one.status.success(), "{name}: {}", String::from_utf8_lossy(&one.stderr));
    assert_eq!(one.stdout, other.stdout, "{name}: two runs print the same");
    let text = String::from_utf8(one.stdout).unwrap();
    let mut lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    (lines.next().unwrap(), lines.collect())
}

/// Returns the dependencies of a printed instruction, as pairs (index of an earlier instruction, reason).
fn dependencies(line: &Value) -> BTreeSet<(u64, &str)> {
    let all = line["after"].as_array().into_iter().flatten();
    all.map(|after| (number(after, "number"), after["reason"].as_str().unwrap())).collect()
}

/// Checks a printed instruction. `zero` is the start of the window.
fn check(program: &Program<'_>, at: usize, line: &Value, zero: u64, with_work: &BTreeSet<u64>) {
    let (one, call) = (&program.all[at], program.call(&program.all[at]));
    let row = one.row;
    assert_eq!(line["number"], at as u64);
    assert_eq!(line["kind"], one.kind, "{line}\n{row}");
    let moment = |time: u64| json!(time as i64 - zero as i64);
    assert_eq!(line["called_ns"], moment(number(call, "begin")), "{line}\n{call}");
    assert_eq!(line["call_duration_ns"], number(call, "end") - number(call, "begin"), "{line}\n{call}");
    for key in ["thread", "corr"] {
        let name = if key == "corr" { "correlation" } else { key };
        assert_eq!(line[name], call[key], "{name} of {line}");
    }
    assert_eq!(line["call"], call["name"], "{line}");
    if one.kind == "graph" {
        let count = Some(one.nodes.len() as u64).filter(|count| *count > 0);
        assert_eq!(line["nodes"].as_u64(), count, "{line}");
        let times = |key| one.nodes.iter().map(move |node| number(node, key));
        assert_eq!(line["start_ns"], times("begin").min().map_or(Value::Null, moment), "{line}");
        assert_eq!(line["end_ns"], times("end").max().map_or(Value::Null, moment), "{line}");
        assert_eq!(
            line["graph"],
            one.nodes.first().map_or(Value::Null, |node| node["graph"].clone()),
            "{line}"
        );
    } else {
        assert_eq!(line["stream"], row["stream"], "{line}\n{row}");
        let place = one.streams.first().copied();
        let (device, context) =
            place.map_or((number(row, "device"), number(row, "context")), |key| (key.0, key.1));
        if one.kind == "wait" && place.is_none() {
            assert_eq!((&line["context"], &line["device"]), (&Value::Null, &Value::Null), "{line}\n{row}");
        } else {
            assert_eq!(line["context"], context, "{line}\n{row}");
            if with_work.contains(&context) {
                assert_eq!(line["device"], device, "{line}\n{row}");
            }
        }
    }
    if row["what"] == "op" {
        assert_eq!(line["start_ns"], moment(number(row, "begin")), "{line}\n{row}");
        assert_eq!(line["end_ns"], moment(number(row, "end")), "{line}\n{row}");
        if number(row, "graph") != 0 {
            assert_eq!(line["graph"], row["graph"], "{line}\n{row}");
            assert_eq!(line["node"], row["node"], "{line}\n{row}");
        }
    }
    if row["what"] == "wait" && row["kind"] != "stream" && row["kind"] != "context" {
        assert_eq!(line["event"], row["event"], "{line}\n{row}");
    }
    if one.kind == "synchronize" {
        assert_eq!(line["waits_for"], row["kind"], "{line}\n{row}");
    }
    assert_eq!(dependencies(line), program.after(at), "{line}\n{row}");
}

/// Returns, for each instruction, all instructions that it waits for, directly or indirectly.
fn ancestors(lines: &[Value]) -> Vec<BTreeSet<u64>> {
    let mut all: Vec<BTreeSet<u64>> = Vec::new();
    for line in lines {
        let mut own = BTreeSet::new();
        for (number, _) in dependencies(line) {
            own.insert(number);
            own.extend(&all[number as usize]);
        }
        all.push(own);
    }
    all
}

/// Checks every wait in the simulator's log: if an instruction waits for an earlier instruction, this earlier one must
/// be its ancestor. Implicit waits of default streams are not in the trace. If a stream waits for a default stream, an
/// event on this stream happens after the work on the default stream.
fn check_waits(schedule: &[Value], program: &Program<'_>, lines: &[Value]) -> BTreeMap<String, u32> {
    let ancestors = ancestors(lines);
    let ops = (0..).zip(&program.all).filter(|(_, one)| one.row["what"] == "op");
    let numbers: BTreeMap<u64, usize> = ops.map(|(at, one)| (number(one.row, "op"), at)).collect();
    let rows =
        |kind: &'static str| schedule.iter().filter(move |row| row["what"] == "wait" && row["kind"] == kind);
    let recorded: BTreeMap<u64, Key> = rows("record").map(|row| (number(row, "corr"), key(row))).collect();
    // Returns whether the trace contains the waits of a stream for this work, and whether all these waits name an event
    // on the work's own stream.
    let is_own = |stream: Key, op: u64, own: Key| {
        let waits = program.all.iter().filter(|one| one.kind == "wait" && one.streams.contains(&stream));
        let mut waits = waits.map(|one| one.row).filter(|wait| number(wait, "op") == op).peekable();
        let is_of_own = |wait: &Value| wait["record"].as_u64().is_some_and(|record| recorded[&record] == own);
        waits.peek().is_some() && waits.all(is_of_own)
    };
    let mut met = BTreeMap::new();
    for op in schedule.iter().filter(|row| row["what"] == "op") {
        let Some(&at) = numbers.get(&number(op, "op")) else { continue };
        for wait in op["waits"].as_array().unwrap() {
            let why = wait["why"].as_str().unwrap();
            if why == "default_stream" {
                continue;
            }
            let Some(&awaited) = numbers.get(&number(wait, "op")) else { continue };
            let own = key(program.all[awaited].row);
            if why == "event" && !is_own(key(op), number(wait, "op"), own) {
                continue;
            }
            // A wait for a graph node counts as a wait for its graph launch, except between nodes of the same graph.
            let launch = lines[awaited]["launch"].as_u64().filter(|_| why != "edge");
            let awaited = launch.unwrap_or(awaited as u64);
            assert!(ancestors[at].contains(&awaited), "{wait} of {op}\n{}", lines[at]);
            *met.entry(why.to_owned()).or_default() += 1;
        }
    }
    met
}

/// Counts for how many waits of streams the context in the output is right, missing, or wrong. The trace contains only
/// the CUDA context of the event. The log contains the CUDA context of the stream.
fn count_contexts(schedule: &[Value], contexts: &BTreeMap<u64, Option<u64>>, named: &mut [u32; 3]) {
    for wait in schedule.iter().filter(|row| row["kind"] == "stream_wait") {
        let right = number(wait, "stream_context");
        let kind = match contexts[&number(wait, "corr")] {
            Some(context) if context == right => 0,
            None => 1,
            Some(_) => 2,
        };
        named[kind] += 1;
    }
}

fn check_programs(seeds: std::ops::Range<u32>) {
    let (mut kinds, mut reasons, mut met) = (BTreeSet::new(), BTreeSet::new(), BTreeMap::new());
    let mut named = [0; 3];
    for seed in seeds {
        let outcome = Run::new("random", &[&seed.to_string()]).stepped().env("GPUSIM_NDEV", "2").outcome();
        assert_eq!(outcome.code, Some(0), "seed {seed}: {}", outcome.stderr);
        let (head, lines) = printed(&outcome.kineto, &format!("instructions-{seed}"), &[]);
        let waits = lines.iter().filter(|line| line["kind"] == "wait");
        let contexts = waits.map(|line| (number(line, "correlation"), line["context"].as_u64())).collect();
        let program = Program::new(&outcome.schedule, &contexts);
        count_contexts(&outcome.schedule, &contexts, &mut named);
        let ops = program.all.iter().filter(|one| one.row["what"] == "op" && one.kind != "host_function");
        let Some(zero) = ops.clone().map(|one| number(one.row, "begin")).min() else { continue };
        let with_work = ops.map(|one| number(one.row, "context")).collect();
        assert_eq!(head["instructions"], lines.len() as u64, "seed {seed}");
        for (at, line) in lines.iter().enumerate().take(program.all.len()) {
            check(&program, at, line, zero, &with_work);
            kinds.insert(line["kind"].as_str().unwrap().to_owned());
            reasons.extend(dependencies(line).into_iter().map(|(_, reason)| reason.to_owned()));
        }
        assert_eq!(lines.len(), program.all.len(), "seed {seed}: {:?}", lines.get(program.all.len()));
        for (why, count) in check_waits(&outcome.schedule, &program, &lines) {
            *met.entry(why).or_insert(0) += count;
        }
    }
    // The context is wrong only if a thread changed its device before the wait and changed it back after the wait (1 of
    // 2,163 waits).
    let [right, unnamed, wrong] = named;
    assert!(right > 20 * unnamed && right > 500 * wrong, "{named:?}");
    let all = ["copy", "fill", "graph", "host_function", "kernel", "record", "synchronize", "wait"];
    assert_eq!(kinds, all.map(str::to_owned).into(), "the programs meet every kind");
    let all = ["context", "event", "graph", "graph_edge", "same_graph", "stream"];
    assert_eq!(reasons, all.map(str::to_owned).into(), "the programs meet every reason");
    for why in ["stream", "event", "graph", "edge", "programmatic"] {
        assert!(met.get(why).copied().unwrap_or(0) > 20, "{met:?}");
    }
}

#[test]
fn instructions_of_random_programs_equal_those_of_the_simulator() {
    check_programs(0..200);
}

#[test]
#[ignore = "takes a minute"]
fn instructions_of_1000_random_programs_equal_those_of_the_simulator() {
    check_programs(200..1200);
}

#[test]
fn filters_keep_the_numbers_and_orders_have_the_same_instructions() {
    let outcome = Run::new("random", &["5"]).stepped().env("GPUSIM_NDEV", "2").outcome();
    let lines = |args: &[&str]| printed(&outcome.kineto, "instructions-filters", args).1;
    let all = lines(&[]);
    let of =
        |is_it: &dyn Fn(&Value) -> bool| all.iter().filter(|line| is_it(line)).cloned().collect::<Vec<_>>();
    assert_eq!(lines(&["--kind", "copy,set"]), of(&|line| line["kind"] == "copy" || line["kind"] == "fill"));
    let stream = number(of(&|line| line["kind"] == "kernel").last().unwrap(), "stream");
    let is_on = |line: &Value| {
        let streams = line["streams"].as_array().into_iter().flatten();
        streams.chain([&line["stream"]]).any(|one| *one == stream)
    };
    assert_eq!(lines(&["--stream", &stream.to_string()]), of(&is_on));
    assert_eq!(lines(&["--limit", "3"]), all[..3]);
    let is_between = |line: &Value| (50_000..100_000).contains(&line["called_ns"].as_i64().unwrap());
    assert!(!of(&is_between).is_empty());
    assert_eq!(lines(&["--from", "50us", "--to", "100us"]), of(&is_between));
    let mut by_start = lines(&["--by", "start"]);
    let time = |line: &Value| line["start_ns"].as_i64().or(line["called_ns"].as_i64());
    assert!(by_start.is_sorted_by_key(time) && by_start != all);
    by_start.sort_by_key(|line| number(line, "number"));
    assert_eq!(by_start, all);
}

#[test]
fn bad_input_gets_one_line_that_names_the_remedy() {
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("instructions-bad.json");
    let outcome = Run::new("random", &["5"]).stepped().outcome();
    std::fs::write(&file, outcome.kineto).unwrap();
    let path = file.to_str().unwrap();
    let cases: [(&[&str], i32, &str); 6] = [
        (&["no-such-file.gfr"], 1, "no such file"),
        (&[path, "--stream", "4711"], 1, "there are the kinds"),
        (&[path, "--from", "2ms", "--to", "1ms"], 2, "is not before --to"),
        (&[path, "-o", "out.json"], 2, "end the name in .txt, .jsonl or .csv"),
        (&[path, "--from", "1h"], 1, "no instruction fulfils all conditions"),
        (&["-", "--count"], 1, "empty"),
    ];
    for (args, code, why) in cases {
        let output = run(args);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), error.lines().count()), (Some(code), 1), "{args:?}: {error}");
        assert!(error.contains(why) && output.stdout.is_empty(), "{args:?}: {error}");
    }
    std::fs::remove_file(file).unwrap();
}
