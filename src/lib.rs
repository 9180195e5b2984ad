//! Draws GPU flame graphs, which show every nanosecond of GPU time under the CPU stack that launched the work.
//!
//! Most programs do not need this crate: `CUDA_INJECTION64_PATH=libgpuflame.so ./app` records the whole run of any CUDA
//! program, and the command `gpuflame` reads the result. The crate is for Rust programs that control *when* to record,
//! name *what* they do, or read recordings.
//!
//! # Recording
//!
//! [`start`] and [`stop`] open and close a window; [`window`] opens a window for a scope. While a window is open, the
//! launches of all threads are recorded. [`range`] names what the thread is currently doing, and [`mark`] names an
//! instant. gpuflame writes files when the process exits, as configured by [`set_output`] and the `GPUFLAME_*`
//! variables (`gpuflame settings` lists them). [`stats`] returns the results so far.
//!
//! ```
//! # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doctest.rs"));
//! # fn main() -> gpuflame::Result<()> {
//! # let gpu = simulated_gpu();
//! # let decode = || gpu.work();
//! # let shut_down = || gpu.work();
//! gpuflame::start()?; // before the first CUDA call, or at any time if gpuflame is injected as well
//! for _ in 0..3 {
//!     let _range = gpuflame::range("decode"); // a frame of every launch until it is dropped
//!     decode();
//! }
//! gpuflame::stop()?;
//! shut_down(); // its launches are counted as outside, and are in no picture
//! # gpu.synchronize();
//!
//! let launches = gpuflame::stats()?.ledger.launches();
//! assert!(launches.holds()); // each launch was matched with its GPU work, or there is a reason why not
//! assert_eq!(launches.to_string(), "launches 4 = matched 3 + launch_pending 0 + outside 1 + dropped 0");
//! # Ok(())
//! # }
//! ```
//!
//! # Reading
//!
//! With the feature `read`, `gpuflame::read` explains a recording, or a trace from another tool. The result is a
//! `gpuflame::Run`, which can draw any view. A `gpuflame::Run` can write every format that can be made from sums alone.
//!
//! ```
//! # #[cfg(feature = "read")]
//! # fn main() -> gpuflame::Result<()> {
//! # let folder = std::env::temp_dir().join(format!("gpuflame-doctest-{}", std::process::id()));
//! # std::fs::create_dir_all(&folder)?;
//! # let (trace, picture) = (folder.join("trace.json"), folder.join("flame.svg"));
//! # std::fs::write(&trace, r#"{"traceEvents": [
//! #   {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": 5, "dur": 2, "args": {"correlation": 7}},
//! #   {"ph": "X", "cat": "kernel", "name": "softmax", "pid": 0, "tid": 7, "ts": 9, "dur": 30, "args": {"correlation": 7, "device": 0, "stream": 7}}
//! # ]}"#)?;
//! let run = gpuflame::read(&trace, &gpuflame::ReadOptions::default())?;
//! assert_eq!(run.ledger().activities().total, 1);
//!
//! let svg = gpuflame::format("svg").expect("pictures are always there");
//! let mut out = std::fs::File::create(&picture)?;
//! run.draw(&gpuflame::views::GPU, svg, &gpuflame::DrawOptions::default(), &mut out)?;
//! # std::fs::remove_dir_all(&folder)?;
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "read"))]
//! # fn main() {}
//! ```
//!
//! # Inside
//!
//! gpuflame has two roles. Inside a CUDA process, it *records*. In the same process or in another process, it
//! *explains* the recording. ARCHITECTURE.md describes both roles. Modules that this documentation does not list are
//! only for gpuflame's own command, shared library and tests. Modules that are not listed change without notice.

#![deny(unsafe_code)]

/// Ledger of a run: counts of launches and activities that were seen, matched and lost. The counts in each equation of
/// the ledger must add up.
pub mod ledger {
    pub use gpuflame_explain::graphs::NodeTally;
    pub use gpuflame_explain::join::{Activities, Launches, Tally};
    pub use gpuflame_explain::{Device, Host, Ledger, Stacks, Sum};
    pub use gpuflame_model::profile::views::UnifiedSums;
    pub use gpuflame_model::profile::{Cause, Dependencies, DeviceTime, DeviceUse};
    pub use gpuflame_model::record::{DeviceId, Loss};
}

/// Views of a run: GPU time by stack, idle time, waits, and memory.
pub mod views {
    pub use gpuflame_model::profile::views::{
        CPU, GPU, IDLE, MEMORY, Measure, OFF_CPU, TOGETHER, UNIFIED, VIEWS, Value, View, WAITS, view,
    };
}

#[cfg(not(feature = "read"))]
pub use gpuflame_export::{FORMATS, format};
pub use gpuflame_export::{Format, GraphStacks, Options as DrawOptions, Root, Unit};
pub use gpuflame_model::error::{Error, ErrorKind, Result};
#[cfg(feature = "read")]
pub use gpuflame_model::profile::Unnamed;
#[cfg(feature = "read")]
pub use gpuflame_offline::formats::{FORMATS, format};
#[cfg(feature = "read")]
pub use gpuflame_offline::run::{ReadOptions, Run, read};
pub use gpuflame_recorder::session::{
    KernelTime, Range, Stats, Window, flush, is_active, mark, range, set_output, start, stats, step, stop,
    window,
};
pub use ledger::Ledger;
pub use views::View;
