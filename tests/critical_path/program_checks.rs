//! Compares the output of the command for a random program with the simulator's log. Also compares the output with
//! further runs of the program, in each of which one GPU operation takes longer or shorter.

use std::collections::{BTreeMap, BTreeSet};

use gpusim_selftest::Outcome;
use serde_json::Value;

use super::log_paths::{LogPaths, Owner};
use super::missing_records::{Lack, waits_of};
use super::random_program::{
    self, Counts, GRAPHS, HOST_FUNCTIONS, HOST_NODES, LEGACY_STREAM, PROGRAMMATIC, THREADS, end_of,
    end_with_host_functions, number,
};

/// Kinds of rows that determine the times of a program. Other tools than torch.profiler write these rows
/// (docs/replay.md).
const ROWS: (&str, &str) = ("GPUSIM_KINETO_ROWS", "streams,host_functions,threads,events");

/// A random program, all of whose steps are determined by the seed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Program {
    pub(super) seed: u32,
    without: u32,
    /// Whether the trace contains the rows that [`ROWS`] requests.
    pub(super) has_rows: bool,
}

impl Program {
    /// Chooses the features that the program uses; the seed determines the choice. Some programs use only features that
    /// traces record completely. Some programs also use one feature that traces do not record, and some use all such
    /// features.
    pub(super) fn new(seed: u32, has_rows: bool) -> Self {
        let unrecorded = PROGRAMMATIC | HOST_FUNCTIONS | LEGACY_STREAM | THREADS;
        let without = match seed % 8 {
            0 => unrecorded | GRAPHS | HOST_NODES,
            1 => unrecorded,
            2 => unrecorded & !PROGRAMMATIC,
            3 => unrecorded & !THREADS,
            4 => unrecorded & !LEGACY_STREAM,
            5 => unrecorded & !HOST_FUNCTIONS,
            6 => HOST_FUNCTIONS,
            _ => 0,
        };
        Self { seed, without, has_rows }
    }

    /// Runs the program. `change` is the id of an operation, and the time in ns by which the operation takes longer.
    pub(super) fn run(self, change: Option<(u64, i64)>) -> Outcome {
        let change = change.map(|(op, by)| format!("{op}:{by}"));
        let mut variables: Vec<_> = change.iter().map(|change| ("GPUSIM_CHANGE", change.as_str())).collect();
        variables.extend(self.has_rows.then_some(ROWS));
        random_program::run(self.seed, self.without, &variables)
    }

    /// Returns the end of the last call or GPU work that the trace contains.
    fn end(self, schedule: &[Value]) -> u64 {
        if self.has_rows { end_with_host_functions(schedule) } else { end_of(schedule) }
    }
}

/// Time by which an operation is shortened, in ns.
const STEP_NS: u64 = 1_000;

/// Slack, saving and reason that the command prints for a GPU operation.
#[derive(Clone, Copy, Debug)]
struct Said {
    slack: u64,
    /// Whether the slack is limited because calls of different threads would otherwise change their order.
    is_limited: bool,
    saving: u64,
    /// Reason why the operation did not begin earlier.
    reason: &'static str,
}

/// Returns the command's output for each GPU operation, keyed by begin, end and correlation id. The value is `None` if
/// several operations have the same key.
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
            "graph_edge",
            "graph_node",
            "same_graph",
        ];
        let reason = reasons.into_iter().find(|reason| node["decided_by"] == *reason).unwrap_or("nothing");
        let (slack, saving) = (number(node, "slack_ns"), number(node, "saving_ns"));
        let one = Said { slack, is_limited: node["slack_limit"] == "order", saving, reason };
        all.entry(key).and_modify(|known| *known = None).or_insert(Some(one));
    }
    all
}

/// Result of a run in which one operation has another duration.
struct Rerun {
    /// Time in ns by which this run ended later than the first run.
    later: i64,
    /// Whether the threads made their calls and got their locks in the same order as in the first run.
    keeps_order: bool,
}

