//! Defines the rows about dependencies between the host and streams, for tools that replay a recorded run. A recording
//! contains these rows only on request.
//!
//! An API call records a CUDA event on a stream, or makes a stream wait for a CUDA event. Each such call has an
//! [`EventCall`] row with the time of the call and the handles of the stream and the event. For the same operation, the
//! tracer reports an [`EventRecord`] or [`SyncRecord`] with the same correlation id. The tracer identifies the event by
//! an id, because the handle of a destroyed event may be reused for a new event. A call on a stream that is being
//! captured only adds a node to a graph. Such a call has an [`EventCall`] row, but the tracer reports no record.

use super::ids::{
    ContextId, CorrelationId, DeviceId, EventId, GpuContextId, GraphId, GraphNodeId, Nanos, StreamId, SyncId,
};
use super::kinds::kinds;

/// The tracer's record that a CUDA event was recorded on a stream. The CUDA event is complete when all earlier work on
/// the stream is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventRecord {
    /// Correlation id of the API call that recorded the event.
    pub correlation: CorrelationId,
    /// GPU context to which the stream belongs.
    pub context: GpuContextId,
    /// CUPTI's id of the stream on which the event was recorded.
    pub stream: StreamId,
    /// CUPTI's id of the event that was recorded.
    pub event: EventId,
    /// Id of this recording of the CUDA event, to which waits refer. The id is `None` if the tracer does not report it
    /// (CUPTI before 12.8).
    pub sync: Option<SyncId>,
}

/// CUPTI's record of a call in which the host waited, or which made a stream wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncRecord {
    /// Kind of wait: whether the host or a stream waits, and for which kind of object.
    pub kind: SyncKind,
    /// Time at which the call began, or 0 if CUPTI did not collect this time.
    pub start: Nanos,
    /// Time at which the call ended, or 0 if CUPTI did not collect this time.
    pub end: Nanos,
    /// Correlation id of the API call in which the host waited, or that made a stream wait.
    pub correlation: CorrelationId,
    /// GPU context for which the call waited, or to which the stream or event belongs.
    pub context: GpuContextId,
    /// Stream that waits for an event, or stream for which the host waits, depending on `kind`. The stream is `None`
    /// for kinds of wait that involve no stream.
    pub stream: Option<StreamId>,
    /// CUPTI's id of the event for which the host or stream waited, if it waited for an event.
    pub event: Option<EventId>,
    /// Id of the recording of the event for which the host or stream waited ([`EventRecord::sync`]). The id is `None`
    /// if the tracer does not report it.
    pub sync: Option<SyncId>,
    /// Return code of the call. The code 0 means that the work for which the call waited is done.
    pub result: u32,
}

kinds! {
    /// Kind of wait. gpuflame defines these values; CUPTI may use other values. Later versions may write values that
    /// are not listed here.
    SyncKind(u32) {
        /// A kind of wait that is not listed here.
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
    /// Returns the word that ledgers and tables show. The word is lower case and has no blanks.
    word
}

/// A successful API call that records a CUDA event, or makes a stream wait for a CUDA event. Each call that uses a CUDA
/// event in this way writes one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventCall {
    /// Time at which the call began, in ns since 1970.
    pub time: Nanos,
    /// Duration of the call in nanoseconds. The highest value, `u32::MAX`, means at least `u32::MAX` nanoseconds.
    pub duration: u32,
    /// Correlation id of the API call that recorded the event or made a stream wait. The [`EventRecord`] or
    /// [`SyncRecord`] of the call has the same id.
    pub correlation: CorrelationId,
    /// Launch context of the call: its stack and its API function.
    pub context: ContextId,
    /// Whether the call recorded the event, or made a stream wait for it.
    pub event_use: EventUse,
    /// Handle of the CUDA event.
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

/// A dependency between two nodes of a CUDA graph. In each launch of the graph, the node `to` begins after the node
/// `from` has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GraphEdge {
    /// CUDA graph that owns both nodes.
    pub graph: GraphId,
    /// Node that must end before `to` begins. The node is `None` if `to` waits for a node or object that is not
    /// recorded. If `from` is `None`, the recorded dependencies of `to` alone do not determine when `to` begins.
    pub from: Option<GraphNodeId>,
    /// Node that waits for `from`.
    pub to: GraphNodeId,
}

/// Attributes of a kernel launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchAttributes {
    /// Correlation id of the API call that launched the kernel.
    pub correlation: CorrelationId,
    /// Whether the kernel may begin before the previous kernel on its stream ends (programmatic dependent launch).
    pub is_programmatic: bool,
}

/// One run of a graph node that calls a function on the host. GPU work that depends on the node waits for this
/// function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostNode {
    /// Correlation id of the call that launched the graph.
    pub correlation: CorrelationId,
    /// GPU of the stream that waits for the function.
    pub device: DeviceId,
    /// GPU context to which the waiting stream belongs.
    pub context: GpuContextId,
    /// Stream that waits for the function.
    pub stream: StreamId,
    /// Time at which the function began.
    pub start: Nanos,
    /// Time at which the function ended.
    pub end: Nanos,
    /// CUDA graph to which the node belongs.
    pub graph: GraphId,
    /// Node that called the function.
    pub node: GraphNodeId,
}
