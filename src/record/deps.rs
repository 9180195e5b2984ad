//! Dependencies between host and streams, for tools that replay a run. Recordings contain these rows only on request.
//!
//! A call records an event on a stream, or makes a stream wait for one ([`EventCall`]: stack, time and handles).
//! Under the same correlation id the tracer reports the event by its own number ([`EventRecord`], [`Sync`]). Handles
//! are reused after an event is destroyed, the tracer's numbers are not. A call that only became part of a graph,
//! because its stream was being captured, has an [`EventCall`] alone.

use super::ids::{ContextId, CorrelationId, EventId, GpuContextId, Nanos, StreamId, SyncId};
use super::kinds::kinds;

/// An event was recorded on a stream: it fires once the work already on the stream is done.
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
    /// Number of this record of the event, to which waits refer; `None` if the tracer does not report it (before
    /// 12.8).
    pub sync: Option<SyncId>,
}

/// The host or a stream waited, or was told to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sync {
    /// Waiting side, and the object waited for.
    pub kind: SyncKind,
    /// Start time of the call; 0 = not collected.
    pub start: Nanos,
    /// End time of the call; 0 = not collected.
    pub end: Nanos,
    /// Correlation id of the call.
    pub correlation: CorrelationId,
    /// GPU context that was waited for, or in which the stream or the event was created.
    pub context: GpuContextId,
    /// Stream that waits for an event or that the host waits for; otherwise `None`.
    pub stream: Option<StreamId>,
    /// Event that was waited for, if any.
    pub event: Option<EventId>,
    /// Number of the record of the event; `None` if the tracer does not report it.
    pub sync: Option<SyncId>,
    /// Return code of the call: 0 = the work waited for is done.
    pub result: u32,
}

kinds! {
    /// Kind of wait, in our own numbers (a later version may write others).
    SyncKind(u32) {
        /// Kind without a number.
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

/// A successful call about an event. One is written per such call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventCall {
    /// Start time of the call, ns since 1970.
    pub time: Nanos,
    /// Duration in nanoseconds; `u32::MAX` = that or longer.
    pub duration: u32,
    /// Correlation id that the [`EventRecord`] or the [`Sync`] carries.
    pub correlation: CorrelationId,
    /// Stack that made the call.
    pub context: ContextId,
    /// Use of the event.
    pub does: EventUse,
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
