//! Reads the JSON files that `rocprofv3 --output-format json` writes. The whole file is held in memory, because its
//! records refer to tables of kernels, agents (devices) and operation names in the same file.

use std::collections::HashMap;
use std::io::Read;

use super::json::document::{Document, Node};
use super::model::*;
use super::{Id, ReadCounts, Text};
use gpuflame_model::error::{Error, ErrorKind, Result};

/// Kind of record that contains the beginning and the end of a range.
const RANGES: &[u8] = b"MARKER_CORE_RANGE_API";
/// Prefix of the operation name of a range that was opened and closed on the same thread.
const THREAD_RANGE: &[u8] = b"roctxThreadRange";

pub(super) fn read(input: impl Read, sink: &mut impl Sink) -> Result<ReadCounts> {
    let document = Document::read(input)?;
    let root = document.root()?;
    let Some(tools) = root.get("rocprofiler-sdk-tool") else {
        return Err(Error::new(ErrorKind::Format, "JSON without `rocprofiler-sdk-tool`: not from rocprofv3"));
    };
    let mut counts = ReadCounts { bytes: document.bytes(), ..ReadCounts::default() };
    for tool in tools.items() {
        ProcessSection::new(tool).read(sink, &mut counts);
    }
    Ok(counts)
}

/// The part of the file that belongs to a single process.
struct ProcessSection<'a> {
    process: Id<'a>,
    kernels: HashMap<u64, Text<'a>>,
    /// Index of each GPU, in file order. The key is the handle of the GPU's agent.
    devices: HashMap<u64, u32>,
    /// Names of operations. The first index of this table is the kind of record, and the second index is the operation.
    operations: Vec<Vec<Text<'a>>>,
    /// Kinds of records that are ranges of AMD's annotation library roctx.
    range_kinds: Vec<u64>,
    /// Texts of the marks and ranges of roctx, keyed by correlation id.
    messages: HashMap<u64, Text<'a>>,
    records: Option<Node<'a>>,
}

impl<'a> ProcessSection<'a> {
    fn new(tool: Node<'a>) -> Self {
        let process = tool.get("metadata").and_then(|data| data.get("pid")).and_then(Node::integer);
        let symbols = tool.get("kernel_symbols").into_iter().flat_map(Node::items);
        let kernels = symbols.filter_map(|symbol| {
            let mut name = Text::default();
            let mut id = None;
            for (key, value) in symbol.entries() {
                match key.raw() {
                    b"kernel_id" => id = value.unsigned(),
                    b"formatted_kernel_name" => name = value.text(),
                    b"kernel_name" if name.is_empty() => name = value.text(),
                    _ => {}
                }
            }
            Some((id?, name))
        });
        // An agent of the type 2 is a GPU.
        let agents = tool.get("agents").into_iter().flat_map(Node::items);
        let gpus = agents.filter(|agent| agent.get("type").and_then(Node::unsigned) == Some(2));
        let devices = gpus.filter_map(|agent| handle(agent.get("id"))).zip(0..).collect();
        let strings = |table| {
            let table = tool.get("strings").and_then(|strings| strings.get(table));
            table.into_iter().flat_map(Node::items)
        };
        let operations = strings("buffer_records")
            .map(|kind| kind.get("operations").into_iter().flat_map(Node::items).map(Node::text).collect());
        let is_range = |kind: &Node<'_>| kind.get("kind").is_some_and(|kind| kind.text().raw() == RANGES);
        let ranges = strings("buffer_records").zip(0..).filter(|(kind, _)| is_range(kind));
        let messages = strings("marker_api")
            .filter_map(|row| Some((row.get("key")?.unsigned()?, row.get("value")?.text())));
        Self {
            process: process.map_or(Id::None, Id::Number),
            kernels: kernels.collect(),
            devices,
            operations: operations.collect(),
            range_kinds: ranges.map(|(_, number)| number).collect(),
            messages: messages.collect(),
            records: tool.get("buffer_records"),
        }
    }

    fn read(&self, sink: &mut impl Sink, counts: &mut ReadCounts) {
        for (table, records) in self.records.into_iter().flat_map(Node::entries) {
            let kind = match table.raw() {
                b"kernel_dispatch" => Some(OpKind::Kernel),
                b"memory_copy" => Some(OpKind::Copy),
                b"hip_api" | b"hsa_api" | b"marker_api" | b"rccl_api" => None,
                _ => continue,
            };
            for record in records.items() {
                counts.events += 1;
                let record = RocprofRecord::new(record);
                let (Some(start), Some(end)) = (record.start, record.end) else {
                    counts.untimed += 1;
                    continue;
                };
                sink.event(&match kind {
                    Some(kind) => self.op_event(kind, &record, start, end),
                    None if record.kind.is_some_and(|kind| self.range_kinds.contains(&kind)) => {
                        self.range_event(&record, start, end)
                    }
                    None => self.call_event(&record, start, end),
                });
            }
        }
    }

