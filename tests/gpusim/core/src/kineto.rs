//! Writes a run on the stepped clock as a Kineto trace: API calls, GPU work, waits (`cuda_sync`), and flows from calls
//! to GPU work (`ac2g`), with the names and fields that torch.profiler writes. Edges of CUDA graphs, and host functions
//! that are graph nodes, have the form that torch.profiler's Cuspy writes. Unlike in torch.profiler's traces, a launch
//! call with attributes has a field that is true if the launch is programmatic. A node that does nothing has no row, so
//! an edge from such a node starts at the node on which it depends.

use crate::deps::{NONE, Wait};
use crate::journal::{
    CallRow, Journal, MAIN_THREAD, OpRow, ThreadWaitRow, WaitRow, relative, sorted_streams,
};
use crate::schedule::Why;
use crate::settings;
use crate::stream::Stream;
use crate::truth::quoted;
use crate::work::{Copy, Memory, Work, WorkKind};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::ffi::CStr;

/// Returns the text of the whole trace. Rows are sorted by time, and rows with equal times stay in the order in which
/// they were added.
pub fn trace(journal: &Journal) -> String {
    let mut rows: Vec<(u64, String)> = Vec::new();
    let edges = Edges::find(&journal.ops);
    journal.ops.iter().for_each(|row| add_op(&mut rows, row, &edges));
    edges.add_flows(&mut rows);
    // A query of an event or stream that finds unfinished GPU work is not a wait, because it does not block.
    let is_wait = |row: &&WaitRow| row.dependency.wait != 0 && row.dependency.result == 0;
    journal.waits.iter().filter(is_wait).for_each(|row| add_wait(&mut rows, row));
    let ops = journal.ops.iter().filter(|row| row.work.is_some() || is_node(row)).map(|row| row.correlation);
    let waits = journal.waits.iter().filter(is_wait).map(|row| row.dependency.correlation);
    let linked: BTreeSet<u32> = ops.chain(waits).collect();
    journal.calls.iter().for_each(|row| add_call(&mut rows, row, linked.contains(&row.correlation)));
    add_further_rows(&mut rows, journal);
    rows.sort_by_key(|(time, _)| *time);
    let devices: BTreeSet<u32> = journal.ops.iter().map(|row| row.device).collect();
    let properties: Vec<String> =
        devices.iter().map(|id| format!("{{\"id\": {id}, \"name\": \"gpusim\", \"numSms\": 132}}")).collect();
    let names = devices.iter().map(|&id| (id, format!("GPU {id}")));
    let names = names.chain([(MAIN_THREAD, "CPU".to_owned())]).map(|(pid, label)| {
        format!("{{\"ph\": \"M\", \"name\": \"process_labels\", \"pid\": {pid}, \"tid\": 0, \"ts\": 0, \"args\": {{\"labels\": \"{label}\"}}}}")
    });
    let streams = has_rows("streams").then(sorted_streams).unwrap_or_default();
    let names = names.chain(streams.into_iter().map(stream_row));
    let rows: Vec<String> = names.chain(rows.into_iter().map(|(_, row)| row)).collect();
    format!(
        "{{\n\"schemaVersion\": 1,\n\"deviceProperties\": [{}],\n\"displayTimeUnit\": \"ms\",\n\"traceEvents\": [\n{}\n]}}\n",
        properties.join(", "),
        rows.join(",\n"),
    )
}

/// Whether the user requested rows of `kind`, a kind that torch.profiler does not write.
fn has_rows(kind: &str) -> bool {
    settings::get().kineto_rows.iter().any(|word| word == kind)
}

/// Adds the rows with times that `GPUSIM_KINETO_ROWS` requests.
fn add_further_rows(rows: &mut Vec<(u64, String)>, journal: &Journal) {
    if has_rows("host_functions") {
        let of_stream = journal.ops.iter().filter(|row| row.kind == "host" && !is_node(row));
        of_stream.for_each(|row| add_host_launch(rows, row));
    }
    if has_rows("threads") {
        journal.thread_waits.iter().for_each(|row| add_thread_wait(rows, row));
    }
    if has_rows("events") {
        journal.waits.iter().filter(|row| row.dependency.wait == 0).for_each(|row| add_event(rows, row));
    }
}

