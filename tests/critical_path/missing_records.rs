//! Determines which records are missing in the trace of a random program. The simulator's log shows what a complete
//! trace would contain.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::log_paths::LAUNCH_NS;
use super::random_program::number;
use super::ties::DEFAULT_STREAM;

/// Kinds of records that determine the times of a program and that the program's trace may lack. If a record of the
/// first three kinds below is missing, the computed slack may be too small, but never too large. The simulator can
/// write rows for the fourth, fifth and sixth kind below.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Lack {
    /// Edges of a CUDA graph with several nodes.
    GraphEdges,
    /// Times at which a running kernel allows the next kernel to begin.
    Triggers,
    /// Duration of a launch. The duration is unknown if every launch of the same kind had to wait for other GPU work.
    LaunchTimes,
    /// Host functions in streams.
    HostFunctions,
    /// Implicit waits of the default stream for other streams, and of other streams for the default stream.
    DefaultStream,
    /// Waits of threads for each other.
    Threads,
    /// GPU on which a default stream waits for a CUDA event.
    WaitContexts,
}

/// Returns the kinds of records that the trace lacks. `has_rows`: whether the trace contains the rows that
/// torch.profiler does not write.
pub(super) fn lacks(schedule: &[Value], has_rows: bool) -> BTreeSet<Lack> {
    let ops: Vec<&Value> = schedule.iter().filter(|row| row["what"] == "op").collect();
    let is_of_default_stream = |row: &Value| row["what"] != "stream" && row["stream"] == DEFAULT_STREAM;
    let is_other_thread = |row: &Value| row["what"] == "call" && row["thread"] != 1_000;
    let found = [
        (Lack::GraphEdges, !has_known_edges(&ops)),
        (Lack::Triggers, ops.iter().any(|op| op["programmatic"] == true)),
        (Lack::LaunchTimes, !has_launch_times(&ops, has_rows)),
        (Lack::HostFunctions, !has_rows && ops.iter().any(|op| op["kind"] == "host" && op["graph"] == 0)),
        (Lack::DefaultStream, !has_rows && schedule.iter().any(is_of_default_stream)),
        (Lack::Threads, !has_rows && schedule.iter().any(is_other_thread)),
        (Lack::WaitContexts, !has_wait_contexts(schedule)),
    ];
    found.into_iter().filter(|(_, is_lacking)| *is_lacking).map(|(lack, _)| lack).collect()
}

/// Returns whether, for each kind of launch, the shortest launch did not wait for other GPU work. A kind with fewer
/// than 8 launches gets the launch time that was measured for another kind.
fn has_launch_times(ops: &[&Value], has_rows: bool) -> bool {
    let mut kinds: BTreeMap<&str, BTreeMap<u64, u64>> = BTreeMap::new();
    for op in ops.iter().filter(|op| has_rows || op["kind"] != "host" || op["graph"] != 0) {
        let kind = match op["kind"].as_str() {
            _ if op["graph"] != 0 => "graph",
            Some(kind @ ("kernel" | "host")) => kind,
            _ => "memory",
        };
        let lag = number(op, "begin") - number(op, "enqueue");
        let first = kinds.entry(kind).or_default().entry(number(op, "corr")).or_insert(lag);
        *first = lag.min(*first);
    }
    let is_known = |lags: &BTreeMap<u64, u64>| lags.len() < 8 || lags.values().any(|lag| *lag == LAUNCH_NS);
    kinds.values().all(is_known)
}

/// A wait of a default stream for a CUDA event.
struct DefaultStreamWait<'a> {
    /// CUDA contexts of the GPU work that the thread submitted just before and just after the wait.
    around: [Option<&'a Value>; 2],
    /// CUDA context of the stream that waits.
    context: &'a Value,
    /// Whether later GPU work proves that no default stream of another CUDA context waited.
    is_only_one: bool,
}

