//! Chrome's trace events, in the dialect that torch.profiler writes, for <https://ui.perfetto.dev>, `chrome://tracing`
//! and tools made for PyTorch traces.
//!
//! Calls are on the threads that made them. Activities are on the streams of their GPU (`pid` is the GPU's number, as
//! in Kineto); those that overlap others of their stream are on further tracks (`lanes`). An `ac2g` flow leads from each call to the work that the call started. Waits are `cuda_sync`; calls
//! that wait or concern events are ordinary calls. Times are microseconds with three decimal places, which is exact,
//! relative to `baseTimeNanoseconds`.
//!
//! Stacks and reasons are in `gpuflame` arguments, because Kineto has no place for them; gpuflame reads these
//! arguments again. If the source is a recording, each call has its complete stack as an argument (`stack`,
//! `created_stack` and the kinds of their frames). While the application runs, names are not known yet. Calls then
//! refer (`sf`, as in the format) to `stackFrames`, which is written at the end.

pub mod events;
mod lanes;
mod live;

pub use lanes::Lanes;
pub use live::ChromeText;
