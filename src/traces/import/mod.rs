//! The importers read the traces of torch.profiler, Paddle, vLLM, Nsight Systems, rocprofv3 and other tools. Each trace
//! is converted to a stream of [`Event`]s in file order, with exact times in nanoseconds.
//!
//! [`open()`] detects the format of a file by its content, and [`Opened::read`] passes the file's events to a [`Sink`].
//! The events are not stored, so a file may be larger than the memory. [`rows()`] links each GPU operation to the call
//! that launched it, and the call to the slices that were open on the calling thread. [`rows()`] emits rows of the
//! kinds that gpuflame's own capture emits. [`recording()`] reads such rows from a recording of gpuflame.

pub mod json;

mod call_records;
mod call_stacks;
pub(crate) mod chakra;
mod chunks;
mod contexts;
mod copies;
mod cuda_calls;
mod cupti_text;
mod detect;
mod displaced_ops;
mod emitted_rows;
mod file_ids;
mod folded;
mod graph_captures;
mod graph_edges;
mod gzip;
mod gzip_members;
mod host_delays;
mod job;
mod launch_flows;
mod lines;
mod link;
mod link_ids;
mod lz4;
mod model;
mod name_table;
mod named_ranges;
mod near_times;
mod nsys;
mod nsys_columns;
mod nsys_streams;
mod nsys_syncs;
mod nsys_threads;
mod op_order;
mod op_records;
mod open;
mod operator_links;
mod options;
mod places;
mod recording;
mod rocpd;
mod rocprof;
mod rows;
mod rpd;
mod sbt;
mod slice_edges;
mod slice_runs;
mod slices;
mod sqlite;
mod stack_frames;
mod sync_records;
mod sync_rows;
mod text;
mod thread_stacks;
mod thread_states;
mod trace_collector;
mod work;
mod zstd;

pub use file_ids::FileIds;
pub use graph_captures::CaptureCoverage;
pub use json::ReadCounts;
pub use link::LinkReport;
pub use model::{
    Begin, Call, CpuKind, CpuOp, End, Event, EventRecord, Flow, FlowKind, Folded, Fork, Id, IdleNode, Op,
    OpKind, Property, PythonFrame, RawEvent, Sink, SliceKind, StackLine, StreamFlag, Sync, ThreadName, Wants,
};
pub use name_table::NameTable;
pub use named_ranges::NamedRange;
pub use open::{Kind, Opened, open};
pub use options::Options;
pub use places::MAX_RENUMBERED_DEVICES;
pub use recording::{RecordingSummary, WriterState, recording};
pub use rows::rows;
pub use text::Text;
pub use trace_collector::TraceCollector;
pub use work::LinkedStream;

/// Parses a decimal number of microseconds into nanoseconds. Returns `None` if `text` is not a number.
pub fn json_micros(text: &str) -> Option<i64> {
    json::number::parse_micros(text.as_bytes()).map(|(nanos, _)| nanos)
}
