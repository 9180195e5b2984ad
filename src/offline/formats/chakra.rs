//! Writes Chakra's execution trace as protobuf: a `GlobalMetadata` message, then one message per node. The length of
//! each message is written before the message.
//!
//! Field numbers are the same as in `et_def.proto` in github.com/mlcommons/chakra. The names of attributes are the same
//! as in files that Chakra's converter writes. The attributes `start_ns`, `duration_ns` and `inclusive_ns` were added
//! by gpuflame, because `start_time_micros` and `duration_micros` hold only whole microseconds. Each node is written
//! after all nodes that it depends on.

use std::io::Write;

use prost::Message;

use crate::execution::{Communication, GpuNode, LinkedTrace, communication};
use gpuflame_model::error::Result;
use gpuflame_traces::execution::{Node, Values};

mod proto {
    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct GlobalMetadata {
        #[prost(string, tag = "1")]
        pub(super) version: String,
        #[prost(message, repeated, tag = "2")]
        pub(super) attr: Vec<Attribute>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Attribute {
        #[prost(string, tag = "1")]
        pub(super) name: String,
        #[prost(int64, optional, tag = "9")]
        pub(super) int64: Option<i64>,
        #[prost(uint64, optional, tag = "13")]
        pub(super) uint64: Option<u64>,
        #[prost(bool, optional, tag = "27")]
        pub(super) boolean: Option<bool>,
        #[prost(string, optional, tag = "29")]
        pub(super) string: Option<String>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Node {
        #[prost(uint64, tag = "1")]
        pub(super) id: u64,
        #[prost(string, tag = "2")]
        pub(super) name: String,
        #[prost(int32, tag = "3")]
        pub(super) kind: i32,
        #[prost(uint64, repeated, tag = "4")]
        pub(super) ctrl_deps: Vec<u64>,
        #[prost(uint64, repeated, tag = "5")]
        pub(super) data_deps: Vec<u64>,
        #[prost(uint64, tag = "6")]
        pub(super) start_time_micros: u64,
        #[prost(uint64, tag = "7")]
        pub(super) duration_micros: u64,
        #[prost(message, optional, tag = "8")]
        pub(super) inputs: Option<IoInfo>,
        #[prost(message, optional, tag = "9")]
        pub(super) outputs: Option<IoInfo>,
        #[prost(message, repeated, tag = "10")]
        pub(super) attr: Vec<Attribute>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct IoInfo {
        #[prost(string, tag = "1")]
        pub(super) values: String,
        #[prost(string, tag = "2")]
        pub(super) shapes: String,
        #[prost(string, tag = "3")]
        pub(super) types: String,
    }
}

use proto::Attribute;

/// Version of Chakra's format at the time at which this source file was written.
const VERSION: &str = "0.0.4";

/// Chakra's codes for the node types that gpuflame writes.
#[derive(Clone, Copy)]
enum NodeType {
    Metadata = 1,
    Compute = 4,
    Send = 5,
    Receive = 6,
    Collective = 7,
}

/// Writes an execution trace that was linked with a Kineto trace, in Chakra's format.
///
/// # Errors
/// Fails if writing to `out` fails.
pub fn write_chakra(linked: &LinkedTrace<'_>, out: &mut dyn Write) -> Result<()> {
    let header = &linked.trace.header;
    let metadata = proto::GlobalMetadata {
        version: VERSION.to_owned(),
        attr: vec![
            text("schema", &header.schema),
            unsigned("pid", header.pid),
            text("time", &header.time),
            unsigned("start_ts", header.start_ts),
            unsigned("finish_ts", header.finish_ts),
        ],
    };
    out.write_all(&metadata.encode_length_delimited_to_vec())?;
    for &number in &linked.order {
        let node = match (number as usize).checked_sub(linked.trace.nodes.len()) {
            None => host_node(linked, number),
            Some(at) => gpu_node(linked, number, &linked.gpu[at]),
        };
        out.write_all(&node.encode_length_delimited_to_vec())?;
    }
    Ok(())
}

fn host_node(linked: &LinkedTrace<'_>, number: u32) -> proto::Node {
    let at = number as usize;
    let node = &linked.trace.nodes[at];
    let dependencies = &linked.dependencies;
    let parent = node.parent.map(|parent| linked.trace.nodes[parent].id);
    // The first operator of a thread has no previous operator, so this operator depends on its parent instead.
    let previous = dependencies.thread[at].map(|one| linked.id(one)).or(parent);
    let others = dependencies.inter_thread[at].iter().chain(&dependencies.host_waits[at]);
    let mut attr = node_attributes(node);
    attr.push(boolean("is_cpu_op", true));
    if let Some(times) = linked.host[at] {
        attr.extend([
            signed("start_ns", times.start),
            unsigned("duration_ns", times.exclusive),
            unsigned("inclusive_ns", times.inclusive),
        ]);
    }
    let name = node.name.decode().into_owned();
    let is_metadata = name.contains("process_group:init");
    proto::Node {
        id: node.id,
        kind: if is_metadata { NodeType::Metadata } else { NodeType::Compute } as i32,
        name,
        ctrl_deps: parent.into_iter().collect(),
        data_deps: unique(previous.into_iter().chain(others.map(|one| linked.id(*one)))),
        start_time_micros: linked.host[at].map_or(0, |times| micros(times.start)),
        duration_micros: linked.host[at].map_or(0, |times| rounded_micros(times.exclusive)),
        inputs: Some(values(&node.inputs)),
        outputs: Some(values(&node.outputs)),
        attr,
    }
}

fn gpu_node(linked: &LinkedTrace<'_>, number: u32, gpu: &GpuNode) -> proto::Node {
    let at = number as usize;
    let (parent, work) = (&linked.trace.nodes[gpu.parent], linked.work(gpu));
    let dependencies = &linked.dependencies;
    let waited =
        dependencies.stream[at].iter().chain(&dependencies.stream_waits[at]).map(|one| linked.id(*one));
    let mut attr = node_attributes(parent);
    attr.extend([
        boolean("is_cpu_op", false),
        signed("start_ns", work.start),
        unsigned("duration_ns", work.nanos()),
    ]);
    attr.extend(work.stream.map(|number| signed("stream", number.into())));
    attr.extend(work.device.map(|number| signed("device", number.into())));
    attr.extend(work.correlation.map(|id| unsigned("correlation", id)));
    let mut kind = NodeType::Compute;
    if let Some((what, bytes, group)) = communication(linked, gpu) {
        kind = match what {
            Communication::Send => NodeType::Send,
            Communication::Receive => NodeType::Receive,
            Communication::Collective(_) => NodeType::Collective,
        };
        if let Communication::Collective(Some(number)) = what {
            attr.push(signed("comm_type", number as i64));
        }
        attr.push(signed("comm_size", bytes as i64));
        attr.extend((!group.is_empty()).then(|| text("pg_name", &group)));
    }
    proto::Node {
        id: gpu.id,
        name: linked.kineto.name(work.name).to_owned(),
        kind: kind as i32,
        ctrl_deps: vec![parent.id],
        // Simulators follow only data dependencies, so the operator that launched the GPU work is listed as a data
        // dependency too.
        data_deps: unique(std::iter::once(parent.id).chain(waited)),
        start_time_micros: micros(work.start),
        duration_micros: rounded_micros(work.nanos()),
        inputs: Some(values(&parent.inputs)),
        outputs: Some(values(&parent.outputs)),
        attr,
    }
}

fn node_attributes(node: &Node<'_>) -> Vec<Attribute> {
    vec![
        signed("rf_id", node.rf_id.unwrap_or(0) as i64),
        signed("fw_parent", node.fw_parent as i64),
        signed("seq_id", node.seq_id),
        signed("scope", node.scope as i64),
        signed("tid", node.tid as i64),
        signed("fw_tid", node.fw_tid as i64),
        text("op_schema", &node.op_schema.decode()),
    ]
}

fn values(values: &Values<'_>) -> proto::IoInfo {
    proto::IoInfo {
        values: values.values.to_owned(),
        shapes: values.shapes.to_owned(),
        types: values.types.to_owned(),
    }
}

fn unique(ids: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut all = Vec::new();
    for id in ids {
        if !all.contains(&id) {
            all.push(id);
        }
    }
    all
}

fn micros(nanos: i64) -> u64 {
    u64::try_from(nanos.div_euclid(1000)).unwrap_or(0)
}

fn rounded_micros(nanos: u64) -> u64 {
    nanos / 1000 + u64::from(nanos % 1000 >= 500)
}

fn attribute(name: &str) -> Attribute {
    Attribute { name: name.to_owned(), ..Attribute::default() }
}

fn signed(name: &str, value: i64) -> Attribute {
    Attribute { int64: Some(value), ..attribute(name) }
}

fn unsigned(name: &str, value: u64) -> Attribute {
    Attribute { uint64: Some(value), ..attribute(name) }
}

fn boolean(name: &str, value: bool) -> Attribute {
    Attribute { boolean: Some(value), ..attribute(name) }
}

fn text(name: &str, value: &str) -> Attribute {
    Attribute { string: Some(value.to_owned()), ..attribute(name) }
}
