//! The join against hand-made rows, and against a brute-force oracle over shuffled ones.

use super::*;
use crate::record::{Detail, DeviceId, GpuContextId, GraphId, GraphNodeId, KernelDetail, NameId, StreamId};

/// A kernel on device 0.
pub(super) fn kernel(correlation: u32, start: u64, end: u64) -> Activity {
    Activity {
        correlation: CorrelationId(correlation),
        device: DeviceId(0),
        context: GpuContextId(1),
        stream: StreamId(7),
        channel: None,
        start: Nanos(start),
        end: Nanos(end),
        graph: GraphId(0),
        graph_node: GraphNodeId(0),
        detail: Detail::Kernel(KernelDetail {
            name: NameId(1),
            grid: [1, 1, 1],
            block: [32, 1, 1],
            registers: 16,
            static_shared: 0,
            dynamic_shared: 0,
        }),
    }
}
