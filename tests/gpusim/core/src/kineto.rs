//! A run on the stepped clock as a Kineto trace: calls, GPU work, waits (`cuda_sync`) and the flows between them
//! (`ac2g`), with the names and fields that torch.profiler writes.

use crate::deps::{NONE, Wait};
use crate::journal::{CallRow, Journal, MAIN_THREAD, OpRow, WaitRow, relative};
use crate::truth::quoted;
use crate::work::{Copy, Memory, Work, WorkKind};
use std::collections::BTreeSet;
use std::ffi::CStr;

/// The whole trace. Rows are sorted by time, those of equal times as they were written.
pub fn trace(journal: &Journal) -> String {
    let mut rows: Vec<(u64, String)> = Vec::new();
    journal.ops.iter().for_each(|row| add_op(&mut rows, row));
    // A query that finds unfinished work is not a wait.
    let is_wait = |row: &&WaitRow| row.dependency.wait != 0 && row.dependency.result == 0;
    journal.waits.iter().filter(is_wait).for_each(|row| add_wait(&mut rows, row));
    let ops = journal.ops.iter().filter(|row| row.work.is_some()).map(|row| row.correlation);
    let waits = journal.waits.iter().filter(is_wait).map(|row| row.dependency.correlation);
    let linked: BTreeSet<u32> = ops.chain(waits).collect();
    journal.calls.iter().for_each(|row| add_call(&mut rows, row, linked.contains(&row.correlation)));
    rows.sort_by_key(|(time, _)| *time);
    let devices: BTreeSet<u32> = journal.ops.iter().map(|row| row.device).collect();
    let properties: Vec<String> =
        devices.iter().map(|id| format!("{{\"id\": {id}, \"name\": \"gpusim\", \"numSms\": 132}}")).collect();
    let names = devices.iter().map(|&id| (id, format!("GPU {id}")));
    let names = names.chain([(MAIN_THREAD, "CPU".to_owned())]).map(|(pid, label)| {
        format!("{{\"ph\": \"M\", \"name\": \"process_labels\", \"pid\": {pid}, \"tid\": 0, \"ts\": 0, \"args\": {{\"labels\": \"{label}\"}}}}")
    });
    let rows: Vec<String> = names.chain(rows.into_iter().map(|(_, row)| row)).collect();
    format!(
        "{{\n\"schemaVersion\": 1,\n\"deviceProperties\": [{}],\n\"displayTimeUnit\": \"ms\",\n\"traceEvents\": [\n{}\n]}}\n",
        properties.join(", "),
        rows.join(",\n"),
    )
}

/// Time in us with three digits, as Kineto writes it.
fn micros(ns: u64) -> String {
    format!("{}.{:03}", ns / 1_000, ns % 1_000)
}

/// The common fields of a row: phase, category, place and time.
fn slice(category: &str, name: &str, (pid, tid): (u32, i64), (begin, end): (u64, u64), args: &str) -> String {
    format!(
        "{{\"ph\": \"X\", \"cat\": \"{category}\", \"name\": {}, \"pid\": {pid}, \"tid\": {tid}, \"ts\": {}, \"dur\": {}, \"args\": {{{args}}}}}",
        quoted(Some(name)),
        micros(begin),
        micros(end - begin),
    )
}

/// One end of the flow from a call to its work: `s` at the call, `f` at the work.
fn flow(end: &str, correlation: u32, (pid, tid): (u32, i64), time: u64) -> (u64, String) {
    let binding = if end == "f" { ", \"bp\": \"e\"" } else { "" };
    let ts = micros(time);
    let row = format!(
        "{{\"ph\": \"{end}\", \"cat\": \"ac2g\", \"name\": \"ac2g\", \"id\": {correlation}, \"pid\": {pid}, \"tid\": {tid}, \"ts\": {ts}{binding}}}"
    );
    (time, row)
}

fn add_call(rows: &mut Vec<(u64, String)>, row: &CallRow, is_linked: bool) {
    let (begin, end) = (relative(row.begin), relative(row.end));
    let category = if row.is_driver { "cuda_driver" } else { "cuda_runtime" };
    let place = (MAIN_THREAD, i64::from(row.thread));
    let correlation = row.correlation;
    let args =
        format!("\"External id\": {correlation}, \"cbid\": {}, \"correlation\": {correlation}", row.cbid);
    rows.push((begin, slice(category, &row.name.to_string_lossy(), place, (begin, end), &args)));
    if is_linked {
        rows.push(flow("s", correlation, place, begin));
    }
}

fn add_op(rows: &mut Vec<(u64, String)>, row: &OpRow) {
    let Some(work) = row.work.filter(|work| work.kind != WorkKind::Graph) else { return };
    let (begin, end) = (relative(work.start), relative(work.end));
    let place = (row.device, i64::from(row.stream));
    let correlation = row.correlation;
    let mut args = format!(
        "\"External id\": {correlation}, \"device\": {}, \"context\": {}, \"stream\": {}, \"correlation\": {correlation}",
        row.device, row.context, row.stream
    );
    if work.graph.graph != 0 {
        args += &format!(", \"graph id\": {}, \"graph node id\": {}", work.graph.graph, work.graph.node);
    }
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
    rows.push(flow("f", correlation, place, begin));
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
    rows.push(flow("f", correlation, (device, stream), begin));
}
