//! All that gpuflame knows about NVIDIA CUPTI: the search for its library, its releases, how it is set
//! up, and the layout of its callbacks and records.
//!
//! Its users see a [`Tracer`], which receives API calls and buffers; an [`Api`], to flush and to turn buffers into
//! [`Row`](crate::record::Row)s; and errors of one sentence. No CUPTI type and no test of a CUPTI version appears
//! outside this module.
//!
//! ```text
//! find, here -> load -> api -> callback -> tracer          (set up once; then called by CUPTI)
//!                        |      |   \-> calls              (which API calls, by name)
//!                        |      \-> host_calls -> tracer       (graphs, waits, memory)
//!                        |-> activity -> names -> rows     (buffers, on gpuflame's thread)
//!                        \-> records <- clients             (who owns the records; clients that come and go)
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

/// Settings of a subscription: what CUPTI shall record, and where its library is.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The CUPTI to use (`GPUFLAME_CUPTI`): a path, or a name for the dynamic linker. Default: `None`, search for
    /// one.
    pub library: Option<PathBuf>,
    /// Whether to load the driver if the program has not loaded it: right when the program calls gpuflame, wrong when
    /// gpuflame is injected, as a process without the driver does not need it. Default: `false`.
    pub load_driver: bool,
    /// Whether to record a graph launch as a single activity, without its nodes: cheap, but hides which kernels the
    /// graph runs. Default: `false`.
    pub whole_graphs: bool,
    /// Whether to report calls about events, and to record events and waits. Default: `false`.
    pub events: bool,
    /// Whether to record transfers of memory that the host and GPUs share, and page faults. Default: `false`.
    pub unified: bool,
    /// Whether to ignore environment variables that name CUDA's location. Needed in a process with more rights than
    /// the user who started it. Default: `false`.
    pub without_environment: bool,
    /// Deference to other clients. Default: [`Deference::Records`].
    pub others: Deference,
}

/// How much is released to other CUPTI clients in the process, and for how long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Deference {
    /// The records if a client takes them, until we ask for them again.
    None,
    /// The records, until the client that took them is done.
    #[default]
    Records,
    /// The records as above, and the subscription if a client asks for it.
    Subscription,
}

/// Whether there is a subscription. At most one: CUPTI has one set of buffer callbacks per process.
static SUBSCRIBED: AtomicBool = AtomicBool::new(false);

/// Finds CUPTI, subscribes to it, and enables the callbacks that report every call that creates GPU work to `T`. The
/// first callbacks may arrive before this function returns.
///
/// The only CUDA call that it makes is `cuDriverGetVersion`; CUPTI initialises the driver.
///
/// Errors: [`ErrorKind::NoDriver`], [`ErrorKind::NoCupti`], [`ErrorKind::CuptiRefused`] (no GPU, another profiler, no
/// permission), and [`ErrorKind::State`] while subscribed.
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

/// Marks the subscription as ended, which allows another one.
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
