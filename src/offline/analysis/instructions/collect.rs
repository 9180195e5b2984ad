//! Collects the rows from which instructions are created.

use super::topology::GraphRows;
use gpuflame_explain::events::JoinedRows;
use gpuflame_explain::join::{Launched, Origin, Sink};
use gpuflame_model::record::{Activity, CorrelationId, GpuContextId, IdMap, Row, StreamId};
use gpuflame_traces::import::LinkReport;

/// CUPTI's codes for the kinds of streams. A stream is of one of three kinds: created without a flag, created with
/// `cudaStreamNonBlocking`, or default stream of a CUDA context.
const STREAM_DEFAULT: u32 = 1;
const STREAM_NON_BLOCKING: u32 = 2;
const STREAM_NULL: u32 = 3;

/// A [`Sink`] that stores the rows needed for instructions.
#[derive(Clone, Debug, Default)]
pub struct InstructionRows {
    pub(super) joined: JoinedRows,
    /// Earliest start and latest end of the GPU work that was launched outside all windows. GPU work that was launched
    /// outside all windows is not in the list of instructions.
    pub(super) outside: Option<(u64, u64)>,
    pub(super) graph_rows: GraphRows,
    /// Whether a stream and the default stream of its CUDA context wait for each other.
    pub(super) blocking: IdMap<(GpuContextId, StreamId), bool>,
}

impl InstructionRows {
    /// Adds two facts that another tool's trace contains but its imported rows do not: the original correlation ids,
    /// and the kinds of streams.
    pub fn add_trace_facts(&mut self, linked: &mut LinkReport) {
        self.joined.set_source_ids(std::mem::take(&mut linked.file_ids).to_vec());
        for stream in &linked.streams {
            let key = (GpuContextId(stream.context), StreamId(stream.stream));
            match stream.flag {
                STREAM_DEFAULT | STREAM_NULL => drop(self.blocking.insert(key, true)),
                STREAM_NON_BLOCKING => drop(self.blocking.insert(key, false)),
                _ => {}
            }
        }
    }
}

impl Sink for InstructionRows {
    fn activity(&mut self, activity: &Activity, origin: Origin) {
        self.joined.activity(activity, origin);
    }

    fn pending(&mut self, id: CorrelationId, launched: Launched) {
        self.joined.pending(id, launched);
    }

    fn outside(&mut self, activity: &Activity, _launched: Launched) {
        if activity.duration().is_some() {
            let (start, end) = self.outside.unwrap_or((u64::MAX, 0));
            self.outside = Some((start.min(activity.start.0), end.max(activity.end.0)));
        }
    }

    fn host(&mut self, row: &Row<'_>) {
        self.graph_rows.push(row);
        self.joined.host(row);
    }
}
