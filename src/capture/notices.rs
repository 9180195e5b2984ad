//! Notifications of the tracer other than launches and records, passed on to the session.

use std::sync::OnceLock;

use crate::tracer::Approach;

/// A rare event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice<'a> {
    /// A context was created on a GPU. Sent inside a resource callback: no call to the tracer is allowed.
    ContextCreated,
    /// An API call begins that destroys a context or resets a device: the last chance for a flush, which is allowed
    /// here.
    ContextEnds,
    /// The program asks to record launches from now on, by `cudaProfilerStart`. Sent inside a callback, as is the
    /// next.
    ProfilerStart,
    /// The program asks to stop recording launches, by `cudaProfilerStop`.
    ProfilerStop,
    /// A range opens that begins a step ([`watch_range`](super::watch_range)).
    Step,
    /// Filled buffers have piled up. Sent inside the tracer's lock: no waiting, and no call to the tracer.
    BuffersWait,
    /// Another client of the tracer is about to take this over. Not sent inside a callback.
    Approached(Approach),
    /// The tracer has failed, for this reason.
    Fatal(&'a str),
    /// The callback panicked and was disabled.
    Panicked,
}

static LISTENER: OnceLock<fn(Notice<'_>)> = OnceLock::new();

/// Sets the receiver of notices. Only the first call has an effect.
pub fn listen(listener: fn(Notice<'_>)) {
    let _ = LISTENER.set(listener);
}

pub(super) fn announce(event: Notice<'_>) {
    if let Some(listener) = LISTENER.get() {
        listener(event);
    }
}
