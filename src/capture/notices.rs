//! What the tracer tells beside launches and records, passed on to whoever runs the session.

use std::sync::OnceLock;

/// Something that happens rarely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice<'a> {
    /// A context was made on a GPU. In a resource callback: no call to the tracer.
    ContextCreated,
    /// An API call begins that ends a context or resets a device: the last moment for a flush, which is
    /// allowed here.
    ContextEnds,
    /// Filled buffers have piled up. Inside the tracer's lock: no waiting, and no call to the tracer.
    BuffersWait,
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
