//! Notifies the session of rare events in the tracer (CUPTI). Launches and activity records are not reported this way.

use std::sync::OnceLock;

use gpuflame_cupti::tracer::ClientTakeover;

/// A rare event that is reported to the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice<'a> {
    /// A CUDA context was created. Sent inside a resource callback, in which no call to the tracer is allowed.
    ContextCreated,
    /// An API call that destroys a CUDA context or resets a device begins. The receiver may flush the tracer during
    /// this notice, which is the last chance to get the records of that context.
    ContextEnds,
    /// The program has called `cudaProfilerStart`, so recording of launches should start. Sent inside a callback.
    ProfilerStart,
    /// The program has called `cudaProfilerStop`, so recording of launches should stop. Sent inside a callback.
    ProfilerStop,
    /// A range with this name opens, which begins a step (see [`watch_range`](super::watch_range)).
    Step(&'a str),
    /// Filled buffers have accumulated. Sent while the tracer holds its lock, so the receiver must not wait and must
    /// not call the tracer.
    BuffersFilled,
    /// Another client of the tracing library is about to take over records or the subscription, as [`ClientTakeover`]
    /// states. Not sent inside a callback.
    ClientTakeover(ClientTakeover),
    /// The tracer has failed. The text states the reason.
    Fatal(&'a str),
    /// gpuflame's callback panicked and was disabled.
    Panicked,
}

static LISTENER: OnceLock<fn(Notice<'_>)> = OnceLock::new();

/// Sets the receiver of notices. Only the first call has an effect.
pub fn set_listener(listener: fn(Notice<'_>)) {
    let _ = LISTENER.set(listener);
}

pub(super) fn announce(event: Notice<'_>) {
    if let Some(listener) = LISTENER.get() {
        listener(event);
    }
}
