//! Defines the rows about dependencies between the host and streams, for tools that replay a run. A recording contains
//! these rows only on request.
//!
//! A call records an event on a stream, or makes a stream wait for an event. An [`EventCall`] contains the call's
//! stack, time and handles. The tracer reports the same operation in an [`EventRecord`] or [`SyncRecord`] with the same
//! correlation id, and identifies the event by a number: handles are reused after an event is destroyed, numbers are
//! not. If the stream was being captured, the call only became part of a graph: there is an [`EventCall`], but the
//! tracer reports nothing.

use super::ids::{
    ContextId, CorrelationId, DeviceId, EventId, GpuContextId, GraphId, GraphNodeId, Nanos, StreamId, SyncId,
};
use super::kinds::kinds;

/// A point on a stream at which an event was recorded. The event fires once all earlier work on the stream is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventRecord {
    /// Correlation id of the call.
    pub correlation: CorrelationId,
    /// GPU context to which the stream belongs.
    pub context: GpuContextId,
    /// Stream, as numbered by CUPTI.
    pub stream: StreamId,
    /// Event, as numbered by CUPTI.
    pub event: EventId,
    /// Number that identifies this record of the event, and to which waits refer. `None` if the tracer does not report
    /// the number (CUPTI before 12.8).
    pub sync: Option<SyncId>,
}

/// A wait of the host, or a call that made a stream wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncRecord {
    /// Kind of wait: whether the host or a stream waits, and for what kind of object.
    pub kind: SyncKind,
    /// Start time of the call; 0 if CUPTI did not collect the time.
    pub start: Nanos,
    /// End time of the call; 0 if CUPTI did not collect the time.
    pub end: Nanos,
    /// Correlation id of the call.
    pub correlation: CorrelationId,
    /// GPU context for which the call waited, or GPU context of the stream or event.
    pub context: GpuContextId,
    /// Stream that waits for an event, or stream for which the host waits; `None` for other kinds of wait.
    pub stream: Option<StreamId>,
    /// Event for which the host or stream waited, if any.
    pub event: Option<EventId>,
    /// Number of the awaited event record; `None` if the tracer does not report the number.
    pub sync: Option<SyncId>,
    /// Return code of the call; 0 means that the awaited work is done.
    pub result: u32,
}

kinds! {
    /// Kind of wait, in gpuflame's own numbers. Later versions may write numbers that are not listed here.
    SyncKind(u32) {
        /// A kind of wait that has no number here.
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

/// A successful call that records an event, or makes a stream wait for an event. Each such call writes one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventCall {
    /// Start time of the call, ns since 1970.
    pub time: Nanos,
    /// Duration in nanoseconds; `u32::MAX` means at least `u32::MAX` nanoseconds.
    pub duration: u32,
    /// Correlation id of the call, which its [`EventRecord`] or [`SyncRecord`] has as well.
    pub correlation: CorrelationId,
    /// Stack that made the call.
    pub context: ContextId,
    /// Operation of the call on the event.
    pub event_use: EventUse,
    /// Handle of the event.
    pub event: u64,
    /// Handle of the stream, as the program passed it. The values 0 to 2 denote default streams.
    pub stream: u64,
}

/// Operation of a call on an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum EventUse {
    /// The event is recorded on a stream.
    Record = 0,
    /// A stream waits for the event.
    Wait = 1,
}

/// An edge of a graph: in each launch of the graph, the node `to` begins after the node `from`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GraphEdge {
    /// Graph that owns both nodes.
    pub graph: GraphId,
    /// Node for which `to` waits. `None` if `to` waits for something that is not recorded, so that the other edges of
    /// `to` do not explain when `to` begins.
    pub from: Option<GraphNodeId>,
    /// Node that waits.
    pub to: GraphNodeId,
}

/// A launch with attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchAttributes {
    /// Correlation id of the call.
    pub correlation: CorrelationId,
    /// Whether the kernel may begin before the previous kernel on its stream ends (programmatic dependent launch).
    pub is_programmatic: bool,
}

/// An execution of a graph node that calls a function on the host. GPU work that waits for the node waits for the
/// function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostNode {
    /// Correlation id of the graph's launch.
    pub correlation: CorrelationId,
    /// GPU whose stream waits for the function.
    pub device: DeviceId,
    /// GPU context of the stream.
    pub context: GpuContextId,
    /// Stream that waits for the function.
    pub stream: StreamId,
    /// Start of the function.
    pub start: Nanos,
    /// End of the function.
    pub end: Nanos,
    /// Graph to which the node belongs.
    pub graph: GraphId,
    /// The node.
    pub node: GraphNodeId,
}
