//! Writes an execution trace that was linked with a Kineto trace, as JSON. The file contains the nodes of PyTorch's
//! trace in the format of version 1.0.2 and later, with times and dependencies, followed by the GPU work. The keys are
//! the same as in Chakra's linker, with the additional keys `start_ns`, `duration_ns`, `stream_dep` and
//! `stream_wait_dep`.

use std::fmt::Write as _;
use std::io::Write;

use super::strict_json::strict;
use crate::execution::{GpuNode, LinkedTrace, communication};
use gpuflame_model::error::Result;
use gpuflame_model::profile::json_string;
use gpuflame_traces::execution::{Node, Values};
use gpuflame_traces::import::OpKind;

/// Schema version to write if the nodes were converted from version 1.0.1.
const CONVERTED_SCHEMA: &str = "1.0.2-chakra.0.0.4";

/// Writes an execution trace that was linked with a Kineto trace, as JSON.
///
/// # Errors
/// Fails if writing to `out` fails.
pub fn write_linked_trace(linked: &LinkedTrace<'_>, out: &mut dyn Write) -> Result<()> {
    let header = &linked.trace.header;
    let is_old = linked.trace.nodes.iter().all(|node| node.attrs.is_none());
    let schema = if is_old { CONVERTED_SCHEMA } else { &header.schema };
    write!(
        out,
        "{{\n\"schema\": {}, \"pid\": {}, \"time\": {}, \"start_ts\": {}, \"finish_ts\": {},\n\"nodes\": [",
        json_string(schema),
        header.pid,
        json_string(&header.time),
        header.start_ts,
        header.finish_ts
    )?;
    for at in 0..linked.trace.nodes.len() {
        let comma = if at == 0 { "" } else { "," };
        write!(out, "{comma}\n{{{}}}", host_fields(linked, at))?;
    }
    for (at, gpu) in linked.gpu.iter().enumerate() {
        write!(out, ",\n{{{}}}", gpu_fields(linked, linked.gpu_number(at), gpu))?;
    }
    Ok(writeln!(out, "\n]}}")?)
}

fn host_fields(linked: &LinkedTrace<'_>, at: usize) -> String {
    let node = &linked.trace.nodes[at];
    // As in PyTorch's files, the root node is its own parent.
    let parent = node.parent.map_or(node.id, |parent| linked.trace.nodes[parent].id);
    let mut text = node_fields(node.id, &node.name.decode(), parent, node);
    let Some(times) = linked.host[at] else { return text };
    let dependencies = &linked.dependencies;
    let inter_thread =
        dependencies.inter_thread[at].map_or("null".to_owned(), |one| linked.id(one).to_string());
    // Writing to a string cannot fail.
    let _ = write!(
        text,
        ", \"inclusive_dur\": {}, \"exclusive_dur\": {}, \"ts\": {}, \"start_ns\": {}, \"duration_ns\": {}, \
         \"inter_thread_dep\": {inter_thread}",
        micros(times.inclusive as i64),
        micros(times.exclusive as i64),
        micros(times.start),
        times.start,
        times.inclusive,
    );
    add_ids(&mut text, "sync_dep", linked, &dependencies.host_waits[at]);
    text
}

fn gpu_fields(linked: &LinkedTrace<'_>, number: u32, gpu: &GpuNode) -> String {
    let (parent, work) = (&linked.trace.nodes[gpu.parent], linked.work(gpu));
    let name = linked.kineto.name(work.name);
    let mut text = node_fields(gpu.id, name, parent.id, parent);
    let category = match work.kind {
        OpKind::Copy => "gpu_memcpy",
        OpKind::Set => "gpu_memset",
        _ => "kernel",
    };
    let duration = micros(work.nanos() as i64);
    let _ = write!(
        text,
        ", \"cat\": \"{category}\", \"ph\": \"X\", \"inclusive_dur\": {duration}, \"exclusive_dur\": {duration}, \
         \"ts\": {}, \"start_ns\": {}, \"duration_ns\": {}",
        micros(work.start),
        work.start,
        work.nanos(),
    );
    for (key, number) in [("device", work.device), ("stream", work.stream)] {
        if let Some(number) = number {
            let _ = write!(text, ", \"{key}\": {number}");
        }
    }
    if let Some(id) = work.correlation {
        let _ = write!(text, ", \"correlation\": {id}");
    }
    if let Some((_, _, group)) = communication(linked, gpu).filter(|(.., group)| !group.is_empty()) {
        let _ = write!(text, ", \"pg_name\": {}", json_string(&group));
    }
    if let Some(previous) = linked.dependencies.stream[number as usize] {
        let _ = write!(text, ", \"stream_dep\": {}", linked.id(previous));
    }
    add_ids(&mut text, "stream_wait_dep", linked, &linked.dependencies.stream_waits[number as usize]);
    text
}

/// Returns the JSON fields that all nodes have. Inputs, outputs and attributes are copied from the node `like`.
fn node_fields(id: u64, name: &str, parent: u64, like: &Node<'_>) -> String {
    format!(
        "\"id\": {id}, \"name\": {}, \"ctrl_deps\": {parent}, \"inputs\": {}, \"outputs\": {}, \"attrs\": {}",
        json_string(name),
        io(&like.inputs),
        io(&like.outputs),
        like.attrs.map_or_else(|| attributes(like), strict)
    )
}

fn io(values: &Values<'_>) -> String {
    let strides =
        values.strides.map(|strides| format!(", \"strides\": {}", strict(strides))).unwrap_or_default();
    format!(
        "{{\"values\": {}, \"shapes\": {}, \"types\": {}{strides}}}",
        strict(values.values),
        strict(values.shapes),
        strict(values.types)
    )
}

/// Converts the attributes of a node from version 1.0.1 to the format of later versions.
fn attributes(node: &Node<'_>) -> String {
    let number = |name: &str, kind: &str, value: &dyn std::fmt::Display| {
        format!("{{\"name\": \"{name}\", \"type\": \"{kind}\", \"value\": {value}}}")
    };
    let all = [
        number("rf_id", "uint64", &node.rf_id.unwrap_or(0)),
        number("fw_parent", "uint64", &node.fw_parent),
        number("seq_id", "int64", &node.seq_id),
        number("scope", "uint64", &node.scope),
        number("tid", "uint64", &node.tid),
        number("fw_tid", "uint64", &node.fw_tid),
        number("op_schema", "string", &json_string(&node.op_schema.decode())),
    ];
    format!("[{}]", all.join(", "))
}

fn add_ids(text: &mut String, key: &str, linked: &LinkedTrace<'_>, nodes: &[u32]) {
    if !nodes.is_empty() {
        let ids: Vec<String> = nodes.iter().map(|one| linked.id(*one).to_string()).collect();
        let _ = write!(text, ", \"{key}\": [{}]", ids.join(", "));
    }
}

/// Returns nanoseconds as microseconds with up to three decimals, without loss of precision.
fn micros(nanos: i64) -> String {
    let (sign, nanos) = (if nanos < 0 { "-" } else { "" }, nanos.unsigned_abs());
    match nanos % 1000 {
        0 => format!("{sign}{}", nanos / 1000),
        rest => format!("{sign}{}.{rest:03}", nanos / 1000),
    }
}
