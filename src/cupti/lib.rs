//! The only crate that depends on NVIDIA CUPTI. This crate finds the CUPTI library, handles the differences between
//! CUPTI's releases, and sets CUPTI up. This crate also knows the layout of CUPTI's callback arguments and activity
//! records.
//!
//! The interface of this crate has two parts. A [`Tracer`] receives API calls and buffers of activity records. An
//! [`Api`] flushes CUPTI, and converts buffers to [`Row`](gpuflame_model::record::Row)s. Each error message of this
//! crate is a single sentence. No other crate contains a CUPTI type or checks a CUPTI version.
//!
//! Words that this crate uses: *records* are CUPTI's activity records, and *kinds* are activity kinds. A *client* is
//! any code in this process other than gpuflame that uses CUPTI. A client *owns* the records while CUPTI delivers them
//! to its buffer functions.
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
mod api_version;
mod callback;
mod callback_state;
mod calls;
mod clients;
mod delivery_counts;
mod devices;
mod driver;
#[cfg(test)]
mod fake;
pub mod find;
mod host_calls;
mod kinds;
mod load;
mod names;
mod probe;
pub mod process_env;
#[cfg(test)]
#[path = "real_test.rs"]
mod real;
mod records;
pub mod tracer;
pub mod version;

pub use activity::ReadTally;
pub use api::Api;
pub use calls::{classify, classify_host_call, label};
pub use clients::ClientActivity;
pub use delivery_counts::DeliveryCounts;
pub use devices::{Device, DeviceReport, FoundCupti, list_devices};
pub use driver::Driver;
pub use names::KernelNames;
pub use probe::{ProbeRefusal, ProbeReport, ProbedCupti, probe};

use crate::tracer::Tracer;
use gpuflame_model::error::{Error, ErrorKind, Result};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

/// Settings of a CUPTI subscription: what CUPTI records, and where its library is.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The CUPTI library to use (`GPUFLAME_CUPTI`), as a path or as a name that the dynamic linker looks up. Default:
    /// `None`, which makes gpuflame search for a library.
    pub library: Option<PathBuf>,
    /// Whether to load the driver if the program has not loaded it. Set this option if the program itself calls
    /// gpuflame. Do not set this option if gpuflame is injected, because a process without the driver has nothing to
    /// record. Default: `false`.
    pub load_driver: bool,
    /// Whether to record each graph launch as a single activity, without its graph nodes. Recording whole graphs is
    /// cheap, but hides which kernels a graph runs. Default: `false`.
    pub whole_graphs: bool,
    /// Whether to report API calls that handle CUDA events, and to record CUDA events and waits. Default: `false`.
    pub events: bool,
    /// Whether to record unified memory (memory that the host and GPUs share): its page faults and transfers. Default:
    /// `false`.
    pub unified: bool,
    /// Whether to ignore the environment variables that say where CUDA is installed. These variables must be ignored if
    /// the process has more rights than the user who started it, because that user controls the variables. Default:
    /// `false`.
    pub without_environment: bool,
    /// CUPTI resources that we leave to other clients. Default: [`Deference::Records`].
    pub deference: Deference,
}

/// CUPTI resources that we leave to other clients in this process, and for how long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Deference {
    /// We leave the activity records to a client only until we take them back, for example when a window opens.
    None,
    /// A client that takes the activity records may keep them until it has finished.
    #[default]
    Records,
    /// A client that takes the activity records may keep them until it has finished. A client that requests the
    /// subscription gets it too.
    Subscription,
}

/// Whether we have a CUPTI subscription in this process. We can have only one subscription per process, because CUPTI
/// has one set of buffer callbacks per process.
static SUBSCRIBED: AtomicBool = AtomicBool::new(false);

/// Finds CUPTI, subscribes to it, and enables the callbacks that notify `T` of every API call that creates GPU work.
/// The first callbacks can arrive before this function returns.
///
/// This function makes only one CUDA call, `cuDriverGetVersion`. CUPTI itself initialises the driver.
///
/// Errors: [`ErrorKind::NoDriver`], [`ErrorKind::NoCupti`], [`ErrorKind::CuptiRefused`] (no GPU, another
/// profiler, or no permission), or [`ErrorKind::State`] if this process is already subscribed.
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
    load::attach::<T>(driver, &process_env::search_environment(driver.version(), options), options)
}

/// Notes that our subscription has ended, so that a new subscription is allowed.
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