/// Returns the thread ids in the order in which the threads made calls, and the thread ids in the order in which they
/// waited for other threads.
fn thread_order(schedule: &[Value]) -> [Vec<u64>; 2] {
    ["call", "thread_wait"].map(|what| {
        let rows = schedule.iter().filter(|row| row["what"] == what);
        let key = if what == "call" { "begin" } else { "end" };
        let mut threads: Vec<(u64, u64)> =
            rows.map(|row| (number(row, key), number(row, "thread"))).collect();
        threads.sort_unstable();
        threads.into_iter().map(|(_, thread)| thread).collect()
    })
}

/// A program, and the dependencies that the command prints for the program's trace.
struct Checked<'a> {
    program: Program,
    lacks: &'a BTreeSet<Lack>,
    schedule: &'a [Value],
    /// Start and end of the critical path.
    window: (u64, u64),
    nodes: BTreeMap<&'a str, &'a Value>,
}

/// Checks the output of the command for a program. The slack is checked for one of every `every` GPU operations.
pub(super) fn check_answers(
    (program, lacks): (Program, &BTreeSet<Lack>),
    schedule: &[Value],
    deps: &Value,
    every: usize,
    counts: &mut Counts,
) {
    let start = number(&deps["facts"], "start_ns");
    let window = (start, start + number(&deps["facts"], "duration_ns"));
    let nodes = deps["nodes"].as_array().unwrap().iter().map(|node| (node["id"].as_str().unwrap(), node));
    let checked = Checked { program, lacks, schedule, window, nodes: nodes.collect() };
    checked.check_parts(deps["path"].as_array().unwrap(), counts);
    let said = said(deps);
    for (at, op) in schedule.iter().filter(|row| row["what"] == "op").enumerate() {
        let key = (number(op, "begin") - start, number(op, "end") - start, number(op, "corr"));
        let Some(Some(one)) = said.get(&key).copied() else { continue };
        checked.check_reason(op, one, counts);
        if at % every == (program.seed as usize) % every && key.1 - key.0 > STEP_NS {
            checked.check_change(op, one, counts);
        }
    }
}

