//! Reads the kinds of streams, and the host functions in streams and graphs, from exports of Nsight Systems.

use super::Id;
use super::model::*;
use super::nsys::{NsysReader, no_name};
use super::nsys_columns::FIRST_OWN;
use super::sqlite::{self, integer, integer_u32};
use gpuflame_model::error::Result;

impl<S: Sink> NsysReader<'_, S> {
    /// Reads the kinds of streams. The table of streams contains the parts of a global id in separate columns.
    pub(super) fn read_streams(&mut self) -> Result<()> {
        let table = "TARGET_INFO_CUDA_STREAM";
        if !self.base.has_table(table) {
            return Ok(());
        }
        let wanted = ["hwId", "vmId", "processId", "contextId", "streamId", "flag"];
        let columns = wanted.map(|column| self.base.column(table, "T", column)).join(", ");
        // Rows that describe streams do not count as trace events.
        self.base.for_each_row(&format!("SELECT {columns} FROM {table} AS T"), |row| {
            let part = |at: usize| integer(row, at).unwrap_or(0);
            let process = integer(row, 2).map(|process| part(0) << 32 | part(1) << 24 | process);
            self.sink.event(&Event::Stream(StreamFlag {
                process: process.map_or(Id::None, Id::Number),
                context: integer_u32(row, 3),
                stream: integer_u32(row, 4),
                flag: integer_u32(row, 5),
            }));
        })
    }

    /// Reads the executions of host functions. A host function that does not belong to a graph was submitted to a
    /// stream.
    pub(super) fn read_host_functions(&mut self) -> Result<()> {
        let table = "CUPTI_ACTIVITY_KIND_GRAPH_HOST_NODE_AND_HOST_LAUNCH";
        self.for_each_gpu_row(table, &no_name(), &["graphNodeId", "graphId"], |reader, shared, row| {
            let Some(work) = shared.work() else { return false };
            let graph = integer_u32(row, FIRST_OWN + 1).filter(|&id| id != 0);
            let run = Op { graph_node: sqlite::id(row, FIRST_OWN), graph, ..work };
            reader.sink.event(&Event::IdleNode(IdleNode { is_host: true, run }));
            true
        })
    }
}
