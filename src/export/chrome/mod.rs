//! Writes Chrome's trace events, in the dialect of torch.profiler, for <https://ui.perfetto.dev>, `chrome://tracing`
//! and tools made for PyTorch traces.
//!
//! Calls are shown on the threads that made them. Activities (kernels, copies and fills) are shown on the streams of
//! their GPU (`pid` is the GPU's index, as in Kineto). If activities of one stream overlap, they are put on additional
//! tracks (`lanes`). An `ac2g` flow leads from each call to the activity that the call started. Waits that CUPTI
//! recorded are `cuda_sync` trace events. API calls that wait or that use CUDA events are ordinary calls. Times are
//! relative to `baseTimeNanoseconds`. Times are in microseconds with three decimal places, which is exact.
//!
//! Kineto's format has no place for stacks, or for the reasons why data is missing. Therefore stacks, and the reasons
//! why data is missing, are in `gpuflame` arguments, which gpuflame can read back. In a file made from a recording,
//! each call has its complete stack as arguments (`stack`, `created_stack` and the kinds of their frames). While the
//! application runs, the names of frames are not known yet. Therefore, in a file written during the run, a call
//! contains only the id of a frame (`sf`, as the format specifies). The frames are in `stackFrames`, which is written
//! at the end.

pub mod events;
mod lanes;
mod live;

pub use lanes::Lanes;
pub use live::ChromeText;
