//! The vocabulary: ids, times, frames and rows, and how rows are written to a recording.
//!
//! Rows are the seam between the two lives of gpuflame. What records (in the application) only makes
//! rows; what explains (there or elsewhere) only consumes them. This module knows neither.

mod activity;
mod caller;
mod decode;
mod deps;
mod encode;
mod frame;
mod hash;
mod ids;
mod kinds;
mod loss;
mod missing;
mod rows;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod unified;

pub use activity::{
    Activity, CopyDetail, CopyKind, Created, Detail, KernelDetail, MemoryKind, SetDetail, Work,
};
pub use caller::Caller;
pub use decode::Reader;
pub use deps::{EventCall, EventRecord, EventUse, Sync, SyncKind};
pub use encode::Writer;
pub use frame::{Frame, FrameKind, LabelKind};
pub(crate) use hash::{IdMap, hash_one, map_bytes};
pub use ids::{
    ContextId, CorrelationId, DeviceId, EventId, GpuContextId, GraphId, GraphNodeId, LabelId, ModuleEpoch,
    NameId, Nanos, RangeId, StreamId, SyncId, ThreadId,
};
pub use loss::Loss;
pub use missing::Missing;
pub use rows::{Allocated, ContextFlags, Inside, Launch, MemoryCall, Module, Outside, Row, Wait, WindowEdge};
pub use unified::{Unified, UnifiedKind};