impl Checked<'_> {
    /// If the trace lacks no records, the path must be as long as the longest path in the log, and every part of it
    /// must be on a longest path. If the trace lacks records, a wrong dependency may lead the path through other work.
    /// In a row of wrong parts, the wrong dependency is that of the last part. Therefore a missing record must be able
    /// to make a part of this class wrong.
    fn check_parts(&self, parts: &[Value], counts: &mut Counts) {
        let Self { program, window, lacks, .. } = self;
        let end = program.end(self.schedule);
        assert_eq!(window.1, end, "{program:?}: the path ends with the program");
        let paths = LogPaths::new(self.schedule, end, program.has_rows);
        let mut at = window.0;
        let mut wrong: Option<&Value> = None;
        for part in parts {
            assert_eq!(window.0 + number(part, "start_ns"), at, "{program:?}: no gap and no overlap: {part}");
            let start = at;
            at += number(part, "duration_ns");
            let is_longest = self.is_of_longest_path(&paths, part, start, at);
            if let Some(before) = wrong.filter(|_| is_longest) {
                self.check_wrong_part(before);
            }
            wrong = (!is_longest).then_some(part);
            let word = if is_longest { "on" } else { "not on" };
            match lacks.is_empty() {
                true => counts.add(format!("parts {word} a longest path")),
                false => counts.add(format!("parts {word} a longest path, some records missing")),
            }
        }
        wrong.into_iter().for_each(|part| self.check_wrong_part(part));
        assert_eq!(at, end, "{program:?}: the parts add up");
    }

    /// Asserts that the trace lacks a record, and that this can make such a part wrong. Missing graph edges, triggers
    /// and launch times cannot make a part wrong.
    fn check_wrong_part(&self, part: &Value) {
        use Lack::*;
        let causes: &[Lack] = match part["class"].as_str().unwrap() {
            "hand_off" | "host" => &[Threads],
            "call" | "return" | "unexplained" => &[HostFunctions, DefaultStream, Threads, WaitContexts],
            _ => &[HostFunctions, DefaultStream, WaitContexts],
        };
        let is_explained = causes.iter().any(|cause| self.lacks.contains(cause));
        assert!(is_explained, "{:?}, {:?}: not on a longest path: {part}", self.program, self.lacks);
    }

    /// Returns whether a longest path in the log spends the time of a part in the same call or GPU work.
    fn is_of_longest_path(&self, paths: &LogPaths, part: &Value, start: u64, end: u64) -> bool {
        let Some(node) = part["node"].as_str().and_then(|id| self.nodes.get(id)) else { return false };
        let time = |key: &str| self.window.0 + number(node, key);
        let spends = |owners: Vec<Owner>| owners.into_iter().any(|owner| paths.spends(owner, start, end));
        match part["class"].as_str().unwrap() {
            "kernel" | "memory" | "host_function" => {
                spends(paths.ops(time("start_ns"), time("end_ns"), number(node, "correlation")))
            }
            "launch" => spends(paths.ops_beginning(end, number(node, "correlation"))),
            "call" => spends(paths.calls(number(node, "thread"), time("start_ns"))),
            "host" => paths.spends_on_host(number(node, "thread"), start, end),
            "hand_off" => paths.hands_off(number(node, "thread"), start, end),
            // Calls before the first call that launches or waits are not in the command's graph of dependencies.
            "unexplained" if self.program.has_rows && start == self.window.0 => {
                paths.spends_on_host(number(node, "thread"), start, end)
            }
            _ => false,
        }
    }

    /// Compares the reason that the command prints with the cause that the simulator logged.
    fn check_reason(&self, op: &Value, said: Said, counts: &mut Counts) {
        let cause = op["cause"].as_str().unwrap();
        let tied = |why: &str| {
            let mut until = waits_of(op).filter(|wait| wait["until"] == op["ready"]);
            // If a trigger allows a kernel to begin less than a microsecond after its arrival at the GPU, the command
            // prints the launch as the reason.
            let late_ns = number(op, "begin") - number(op, "arrive");
            let is_launch = late_ns == 0 || (cause == "programmatic" && late_ns <= 1_000);
            until.any(|wait| wait["why"] == why) || (is_launch && why == "launch")
        };
        let is_same = match said.reason {
            // If a wait for a CUDA event decides when a stream continues, the command prints the order of the stream as
            // the reason of the next work on this stream.
            "stream" => {
                let is_held = self.program.has_rows && tied("default_stream");
                tied("stream") || tied("event") || tied("programmatic") || is_held
            }
            "graph_edge" => tied("edge") || tied("programmatic"),
            "graph_launch" | "graph_node" | "same_graph" => op["graph"] != 0,
            "nothing" => false,
            reason => tied(reason),
        };
        // The command always infers the implicit waits of default streams. A wrongly inferred wait may happen to end at
        // the same time as the recorded cause, or may contradict that cause.
        let is_inferred =
            self.lacks.contains(&Lack::DefaultStream) && ["default_stream", "nothing"].contains(&said.reason);
        if is_inferred || !self.is_recorded(op) {
            counts.add(if is_same { "cause inferred right" } else { "cause inferred wrong" });
            return;
        }
        assert!(is_same, "{:?}: {cause} but {said:?}: {op}", self.program);
        counts.add(match said.reason {
            "stream" => "stream",
            "launch" => "launch",
            "programmatic" => "programmatic",
            "graph_edge" => "graph edge",
            _ => "graph",
        });
    }

    /// Returns whether the trace contains a record of the last wait before an operation.
    fn is_recorded(&self, op: &Value) -> bool {
        if self.program.has_rows {
            // The GPU of a default stream decides which streams wait for it, and which streams wait with it for an
            // event.
            let depends = ["default_stream", "event"].iter().any(|cause| op["cause"] == *cause);
            return !depends || !self.lacks.contains(&Lack::WaitContexts);
        }
        let rows = |what: &'static str| self.schedule.iter().filter(move |row| row["what"] == what);
        let stream = |row: &Value| (row["context"].clone(), row["stream"].clone());
        let is_shown = |id: &Value| {
            let mut with_id = rows("op").filter(|op| op["op"] == *id);
            with_id.all(|op| op["kind"] != "host" || op["graph"] != 0)
        };
        let is_event_shown = |wait: &Value| {
            let waits = rows("wait").filter(|row| {
                row["kind"] == "stream_wait" && row["until"] == wait["until"] && stream(row) == stream(op)
            });
            let records = waits.filter_map(|row| {
                rows("wait").find(|record| record["kind"] == "record" && record["corr"] == row["record"])
            });
            let of_op = rows("op").find(|other| other["op"] == wait["op"]).map(stream);
            records.map(stream).any(|record| of_op.as_ref().is_none_or(|of_op| *of_op == record))
        };
        let last = waits_of(op).filter(|wait| wait["until"] == op["ready"] && op["cause"] != "launch");
        last.into_iter().all(|wait| {
            is_shown(&wait["op"])
                && wait["why"] != "default_stream"
                && (wait["why"] != "event" || is_event_shown(wait))
        })
    }

    fn rerun(&self, op: &Value, by: i64) -> Rerun {
        let schedule = self.program.run(Some((number(op, "op"), by))).schedule;
        Rerun {
            later: self.program.end(&schedule) as i64 - self.window.1 as i64,
            keeps_order: thread_order(&schedule) == thread_order(self.schedule),
        }
    }

    /// Runs the program again with an operation that is lengthened by its slack or shortened, and compares the ends of
    /// the two runs. If the trace lacks no records, both slack and saving are exact. If the trace lacks graph edges,
    /// triggers or launch times, slack and saving may be too small, but never too large.
    fn check_change(&self, op: &Value, said: Said, counts: &mut Counts) {
        let Self { program, lacks, .. } = self;
        let later = if said.slack > 0 { self.rerun(op, said.slack as i64).later } else { 0 };
        let shorter = self.rerun(op, -(STEP_NS as i64));
        let (claimed, saved) = (said.saving.min(STEP_NS) as i64, -shorter.later);
        if lacks.iter().any(|lack| *lack > Lack::LaunchTimes) {
            counts.add(if later == 0 { "slack inferred right" } else { "slack inferred too large" });
            counts.add(if claimed <= saved { "saving inferred right" } else { "saving inferred too large" });
            return;
        }
        assert_eq!(later, 0, "{program:?}: longer by its slack, {said:?}: {op}");
        assert!(claimed <= saved || !shorter.keeps_order, "{program:?}: it saves {saved}, {said:?}: {op}");
        counts.add("longer by its slack");
        counts.add(if claimed > 0 { "shorter on the path" } else { "shorter off the path" });
        let longer = self.rerun(op, (said.slack + STEP_NS) as i64);
        let saving_rule = (claimed != saved).then(|| self.rule(&shorter, false));
        let slack_rule = (longer.later != STEP_NS as i64).then(|| self.rule(&longer, said.is_limited));
        for (what, rule) in [("saving", saving_rule), ("slack", slack_rule)] {
            let Some(rule) = rule else { continue };
            assert!(
                rule.is_some(),
                "{program:?}: {what} too small, {said:?}, {saved}, {}: {op}",
                longer.later
            );
            counts.add(format!("{what} has the rule {}", rule.unwrap_or_default()));
        }
        if saving_rule.is_none() && slack_rule.is_none() {
            counts.add("exact");
            match op["kind"].as_str() {
                Some("host") => counts.add("exact for a host function"),
                _ if op["graph"] != 0 => counts.add("exact for a node"),
                _ => {}
            }
        }
    }

    /// Returns the rule because of which the printed slack or saving is smaller than the real one
    /// (docs/critical-path.md).
    fn rule(&self, rerun: &Rerun, is_limited: bool) -> Option<&'static str> {
        match self.lacks.first() {
            _ if is_limited => Some("order of threads"),
            _ if !rerun.keeps_order => Some("order of threads, beyond the slack"),
            Some(Lack::GraphEdges) => Some("graphs without edges"),
            Some(Lack::Triggers) => Some("overlapping kernels"),
            Some(_) => Some("launches that all waited"),
            None => None,
        }
    }
}
