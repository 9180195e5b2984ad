//! Chrome's trace events, in the dialect that torch.profiler writes, for <https://ui.perfetto.dev>, `chrome://tracing`
//! and tools made for PyTorch traces.
//!
//! Calls are on the threads that made them, activities on the streams of their GPU (`pid` is the GPU's number, as in
//! Kineto), and an `ac2g` flow leads from each call to the work it started. Waits are `cuda_sync`; calls that wait or
//! concern events are ordinary calls. Times are microseconds with three decimal places, which is exact, relative to
//! `baseTimeNanoseconds`.
//!
//! Stacks and reasons, which Kineto has no place for and gpuflame reads again, are in `gpuflame` arguments. From a
//! recording, each call has its whole stack as an argument (`stack`, `created_stack` and the kinds of their frames).
//! While the application runs there are no names yet: calls refer (`sf`, as in the format) to `stackFrames`, which are
//! written at the end.

mod events;
mod live;
#[cfg(feature = "cli")]
mod whole;

pub use live::ChromeText;
#[cfg(feature = "cli")]
pub(super) use {events::title, whole::CHROME};
