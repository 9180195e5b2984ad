//! Defines the rows about dependencies between the host and streams, for tools that replay a run. A recording contains
//! these rows only on request.
//!
//! An API call records a CUDA event on a stream, or makes a stream wait for a CUDA event. For each such call there is
//! an [`EventCall`] with its time, and with the handles of the stream and the event. For the same operation, the tracer
//! reports an [`EventRecord`] or [`SyncRecord`] with the same correlation id. The tracer identifies the event by an id,
//! because the handle of a destroyed event is reused. If the stream was being captured, the call only added a node to a
//! graph. In this case there is an [`EventCall`], but the tracer reports nothing.

use super::ids::{
    ContextId, CorrelationId, DeviceId, EventId, GpuContextId, GraphId, GraphNodeId, Nanos, StreamId, SyncId,
};
use super::kinds::kinds;

/// A point on a stream at which a CUDA event was recorded. The event is complete when all earlier work on the stream is
/// done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventRecord {
    /// Correlation id of the call.
    pub correlation: CorrelationId,
    /// GPU context to which the stream belongs.
    pub context: GpuContextId,
    /// CUPTI's id of the stream.
    pub stream: StreamId,
    /// CUPTI's id of the event.
    pub event: EventId,
    /// Id of this record of the event, to which waits refer. `None` if the tracer does not report it (CUPTI before
    /// 12.8).
    pub sync: Option<SyncId>,
}

/// CUPTI's record of a call in which the host waited, or which made a stream wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncRecord {
    /// Kind of wait: whether the host or a stream waits, and the kind of object for which it waits.
    pub kind: SyncKind,
    /// Time at which the call began. 0 if CUPTI did not collect it.
    pub start: Nanos,
    /// Time at which the call ended. 0 if CUPTI did not collect it.
    pub end: Nanos,
    /// Correlation id of the call.
    pub correlation: CorrelationId,
    /// GPU context for which the call waited, or GPU context to which the stream or event belongs.
    pub context: GpuContextId,
    /// Stream that waits for an event, or stream for which the host waits. `None` for other kinds of wait.
    pub stream: Option<StreamId>,
    /// CUPTI's id of the event for which the host or stream waited, if it waited for an event.
    pub event: Option<EventId>,
    /// Id of the event record for which the host or stream waited. `None` if the tracer does not report it.
    pub sync: Option<SyncId>,
    /// Return code of the call. 0 means that the awaited work is done.
    pub result: u32,
}

kinds! {
    /// Kind of wait. The values are gpuflame's own. Later versions may write values that are not listed here.
    SyncKind(u32) {
        /// Any other kind of wait.
        OTHER = 0, "other";
        /// The host waits for an event.
        EVENT = 1, "event";
        /// A stream waits for an event.
        STREAM_WAIT = 2, "stream_wait";
        /// The host waits for a stream.
        STREAM = 3, "stream";
        /// The host waits for all streams of a context.
        CONTEXT = 4, "context";
    } else "other"
    /// Returns the word for ledgers and tables: lower case, no blanks.
    word
}

/// A successful API call that records a CUDA event, or makes a stream wait for a CUDA event. Each such call writes one
/// row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventCall {
    /// Time at which the call began, in ns since 1970.
    pub time: Nanos,
    /// Duration of the call in nanoseconds. `u32::MAX` means at least `u32::MAX` nanoseconds.
    pub duration: u32,
    /// Correlation id of the call. The call's [`EventRecord`] or [`SyncRecord`] has the same id.
    pub correlation: CorrelationId,
    /// Context of the call: its stack and API function.
    pub context: ContextId,
    /// What the call did with the event.
    pub event_use: EventUse,
    /// Handle of the event.
    pub event: u64,
    /// Handle of the stream, as the program passed it to the call. The values 0 to 2 are the handles of default
    /// streams.
    pub stream: u64,
}

/// What an API call does with a CUDA event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum EventUse {
    /// The event is recorded on a stream.
    Record = 0,
    /// A stream waits for the event.
    Wait = 1,
}

/// An edge of a graph. In each launch of the graph, the node `to` begins after the node `from` has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GraphEdge {
    /// Graph that owns both nodes.
    pub graph: GraphId,
    /// Node for which `to` waits. `None` if `to` waits for something that is not recorded. In this case, the other
    /// edges of `to` do not explain when `to` begins.
    pub from: Option<GraphNodeId>,
    /// Node that waits.
    pub to: GraphNodeId,
}

/// Attributes of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchAttributes {
    /// Correlation id of the call.
    pub correlation: CorrelationId,
    /// Whether the kernel may begin before the previous kernel on its stream ends (programmatic dependent launch).
    pub is_programmatic: bool,
}

/// A run of a graph node that calls a function on the host. GPU work that depends on the node waits for this function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostNode {
    /// Correlation id of the graph's launch.
    pub correlation: CorrelationId,
    /// GPU to which the waiting stream belongs.
    pub device: DeviceId,
    /// GPU context to which the waiting stream belongs.
    pub context: GpuContextId,
    /// Stream that waits for the function.
    pub stream: StreamId,
    /// Time at which the function began.
    pub start: Nanos,
    /// Time at which the function ended.
    pub end: Nanos,
    /// Graph to which the node belongs.
    pub graph: GraphId,
    /// Node that called the function.
    pub node: GraphNodeId,
}
