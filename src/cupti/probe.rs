//! Checks for `gpuflame doctor` whether GPU work can be recorded on this machine. The check itself records nothing. Run
//! this check in a separate process, because it loads the driver and initialises CUDA.

use std::path::PathBuf;

use cupti_sys::Status;

use super::devices::devices;
use super::driver::Driver;
use super::find::CandidateSource;
use super::version::Version;
use super::{Options, load, no_driver, process_env};
use crate::tracer::{Buffer, Call, FilledBuffer, Tracer};
use gpuflame_model::error::{Error, Result};

/// Result of the check: the state of CUDA on this machine, and whether CUDA programs can be recorded.
#[derive(Debug)]
pub struct ProbeReport {
    /// Newest CUDA version that the driver supports, in the driver's encoding (12040 = 12.4). `None` if the driver does
    /// not report its version.
    pub driver: Option<u32>,
    /// Names of the GPUs that this process may use. If the driver fails, the status code that it has returned.
    pub gpus: std::result::Result<Vec<String>, u32>,
    /// The CUPTI library that was loaded, even if it refused to start.
    pub cupti: Option<ProbedCupti>,
    /// Reason why no GPU work can be recorded; `None` if GPU work can be recorded.
    pub refused: Option<(ProbeRefusal, Error)>,
    /// Features that cannot be recorded, with one sentence for each.
    pub notes: Vec<String>,
}

/// The CUPTI library that the check has loaded.
#[derive(Debug)]
pub struct ProbedCupti {
    /// Path of the library.
    pub file: PathBuf,
    /// Reason why gpuflame chose this library.
    pub source: CandidateSource,
    /// Version of the library.
    pub version: Version,
}

/// Category of the reason for which CUPTI has refused to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeRefusal {
    /// Another tool owns the CUPTI subscription.
    OtherTool,
    /// The user is not permitted to use CUPTI.
    Permission,
    /// No CUPTI was found, or CUPTI has refused to start for a reason that has no category of its own.
    Other,
}

/// Runs the check with the CUPTI file `library`. If `library` is `None`, uses the CUPTI file that a search finds.
///
/// # Errors
/// Returns `NoDriver` if this machine has no driver.
pub fn probe(library: Option<PathBuf>) -> Result<ProbeReport> {
    let driver = Driver::find(true).ok_or_else(|| no_driver(true))?;
    let options = Options { library, ..Options::default() };
    let environment = process_env::search_environment(driver.version(), &options);
    let (mut cupti, mut refused, mut notes) = (None, None, Vec::new());
    match load::probe::<SilentTracer>(driver, &environment, &options) {
        Ok((source, api)) => {
            cupti = Some(ProbedCupti { file: api.file().to_owned(), source, version: api.version() });
            notes = api.notes().to_vec();
            api.unsubscribe();
        }
        Err((started, error)) => {
            refused =
                Some((ProbeRefusal::from_status(started.as_ref().map(|(_, _, status)| *status)), error));
            if let Some((candidate, version, _)) = started {
                cupti = Some(ProbedCupti { file: candidate.file, source: candidate.source, version });
            }
        }
    }
    let gpus = devices(driver).map(|devices| devices.into_iter().map(|device| device.name).collect());
    Ok(ProbeReport { driver: driver.version(), gpus, cupti, refused, notes })
}

impl ProbeRefusal {
    fn from_status(status: Option<Status>) -> Self {
        match status {
            Some(Status::MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED | Status::NOT_COMPATIBLE) => Self::OtherTool,
            Some(Status::INSUFFICIENT_PRIVILEGES | Status::VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES) => {
                Self::Permission
            }
            _ => Self::Other,
        }
    }
}

/// A tracer that ignores all notifications. The check launches no GPU work.
struct SilentTracer;

impl Tracer for SilentTracer {
    fn enter(_: &Call<'_>) {}

    fn exit(_: &Call<'_>) {}

    fn request_buffer() -> Option<Buffer> {
        None
    }

    fn buffer_completed(_: FilledBuffer) {}

    fn records_discarded(_: u64) {}
}
