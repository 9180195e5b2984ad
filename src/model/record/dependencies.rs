//! Dependencies between host and streams, for tools that replay a run. Recordings contain these rows only on request.
//!
//! A call records an event on a stream, or makes a stream wait for an event; [`EventCall`] holds the call's stack,
//! time and handles. Under the same correlation id the tracer reports the event by its own number ([`EventRecord`],
//! [`SyncRecord`]). Handles are reused after an event is destroyed, but the tracer's numbers are not. If the stream was
//! being captured, the call only became part of a graph, and has an [`EventCall`] but no tracer record.

use super::ids::{ContextId, CorrelationId, EventId, GpuContextId, Nanos, StreamId, SyncId};
use super::kinds::kinds;

/// Record of an event on a stream. The event fires once the work already on the stream is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventRecord {
    /// Correlation id of the call.
    pub correlation: CorrelationId,
    /// GPU context of the stream.
    pub context: GpuContextId,
    /// Stream, by CUPTI's number.
    pub stream: StreamId,
    /// Event, by CUPTI's number.
    pub event: EventId,
    /// Number of this record of the event, to which waits refer. `None` if the tracer does not report the number
    /// (CUPTI before 12.8).
    pub sync: Option<SyncId>,
}

/// A wait of the host, or a request that a stream wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncRecord {
    /// Side that waits (host or stream), and the kind of object waited for.
    pub kind: SyncKind,
    /// Start time of the call; 0 if CUPTI did not collect the time.
    pub start: Nanos,
    /// End time of the call; 0 if CUPTI did not collect the time.
    pub end: Nanos,
    /// Correlation id of the call.
    pub correlation: CorrelationId,
    /// GPU context that was waited for, or that contains the stream or the event.
    pub context: GpuContextId,
    /// Stream that waits for an event, or stream that the host waits for; otherwise `None`.
    pub stream: Option<StreamId>,
    /// Event that the host or stream waited for, if any.
    pub event: Option<EventId>,
    /// Number of the record of the event; `None` if the tracer does not report the number.
    pub sync: Option<SyncId>,
    /// Return code of the call; 0 means that the work waited for is done.
    pub result: u32,
}

kinds! {
    /// Kind of wait, in our own numbers. A later version may write unknown numbers.
    SyncKind(u32) {
        /// Any kind of wait without a separate number.
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

/// A successful call about an event. Each such call writes one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventCall {
    /// Start time of the call, ns since 1970.
    pub time: Nanos,
    /// Duration in nanoseconds; `u32::MAX` means that duration or longer.
    pub duration: u32,
    /// Correlation id that the call's [`EventRecord`] or [`SyncRecord`] also carries.
    pub correlation: CorrelationId,
    /// Stack that made the call.
    pub context: ContextId,
    /// Purpose for which the call uses the event.
    pub event_use: EventUse,
    /// Handle of the event.
    pub event: u64,
    /// Handle of the stream, as passed by the program: 0 to 2 denote default streams.
    pub stream: u64,
}

/// Use of an event by a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum EventUse {
    /// The event is recorded on a stream.
    Record = 0,
    /// A stream waits for the event.
    Wait = 1,
}
