//! GPU flame graphs: every nanosecond of GPU time under the CPU stack that launched it.
//!
//! Most programs do not need this crate: `CUDA_INJECTION64_PATH=libgpuflame.so ./app` records the whole run of any
//! CUDA program, and the command `gpuflame` reads the result. The crate is for Rust programs that want to control
//! *when* to record, name *what* they do, or read recordings themselves.
//!
//! # Recording
//!
//! [`start`] and [`stop`] open and close a window; [`window`] opens a window for a scope. Launches of any thread
//! within a window are recorded. [`range`] names the current work of a thread, and [`mark`] names an instant.
//! gpuflame writes files when the process exits, as configured by [`set_output`] and the `GPUFLAME_*` variables
//! (`gpuflame settings` lists them). [`stats`] returns the results so far.
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
//! [`read`] explains a recording, or a trace from another tool. The result is a [`Run`], which can draw any view in
//! any format of sums.
//!
//! ```
//! # #[cfg(feature = "cli")]
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
//! # #[cfg(not(feature = "cli"))]
//! # fn main() {}
//! ```
//!
//! # Inside
//!
//! gpuflame has two roles. Inside a CUDA process it *records*; inside that process or elsewhere it *explains* what
//! was recorded. ARCHITECTURE.md describes both. Modules that are not listed in this documentation are for gpuflame's
//! own command, shared library and tests, and change without notice.

#![deny(unsafe_code)]

#[doc(hidden)]
pub mod aggregate;
#[doc(hidden)]
#[cfg(feature = "cli")]
pub mod analysis;
#[doc(hidden)]
pub mod capture;
#[doc(hidden)]
#[cfg(feature = "cli")]
pub mod cli;
#[doc(hidden)]
pub mod control;
#[doc(hidden)]
#[allow(unsafe_code)]
pub mod cupti;
#[doc(hidden)]
pub mod error;
#[doc(hidden)]
#[cfg(feature = "cli")]
pub mod events;
#[doc(hidden)]
pub mod explain;
#[doc(hidden)]
pub mod export;
#[doc(hidden)]
pub mod graphs;
#[doc(hidden)]
pub mod host;
#[doc(hidden)]
#[cfg(feature = "cli")]
pub mod import;
#[doc(hidden)]
pub mod join;
#[doc(hidden)]
#[cfg(feature = "cli")]
pub mod merge;
#[doc(hidden)]
pub mod profile;
#[doc(hidden)]
pub mod record;
#[doc(hidden)]
#[cfg(feature = "cli")]
pub mod run;
#[doc(hidden)]
pub mod session;
#[doc(hidden)]
pub mod settings;
#[doc(hidden)]
pub mod stats;
#[doc(hidden)]
#[cfg(feature = "cli")]
pub mod steps;
#[doc(hidden)]
pub mod symbolize;
#[doc(hidden)]
pub mod timeline;
#[doc(hidden)]
#[allow(unsafe_code)]
pub mod tracer;
#[doc(hidden)]
#[allow(unsafe_code)]
pub mod unwind;

/// Ledger of a run: counts of launches and activities that were seen, matched and lost. The counts must add up.
pub mod ledger {
    pub use crate::explain::{Device, Host, Ledger, Stacks, Sum};
    pub use crate::graphs::NodeTally;
    pub use crate::join::{Activities, Launches, Tally};
    pub use crate::profile::views::UnifiedSums;
    pub use crate::profile::{Cause, Dependencies, DeviceTime, DeviceUse};
    pub use crate::record::{DeviceId, Loss};
}

/// The ways to look at a run: GPU time by stack, idle time, waits, memory.
pub mod views {
    pub use crate::profile::views::{
        CPU, GPU, IDLE, MEMORY, Measure, OFF_CPU, TOGETHER, UNIFIED, VIEWS, Value, View, WAITS, view,
    };
}

pub use error::{Error, ErrorKind, Result};
pub use export::{FORMATS, Format, GraphStacks, Options as DrawOptions, Root, Unit, format};
pub use ledger::Ledger;
#[cfg(feature = "cli")]
pub use profile::Unnamed;
#[cfg(feature = "cli")]
pub use run::{ReadOptions, Run, read};
pub use session::{
    KernelTime, Range, Stats, Window, flush, is_active, mark, range, set_output, start, stats, step, stop,
    window,
};
pub use views::View;
