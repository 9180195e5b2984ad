//! Chrome's trace events, in the dialect that torch.profiler writes: <https://ui.perfetto.dev>,
//! `chrome://tracing` and the tools made for PyTorch traces read it.
//!
//! Calls stand on the threads that made them, activities on the streams of their GPU (`pid` is the GPU's
//! number, as Kineto has it), and an `ac2g` flow leads from each call to what it started. Waits are `cuda_sync`, and calls
//! that wait or are about events are calls like others. Times are microseconds with three places, that is exact, from
//! `baseTimeNanoseconds` on.
//!
//! What Kineto has no place for, and gpuflame reads again, are stacks and reasons (`gpuflame`). Of a recording each call has
//! its whole stack as an argument (`stack`, `created_stack` and what their frames are). While the application runs nothing
//! has a name yet: calls refer (`sf`, as the format has it) to `stackFrames`, which stand at the end.

mod events;
mod live;
#[cfg(feature = "cli")]
mod whole;

pub use live::ChromeText;
#[cfg(feature = "cli")]
pub(super) use {events::title, whole::CHROME};
