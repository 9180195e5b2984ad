//! Notifies the session of rare events that the tracer (CUPTI) reports. Launches and activity records do not pass
//! through this module.

use std::sync::OnceLock;

use gpuflame_cupti::tracer::ClientTakeover;

/// A rare event that is reported to the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice<'a> {
    /// A CUDA context was created. This notice is sent inside a resource callback, so the receiver must not call the
    /// tracer.
    ContextCreated,
    /// An API call that destroys a CUDA context or resets a device has begun. The receiver may flush the tracer while
    /// it handles this notice. A flush during this notice is the last chance to get the activity records of this CUDA
    /// context.
    ContextEnds,
    /// The program has called `cudaProfilerStart`, so gpuflame should start to record launches. This notice is sent
    /// inside a callback.
    ProfilerStart,
    /// The program has called `cudaProfilerStop`, so gpuflame should stop recording launches. This notice is sent
    /// inside a callback.
    ProfilerStop,
    /// A range with this name was opened, which begins a step (see [`watch_range`](super::watch_range)).
    Step(&'a str),
    /// Many filled activity buffers are waiting to be read. This notice is sent while the tracer holds its lock, so the
    /// receiver must not wait and must not call the tracer.
    BuffersFilled,
    /// Another client of the tracing library (CUPTI) is about to take over the records or the subscription.
    /// [`ClientTakeover`] states which. This notice is not sent inside a callback.
    ClientTakeover(ClientTakeover),
    /// The tracer has failed, for the reason that the text states.
    Fatal(&'a str),
    /// gpuflame's callback has panicked and was disabled.
    Panicked,
}

static LISTENER: OnceLock<fn(Notice<'_>)> = OnceLock::new();

/// Sets the function that receives the notices. Only the first call has an effect.
pub fn set_listener(listener: fn(Notice<'_>)) {
    let _ = LISTENER.set(listener);
}

pub(super) fn announce(event: Notice<'_>) {
    if let Some(listener) = LISTENER.get() {
        listener(event);
    }
}