/// Returns a row with the kind of a stream, as a value of CUPTI's CUpti_ActivityStreamFlag.
fn stream_row(stream: &'static Stream) -> String {
    let flag = match (stream.is_legacy_default(), stream.is_blocking) {
        (true, _) => 3,
        (false, true) => 1,
        (false, false) => 2,
    };
    let (device, context, id) = (stream.context.device, stream.context.uid, stream.id);
    format!(
        "{{\"ph\": \"M\", \"name\": \"cuda_stream\", \"pid\": {device}, \"tid\": {id}, \"ts\": 0, \"args\": {{\"context\": {context}, \"stream\": {id}, \"flag\": {flag}}}}}"
    )
}

/// Adds a row for a host function on a stream, with the fields of CUPTI's CUpti_ActivityHostLaunch.
fn add_host_launch(rows: &mut Vec<(u64, String)>, row: &OpRow) {
    let (begin, end) = span(row);
    let (device, context, stream, correlation) = (row.device, row.context, row.stream, row.correlation);
    let args = format!(
        "\"device\": {device}, \"context\": {context}, \"stream\": {stream}, \"correlation\": {correlation}"
    );
    rows.push((begin, slice("host_launch", "HostFunction", (device, stream.into()), (begin, end), &args)));
}

fn add_thread_wait(rows: &mut Vec<(u64, String)>, row: &ThreadWaitRow) {
    let place = (MAIN_THREAD, i64::from(row.thread));
    rows.push((row.begin, slice("pthread", row.name, place, (row.begin, row.end), "")));
}

/// Adds a row for a record of a CUDA event, as Kineto writes it for CUPTI's activity kind CUDA_EVENT.
fn add_event(rows: &mut Vec<(u64, String)>, row: &WaitRow) {
    let dependency = &row.dependency;
    let time = relative(dependency.start);
    let (device, context, stream) = (row.device, dependency.context, dependency.stream);
    let (event, correlation) = (dependency.event, dependency.correlation);
    let args = format!(
        "\"event_id\": {event}, \"stream\": {stream}, \"correlation\": {correlation}, \"device\": {device}, \"context\": {context}"
    );
    rows.push((time, slice("cuda_event", "cudaEvent", (device, stream.into()), (time, time), &args)));
}

/// Formats ns as us with three decimals, as Kineto does.
fn micros(ns: u64) -> String {
    format!("{}.{:03}", ns / 1_000, ns % 1_000)
}

/// Returns the fields that all rows have in common: phase, category, process and thread, and time.
fn slice(category: &str, name: &str, (pid, tid): (u32, i64), (begin, end): (u64, u64), args: &str) -> String {
    format!(
        "{{\"ph\": \"X\", \"cat\": \"{category}\", \"name\": {}, \"pid\": {pid}, \"tid\": {tid}, \"ts\": {}, \"dur\": {}, \"args\": {{{args}}}}}",
        quoted(Some(name)),
        micros(begin),
        micros(end - begin),
    )
}

/// Returns the row for the start or the end of the flow from a call to the GPU work that it submitted. The phase of the
/// row is `s` at the call and `f` at the GPU work.
fn flow(end: &str, id: u64, (pid, tid): (u32, i64), time: u64) -> (u64, String) {
    let binding = if end == "f" { ", \"bp\": \"e\"" } else { "" };
    let ts = micros(time);
    let row = format!(
        "{{\"ph\": \"{end}\", \"cat\": \"ac2g\", \"name\": \"ac2g\", \"id\": {id}, \"pid\": {pid}, \"tid\": {tid}, \"ts\": {ts}{binding}}}"
    );
    (time, row)
}