    fn op_event(&self, kind: OpKind, record: &RocprofRecord<'a>, start: i64, end: i64) -> Event<'a> {
        let kernel = record.kernel.and_then(|id| self.kernels.get(&id).copied());
        let name = match kind {
            OpKind::Kernel => kernel.unwrap_or(Text::from("[kernel without a name]")),
            OpKind::Copy | OpKind::Set | OpKind::Graph => copy_name(self.operation_name(record)),
        };
        Event::Op(Op {
            kind,
            name,
            start,
            end,
            process: self.process,
            device: record.agent.and_then(|agent| self.devices.get(&agent).copied()),
            context: None,
            // If the tool did not trace streams, all records have the stream 0.
            stream: record.stream.filter(|stream| *stream != 0),
            correlation: record.correlation,
            bytes: record.bytes,
            grid: record.grid,
            block: record.block,
            shared: record.shared,
            ..Op::default()
        })
    }

    /// Converts the record of a range that belongs to one thread. A range that belongs to the whole process may overlap
    /// with the slices of any thread, so it cannot be part of a stack.
    fn range_event(&self, record: &RocprofRecord<'a>, start: i64, end: i64) -> Event<'a> {
        let operation = self.operation_name(record);
        if !operation.raw().starts_with(THREAD_RANGE) {
            return Event::Other(operation);
        }
        let message = record.correlation.and_then(|id| self.messages.get(&id).copied());
        Event::Cpu(CpuOp {
            kind: CpuKind::Range,
            name: message.unwrap_or(operation),
            start,
            end,
            process: self.process,
            thread: record.thread.map_or(Id::None, Id::Number),
            ..CpuOp::default()
        })
    }

    fn call_event(&self, record: &RocprofRecord<'a>, start: i64, end: i64) -> Event<'a> {
        Event::Call(Call {
            name: self.operation_name(record),
            start,
            end,
            process: self.process,
            thread: record.thread.map_or(Id::None, Id::Number),
            correlation: record.correlation,
            ..Call::default()
        })
    }

    fn operation_name(&self, record: &RocprofRecord<'a>) -> Text<'a> {
        let operations = record.kind.and_then(|kind| self.operations.get(kind as usize));
        let name = operations.zip(record.operation).and_then(|(names, at)| names.get(at as usize));
        name.copied().unwrap_or(Text::from("[operation without a name]"))
    }
}

/// Fields that records of every kind may have.
#[derive(Default)]
struct RocprofRecord<'a> {
    kind: Option<u64>,
    operation: Option<u64>,
    thread: Option<i64>,
    correlation: Option<u64>,
    start: Option<i64>,
    end: Option<i64>,
    agent: Option<u64>,
    kernel: Option<u64>,
    stream: Option<u32>,
    bytes: u64,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    lifetime: std::marker::PhantomData<&'a ()>,
}

impl<'a> RocprofRecord<'a> {
    fn new(node: Node<'a>) -> Self {
        let mut record = Self::default();
        for (key, value) in node.entries() {
            match key.raw() {
                b"kind" => record.kind = value.unsigned(),
                b"operation" => record.operation = value.unsigned(),
                b"thread_id" => record.thread = value.integer(),
                b"correlation_id" => {
                    record.correlation = value.get("internal").and_then(Node::unsigned).filter(|&id| id != 0)
                }
                b"start_timestamp" => record.start = value.integer(),
                b"end_timestamp" => record.end = value.integer(),
                b"stream_id" => record.stream = to_u32(handle(Some(value))),
                b"dst_agent_id" => record.agent = handle(Some(value)),
                b"bytes" => record.bytes = value.unsigned().unwrap_or(0),
                b"dispatch_info" => record.read_dispatch_info(value),
                _ => {}
            }
        }
        record
    }

    fn read_dispatch_info(&mut self, info: Node<'a>) {
        for (key, value) in info.entries() {
            match key.raw() {
                b"agent_id" => self.agent = handle(Some(value)),
                b"kernel_id" => self.kernel = value.unsigned(),
                b"group_segment_size" => self.shared = to_u32(value.unsigned()).unwrap_or(0),
                b"workgroup_size" => self.block = parse_xyz(value),
                b"grid_size" => self.grid = parse_xyz(value),
                _ => {}
            }
        }
        // On AMD's GPUs, the grid size is a number of threads. For GPUs of all other vendors, the grid size is a number
        // of blocks.
        for (grid, block) in self.grid.iter_mut().zip(self.block) {
            *grid = grid.div_ceil(block.max(1));
        }
    }
}

fn handle(node: Option<Node<'_>>) -> Option<u64> {
    node?.get("handle")?.unsigned()
}

fn to_u32(value: Option<u64>) -> Option<u32> {
    value.and_then(|value| u32::try_from(value).ok())
}

fn parse_xyz(node: Node<'_>) -> [u32; 3] {
    ["x", "y", "z"].map(|axis| to_u32(node.get(axis).and_then(Node::unsigned)).unwrap_or(0))
}

/// Returns the short name of a copy direction that other tools use, for a name such as `MEMORY_COPY_HOST_TO_DEVICE`.
pub(super) fn copy_name(operation: Text<'_>) -> Text<'_> {
    let raw = operation.raw();
    for (ending, name) in [
        ("HOST_TO_DEVICE", "HtoD"),
        ("DEVICE_TO_HOST", "DtoH"),
        ("DEVICE_TO_DEVICE", "DtoD"),
        ("HOST_TO_HOST", "HtoH"),
    ] {
        if raw.ends_with(ending.as_bytes()) {
            return Text::from(name);
        }
    }
    operation
}
