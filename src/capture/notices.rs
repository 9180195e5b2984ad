//! What the tracer tells beside launches and records, passed on to whoever runs the session.

use std::sync::OnceLock;

use crate::tracer::Approach;

/// Something that happens rarely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice<'a> {
    /// A context was made on a GPU. In a resource callback: no call to the tracer.
    ContextCreated,
    /// An API call begins that ends a context or resets a device: the last moment for a flush, which is
    /// allowed here.
    ContextEnds,
    /// The program asks that launches be recorded from now on, by `cudaProfilerStart`. In a callback, as the next.
    ProfilerStart,
    /// Or that they be recorded no more.
    ProfilerStop,
    /// A range opens that begins a step ([`watch_range`](super::watch_range)).
    Step,
    /// Filled buffers have piled up. Inside the tracer's lock: no waiting, and no call to the tracer.
    BuffersWait,
    /// Another client of the tracer is about to have this. In no callback.
    Approached(Approach),
    /// The tracer gave up, for this reason.
    Fatal(&'a str),
    /// The callback panicked, and was switched off.
    Panicked,
}

static LISTENER: OnceLock<fn(Notice<'_>)> = OnceLock::new();

/// Names who is told. Only the first call counts.
pub fn listen(listener: fn(Notice<'_>)) {
    let _ = LISTENER.set(listener);
}

pub(super) fn announce(event: Notice<'_>) {
    if let Some(listener) = LISTENER.get() {
        listener(event);
    }
}
