//! Writes Chrome's trace events, in the dialect of torch.profiler, for <https://ui.perfetto.dev>, `chrome://tracing`
//! and tools made for PyTorch traces.
//!
//! Calls are on the threads that made them. Activities are on the streams of their GPU (`pid` is the GPU's number, as
//! in Kineto). If activities of one stream overlap, they are put on additional tracks (`lanes`). An `ac2g` flow leads
//! from each call to the work that the call started. Waits are `cuda_sync` events. Calls that wait or use events are
//! ordinary calls. Times are relative to `baseTimeNanoseconds`, in microseconds with three decimal places, and so
//! exact.
//!
//! Kineto's format has no place for stacks, or for the reasons why data is missing. So both are in `gpuflame`
//! arguments, which gpuflame can read back. In a file made from a recording, each call has its complete stack as
//! arguments (`stack`, `created_stack` and the kinds of their frames). While the application runs, names are not known
//! yet. So in a file written during the run, calls refer (by `sf`, as the format specifies) to `stackFrames`, which is
//! written at the end.

pub mod events;
mod lanes;
mod live;

pub use lanes::Lanes;
pub use live::ChromeText;