fn add_call(rows: &mut Vec<(u64, String)>, row: &CallRow, is_linked: bool) {
    let (begin, end) = (relative(row.begin), relative(row.end));
    let category = if row.is_driver { "cuda_driver" } else { "cuda_runtime" };
    let place = (MAIN_THREAD, i64::from(row.thread));
    let correlation = row.correlation;
    let mut args =
        format!("\"External id\": {correlation}, \"cbid\": {}, \"correlation\": {correlation}", row.cbid);
    if let Some(is_programmatic) = row.programmatic {
        args += &format!(", \"programmatic\": {}", u8::from(is_programmatic));
    }
    rows.push((begin, slice(category, &row.name.to_string_lossy(), place, (begin, end), &args)));
    if is_linked {
        rows.push(flow("s", correlation.into(), place, begin));
    }
}

fn is_node(row: &OpRow) -> bool {
    row.node.graph != 0
}

/// Returns the begin and end of a row in the trace. If the GPU work has an activity record, the row has the times of
/// that record, because a test can give activity records another clock than the schedule.
fn span(row: &OpRow) -> (u64, u64) {
    let times = row.work.map_or((row.placed.begin, row.placed.end), |work| (work.start, work.end));
    (relative(times.0), relative(times.1))
}

/// Id of the first flow that connects two nodes of a graph. Other flows have correlation ids.
const FIRST_EDGE: u64 = 1 << 40;

/// Edges between the nodes of launched CUDA graphs.
struct Edges<'a> {
    edges: Vec<(&'a OpRow, &'a OpRow)>,
    /// Position of each node in its launch, keyed by the node's operation id.
    nodes: HashMap<u64, u64>,
    /// Operation ids of the nodes that wait for other nodes.
    later: HashSet<u64>,
}

impl<'a> Edges<'a> {
    fn find(ops: &'a [OpRow]) -> Edges<'a> {
        let launch_of = |row: &OpRow| (row.correlation, row.node.graph);
        let nodes: HashMap<u64, &OpRow> =
            ops.iter().filter(|row| is_node(row)).map(|row| (row.placed.op, row)).collect();
        let before = |row: &'a OpRow| {
            let waits = row.placed.waits.iter();
            let waits = waits.filter(|wait| matches!(wait.why, Why::Edge | Why::Programmatic));
            let before: BTreeSet<u64> = waits.map(|wait| wait.op).collect();
            let before = before.into_iter().filter_map(|op| nodes.get(&op).copied());
            before.filter(move |other| launch_of(other) == launch_of(row)).map(move |other| (other, row))
        };
        let edges: Vec<_> = ops.iter().filter(|row| is_node(row)).flat_map(before).collect();
        let mut counts: HashMap<_, u64> = HashMap::new();
        let nodes = ops.iter().filter(|row| is_node(row)).map(|row| {
            let count = counts.entry(launch_of(row)).or_default();
            *count += 1;
            (row.placed.op, *count)
        });
        let nodes = nodes.collect();
        let later = edges.iter().map(|(_, row)| row.placed.op).collect();
        Edges { edges, nodes, later }
    }

    /// Returns the lane (thread id) of a row. Each node of a graph launch has its own lane, because a flow between two
    /// nodes identifies each node only by its lane and time.
    fn lane(&self, row: &OpRow) -> i64 {
        let stream = i64::from(row.stream);
        self.nodes.get(&row.placed.op).map_or(stream, |position| 1_000 * stream + *position as i64)
    }

    fn add_flows(&self, rows: &mut Vec<(u64, String)>) {
        for (id, (before, after)) in (FIRST_EDGE..).zip(&self.edges) {
            let place = |row: &OpRow| (row.device, self.lane(row));
            rows.push(flow("s", id, place(before), span(before).1));
            rows.push(flow("f", id, place(after), span(after).0));
        }
    }
}

