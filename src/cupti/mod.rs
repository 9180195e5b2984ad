//! All that gpuflame knows about NVIDIA CUPTI: where it lies, which releases there are, how it is set
//! up, what its callbacks and records look like.
//!
//! Upwards there is a [`Tracer`], told of API calls and buffers; an [`Api`], to flush and to turn
//! buffers into [`Row`](crate::record::Row)s; and an error in one sentence. No type of CUPTI's and no
//! test of its version stands outside this module.
//!
//! ```text
//! find, here -> load -> api -> callback -> tracer          (set up once; then called by CUPTI)
//!                        |      |   \-> calls              (which API calls, by name)
//!                        |      \-> host_calls -> tracer       (graphs, waits, memory)
//!                        |-> activity -> names -> rows     (buffers, on gpuflame's thread)
//!                        \-> records <- clients             (who has the records; others that come and go)
//! ```

mod activity;
mod api;
mod callback;
mod calls;
mod clients;
mod driver;
#[cfg(test)]
mod fake;
mod family;
pub mod find;
pub mod here;
mod host_calls;
mod kinds;
mod load;
mod names;
#[cfg(feature = "cli")]
mod probe;
#[cfg(test)]
#[path = "real_test.rs"]
mod real;
mod records;
mod shared;
mod traffic;
pub mod version;

pub use activity::ReadTally;
pub use api::Api;
pub use calls::{classify, classify_host_call, label};
pub use clients::Others;
pub use driver::Driver;
pub use names::KernelNames;
#[cfg(feature = "cli")]
pub use probe::{Cupti, Probe, Refusal, probe};
pub use traffic::Traffic;

use crate::error::{Error, ErrorKind, Result};
use crate::tracer::Tracer;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

/// What to ask CUPTI for, and where to find it.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The CUPTI to use (`GPUFLAME_CUPTI`), a path or a name for the dynamic linker. Default: none, search.
    pub library: Option<PathBuf>,
    /// Whether to load the driver where the program has not done so: right when gpuflame is called by
    /// the program, wrong when it is injected, where a process without the driver has no need of us.
    /// Default: `false`.
    pub load_driver: bool,
    /// Whether to record a graph launch as one activity, and none of its nodes: cheap, and blind to what is
    /// in the graph. Default: `false`.
    pub whole_graphs: bool,
    /// Whether to tell of calls about events, and to record events and waits. Default: `false`.
    pub events: bool,
    /// Whether to record what moves in memory that the host and GPUs share, and faults. Default: `false`.
    pub unified: bool,
    /// Whether nothing counts that the environment says of where CUDA is, as in a process with rights that whoever started it has
    /// not. Default: `false`.
    pub without_environment: bool,
    /// What is left to other clients. Default: [`Deference::Records`].
    pub others: Deference,
}

/// How much of CUPTI is left to other clients in the process, and for how long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Deference {
    /// The records if they take them, until they are asked for again.
    None,
    /// The records until they are done.
    #[default]
    Records,
    /// The subscription too, if they ask for it.
    Subscription,
}

/// Whether there is a subscription. One at a time: CUPTI has one set of buffer callbacks a process.
static SUBSCRIBED: AtomicBool = AtomicBool::new(false);

/// Finds CUPTI, subscribes to it, and has it tell `T` of every call that makes GPU work, from the middle
/// of this function on.
///
/// Makes no CUDA call but `cuDriverGetVersion`; CUPTI initialises the driver.
///
/// Errors: [`ErrorKind::NoDriver`], [`ErrorKind::NoCupti`], [`ErrorKind::CuptiRefused`] (no GPU, another
/// profiler, no permission), and [`ErrorKind::State`] while subscribed.
pub fn subscribe<T: Tracer>(options: &Options) -> Result<&'static Api> {
    if SUBSCRIBED.swap(true, Ordering::AcqRel) {
        return Err(Error::new(ErrorKind::State, "gpuflame is recording in this process already"));
    }
    let attached = find_and_attach::<T>(options);
    if attached.is_err() {
        release();
    }
    attached
}

fn find_and_attach<T: Tracer>(options: &Options) -> Result<&'static Api> {
    let driver = Driver::find(options.load_driver).ok_or_else(|| no_driver(options.load_driver))?;
    load::attach::<T>(driver, &here::surroundings(driver, options), options)
}

/// The subscription is over: another may come.
fn release() {
    SUBSCRIBED.store(false, Ordering::Release);
}

fn no_driver(tried_to_load: bool) -> Error {
    let text = if tried_to_load {
        "libcuda.so.1 cannot be loaded: install the NVIDIA driver or, in a container, run it with --gpus all"
    } else {
        "libcuda.so.1 is not loaded in this process: it has made no CUDA call so far"
    };
    Error::new(ErrorKind::NoDriver, text)
}
