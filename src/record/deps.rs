//! What waited for what, for whoever replays a run: rows that are in a recording only where they were asked for.
//!
//! A call puts an event on a stream, or has a stream wait for one ([`EventCall`]: who called, when, and which
//! handles); the tracer says under the same correlation id which event of its own numbering that was
//! ([`EventRecord`], [`Sync`]). Handles are used again when an event is destroyed, the tracer's numbers are not. A
//! call that only became part of a graph, since its stream was being captured, has an [`EventCall`] alone.

use super::ids::{ContextId, CorrelationId, EventId, GpuContextId, Nanos, StreamId, SyncId};
use super::kinds::kinds;

/// An event was put on a stream: it happens when the stream's work so far is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventRecord {
    /// The call's correlation id.
    pub correlation: CorrelationId,
    /// The context of the stream.
    pub context: GpuContextId,
    /// The stream, as CUPTI numbers it.
    pub stream: StreamId,
    /// The event, as CUPTI numbers it.
    pub event: EventId,
    /// The number of this record of it, by which waits name it; `None` where the tracer has none (before 12.8).
    pub sync: Option<SyncId>,
}

/// The host or a stream waited, or was told to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sync {
    /// Who waited for what.
    pub kind: SyncKind,
    /// When the call began; 0 = not collected.
    pub start: Nanos,
    /// When it was over; 0 = not collected.
    pub end: Nanos,
    /// The call's correlation id.
    pub correlation: CorrelationId,
    /// The context that was waited for, or in which the stream or the event was made.
    pub context: GpuContextId,
    /// The stream that waits for an event or that the host waits for; else `None`.
    pub stream: Option<StreamId>,
    /// The event waited for, if it is one.
    pub event: Option<EventId>,
    /// Which record of the event; `None` where the tracer does not say.
    pub sync: Option<SyncId>,
    /// What the call answered: 0 = what was waited for is done.
    pub result: u32,
}

kinds! {
    /// Who waited for what, in numbers of ours (a later version may write others).
    SyncKind(u32) {
        /// One that has no number yet.
        OTHER = 0, "other";
        /// The host for an event.
        EVENT = 1, "event";
        /// A stream for an event.
        STREAM_WAIT = 2, "stream_wait";
        /// The host for a stream.
        STREAM = 3, "stream";
        /// The host for all streams of a context.
        CONTEXT = 4, "context";
    } else "other"
    /// The word that ledgers and tables show; lower case, no blanks.
    word
}

/// A call about an event that worked. One is written on every such call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventCall {
    /// When the call began, ns since 1970.
    pub time: Nanos,
    /// How long it took, in nanoseconds; `u32::MAX` = that long or longer.
    pub duration: u32,
    /// The id that the [`EventRecord`] or the [`Sync`] carries.
    pub correlation: CorrelationId,
    /// The stack that made the call.
    pub context: ContextId,
    /// What the call did with the event.
    pub does: EventUse,
    /// The event's handle.
    pub event: u64,
    /// The stream's handle, as the program gave it: 0 to 2 stand for default streams.
    pub stream: u64,
}

/// What is done with an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum EventUse {
    /// It is put on a stream.
    Record = 0,
    /// A stream waits for it.
    Wait = 1,
}