fn add_op(rows: &mut Vec<(u64, String)>, row: &OpRow, edges: &Edges<'_>) {
    let work = row.work.filter(|work| work.kind != WorkKind::Graph);
    if work.is_none() && !(is_node(row) && row.kind == "host") {
        return;
    }
    let (begin, end) = span(row);
    let (stream, lane) = (i64::from(row.stream), edges.lane(row));
    let place = (row.device, lane);
    let correlation = row.correlation;
    let mut args = format!(
        "\"External id\": {correlation}, \"device\": {}, \"context\": {}, \"stream\": {lane}, \"correlation\": {correlation}",
        row.device, row.context
    );
    if lane != stream {
        args += &format!(", \"original_stream\": {stream}");
    }
    if is_node(row) {
        args += &format!(", \"graph id\": {}, \"graph node id\": {}", row.node.graph, row.node.node);
    }
    let launch = (!edges.later.contains(&row.placed.op)).then(|| flow("f", correlation.into(), place, begin));
    let Some(work) = work else {
        rows.push((begin, slice("graph_host_node", "HostNode", place, (begin, end), &args)));
        rows.extend(launch);
        return;
    };
    let (category, name) = match work.kind {
        WorkKind::Memset => ("gpu_memset", format!("Memset ({})", memory(work.target))),
        WorkKind::Kernel | WorkKind::Graph => ("kernel", kernel_name(&work)),
        WorkKind::Memcpy | WorkKind::MemcpyP2p => ("gpu_memcpy", copy_name(&work)),
    };
    match work.kind {
        WorkKind::Kernel | WorkKind::Graph => {
            let ([x, y, z], [a, b, c]) = (work.grid, work.block);
            args += &format!(
                ", \"shared memory\": {}, \"grid\": [{x}, {y}, {z}], \"block\": [{a}, {b}, {c}]",
                work.shared_bytes
            );
        }
        _ => args += &format!(", \"bytes\": {}", work.bytes),
    }
    rows.push((begin, slice(category, &name, place, (begin, end), &args)));
    rows.extend(launch);
}

fn kernel_name(work: &Work) -> String {
    let mangled = work.name().map(CStr::to_string_lossy).unwrap_or_default();
    let symbol = cpp_demangle::Symbol::new(mangled.as_bytes());
    symbol.ok().and_then(|symbol| symbol.demangle().ok()).unwrap_or_else(|| mangled.into_owned())
}

fn copy_name(work: &Work) -> String {
    let direction = if work.copy == Copy::PtoP { Some("PtoP") } else { work.copy.name() };
    format!("Memcpy {} ({} -> {})", direction.unwrap_or(""), memory(work.source), memory(work.target))
}

fn memory(kind: Memory) -> &'static str {
    match kind {
        Memory::Pageable => "Pageable",
        Memory::Pinned => "Pinned",
        Memory::Device => "Device",
        Memory::Array => "Array",
        Memory::Managed => "Managed",
    }
}

fn add_wait(rows: &mut Vec<(u64, String)>, row: &WaitRow) {
    let dependency = &row.dependency;
    let (begin, end) = (relative(dependency.start), relative(dependency.end));
    let stream = if dependency.stream == NONE { -1 } else { i64::from(dependency.stream) };
    let is = |wait: Wait| dependency.wait == wait as u32;
    let kind = if is(Wait::Event) {
        "Event Sync"
    } else if is(Wait::StreamWaitEvent) {
        "Stream Wait Event"
    } else if is(Wait::Stream) {
        "Stream Sync"
    } else {
        "Context Sync"
    };
    let correlation = dependency.correlation;
    let mut args = format!("\"External id\": {correlation}, \"cuda_sync_kind\": \"{kind}\"");
    if dependency.event != NONE {
        let (record, on) = row.target.record.map_or((-1, -1), |(a, b)| (i64::from(a), i64::from(b)));
        args += &format!(
            ", \"wait_on_stream\": {on}, \"wait_on_cuda_event_record_corr_id\": {record}, \"wait_on_cuda_event_id\": {}",
            dependency.event
        );
    }
    let (device, context) = (row.device, dependency.context);
    args += &format!(
        ", \"stream\": {stream}, \"correlation\": {correlation}, \"device\": {device}, \"context\": {context}"
    );
    rows.push((begin, slice("cuda_sync", kind, (device, stream), (begin, end), &args)));
    rows.push(flow("f", correlation.into(), (device, stream), begin));
}