fn waits_of_default_streams(schedule: &[Value]) -> impl Iterator<Item = DefaultStreamWait<'_>> {
    let works = |row: &&Value| row["what"] == "op" && (row["kind"] != "host" || row["graph"] != 0);
    let works: Vec<&Value> = schedule.iter().filter(works).collect();
    let waits = schedule.iter().filter(|row| row["what"] == "wait" && row["kind"] == "stream_wait");
    waits.filter(|wait| wait["stream"] == DEFAULT_STREAM).map(move |wait| {
        let id = number(wait, "corr");
        let of_thread = works.iter().copied().filter(|op| op["thread"] == wait["thread"]);
        let (before, after): (Vec<_>, Vec<_>) = of_thread.partition(|op| number(op, "corr") < id);
        let before = before.into_iter().max_by_key(|op| number(op, "corr"));
        let after = after.into_iter().min_by_key(|op| number(op, "corr"));
        let context = &wait["stream_context"];
        let others: BTreeSet<u64> = works.iter().map(|op| number(op, "context")).collect();
        let mut others = others.into_iter().filter(|other| *context != *other);
        DefaultStreamWait {
            around: [before, after].map(|op| op.map(|op| &op["context"])),
            context,
            is_only_one: others.all(|other| is_ruled_out(schedule, &works, other, id)),
        }
    })
}

/// Returns whether GPU work proves that the default stream of a CUDA context did not wait in `call`. A default stream
/// that waits for an event first waits for all blocking streams of its context, and these streams then wait for the
/// default stream. Suppose that two operations ran on blocking streams: one was submitted before the call, the other
/// after the call, and the other began before the first had ended. In this case, the default stream did not wait in
/// this call. Kernels that may begin before the previous kernel ends are ignored.
fn is_ruled_out(schedule: &[Value], works: &[&Value], context: u64, call: u64) -> bool {
    let rows = |what: &'static str| schedule.iter().filter(move |row| row["what"] == what);
    let calls: BTreeMap<u64, &Value> = rows("call").map(|row| (number(row, "corr"), row)).collect();
    let blocking: BTreeSet<(u64, u64)> = rows("stream")
        .filter(|row| row["blocking"] == true)
        .map(|row| (number(row, "context"), number(row, "stream")))
        .collect();
    let is_held = |op: &&&Value| {
        op["graph"] == 0 && op["context"] == context && blocking.contains(&(context, number(op, "stream")))
    };
    let held = || works.iter().filter(is_held).map(|op| (calls[&number(op, "corr")], op));
    let call = calls[&call];
    let before = held().filter(|(other, _)| number(other, "end") <= number(call, "begin"));
    let after = held()
        .filter(|(other, op)| number(other, "begin") >= number(call, "end") && op["programmatic"] == false);
    let ended = before.map(|(_, op)| number(op, "end")).max();
    let began = after.map(|(_, op)| number(op, "begin")).min();
    began.zip(ended).is_some_and(|(began, ended)| began < ended)
}

/// Returns whether the trace shows the GPU of each default stream that waits for an event. The GPU is known if the
/// thread submitted work to this GPU both before and after the wait. The GPU is also known if the later work on every
/// other GPU shows that this other GPU's default stream did not wait. The row of the wait does not show the GPU,
/// because it contains the context of the event, and the default streams of all GPUs have the same id.
fn has_wait_contexts(schedule: &[Value]) -> bool {
    waits_of_default_streams(schedule).all(|wait| {
        let is_around = wait.around.into_iter().flatten().all(|of_work| of_work == wait.context);
        is_around || wait.is_only_one
    })
}

/// Returns the number of waits of default streams for which the thread submitted work to one GPU before the wait and to
/// another GPU after it. A wait does not count if later work rules out all GPUs except one.
pub(super) fn unclear_waits(schedule: &[Value]) -> u64 {
    let is_unclear = |wait: &DefaultStreamWait<'_>| {
        matches!(wait.around, [Some(before), Some(after)] if before != after) && !wait.is_only_one
    };
    waits_of_default_streams(schedule).filter(is_unclear).count() as u64
}

/// Returns whether each graph with several nodes has an edge in the trace. A trace does not distinguish graphs without
/// edges from graphs whose edges are missing.
fn has_known_edges(ops: &[&Value]) -> bool {
    let mut graphs: BTreeMap<u64, (BTreeSet<u64>, bool)> = BTreeMap::new();
    for op in ops.iter().filter(|op| op["graph"] != 0) {
        let (nodes, has_edges) = graphs.entry(number(op, "graph")).or_default();
        nodes.insert(number(op, "node"));
        *has_edges |= waits_of(op).any(|wait| wait["why"] == "edge");
    }
    graphs.values().all(|(nodes, has_edges)| nodes.len() == 1 || *has_edges)
}

pub(super) fn waits_of(op: &Value) -> impl Iterator<Item = &Value> {
    op["waits"].as_array().unwrap().iter()
}
