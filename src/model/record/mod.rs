//! Defines ids, times, frames and rows, and the format in which rows are written to a recording.
//!
//! Rows are the interface between the two sides of gpuflame. The recording side (in the application) only produces
//! rows. The explaining side (in the same process or in another one) only consumes rows. This module depends neither on
//! the recording side nor on the explaining side.

mod activity;
mod activity_fields;
mod caller;
mod chunk;
mod decode;
mod dependencies;
mod encode;
mod fields;
mod frame;
mod hash;
mod ids;
mod kinds;
mod loss;
mod metadata;
mod missing;
mod packed;
mod payload;
mod provenance;
mod rows;
mod stacks;
mod step_spans;
mod sums;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod testing;
#[cfg(test)]
mod tests;
mod unified;

pub use activity::{
    Activity, CopyDetail, CopyKind, Created, Detail, KernelDetail, MemoryKind, SetDetail, Work,
};
pub use caller::Caller;
pub use chunk::Chunk;
pub use decode::{Reader, has_end_row};
pub use dependencies::{
    EventCall, EventRecord, EventUse, GraphEdge, HostNode, LaunchAttributes, SyncKind, SyncRecord,
};
pub use encode::Writer;
pub use fields::Fields;
pub use frame::{Frame, FrameKind, LabelKind};
pub use hash::{IdMap, hash_one, map_bytes};
pub use ids::{
    CodeId, ContextId, CorrelationId, DeviceId, EventId, GpuContextId, GraphId, GraphNodeId, LabelId,
    ModuleEpoch, NameId, Nanos, RangeId, StreamId, SyncId, ThreadId,
};
pub use loss::Loss;
pub use metadata::{CheckpointMark, RecordingState, WriterId};
pub use missing::Missing;
pub use payload::Payload;
pub use provenance::Provenance;
pub use rows::{
    Allocation, CodeObject, ContextFlags, CpuSample, FrameFunction, HostCallSpan, HostState, Instant, Launch,
    MemoryCall, Module, OffCpuWait, OutsideLaunches, Row, Step, Wait, WindowEdge,
};
pub use stacks::TreeStack;
pub use step_spans::StepSpans;
pub use sums::{SumsWriter, write_final_sums};
pub use unified::{Unified, UnifiedKind};
