//! Tries the files that a search has found, and starts the first CUPTI library that works. If no file works, the error
//! message explains in one sentence why.
//!
//! If a file cannot be used, the reason is noted, and the next file is tried. Some refusals end the search immediately,
//! because CUPTI would refuse every other copy of the library as well.

use super::Options;
use super::api::Api;
use super::api_version::CuptiFunctions;
use super::driver::Driver;
use super::find::{Candidate, CandidateSource, SearchEnvironment, SearchResult};
use super::records::SetupRefusal;
use super::version::Version;
use crate::tracer::Tracer;
use cupti_sys::{Library, Status};
use gpuflame_model::error::{Error, ErrorKind};
use gpuflame_os::{interpose, threads};
use std::ffi::CString;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Reason why a file was not used as CUPTI.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SkipReason {
    /// The dynamic linker could not load the library.
    NotLoaded(String),
    /// The library lacks the function with this name. A library without this function is not CUPTI, or is too old.
    Lacks(&'static str),
    /// The library was already tried under another name.
    TriedBefore,
    /// The library is older than version 11.8.
    TooOld(Version),
    /// The library belongs to a later major CUDA release than the driver. The second field is the newest CUDA version
    /// that the driver supports.
    NewerThanDriver(Version, u32),
    /// The library was loaded, but could not be started. The fields are the library's version, the step that failed,
    /// and the status that CUPTI returned.
    NotStarted(Version, &'static str, Status),
}

/// Starts the first candidate that works, and returns its API.
///
/// Errors: no candidate works, or CUPTI refuses the subscription. The message is one sentence and contains advice.
pub(super) fn attach<T: Tracer>(
    driver: Driver,
    environment: &SearchEnvironment,
    options: &Options,
) -> Result<&'static Api, Error> {
    let search = environment.search();
    let attached = attach_any::<T>(driver, &search, options);
    attached
        .map(|(_, api)| api)
        .map_err(|tried| failure_error(environment, &search, &tried, super::process_env::has_gpu_file()))
}

/// A CUPTI library that was loaded but refused to start: its file, its version, and the status that it returned.
pub(super) type StartedLibrary = (Candidate, Version, Status);

/// Like `attach`, but returns more information. On success, also returns the reason why this CUPTI library was tried.
/// On failure, also returns the CUPTI library that was loaded but refused to start, if there is one.
pub(super) fn probe<T: Tracer>(
    driver: Driver,
    environment: &SearchEnvironment,
    options: &Options,
) -> Result<(CandidateSource, &'static Api), (Option<StartedLibrary>, Error)> {
    let search = environment.search();
    attach_any::<T>(driver, &search, options).map_err(|tried| {
        let error = failure_error(environment, &search, &tried, super::process_env::has_gpu_file());
        let started = tried.into_iter().rev().find_map(|(candidate, reason)| match reason {
            SkipReason::NotStarted(version, _, status) => Some((candidate, version, status)),
            _ => None,
        });
        (started, error)
    })
}

/// Starts the first candidate that works. On failure, returns each candidate, with the reason why it was not used.
fn attach_any<T: Tracer>(
    driver: Driver,
    search: &SearchResult,
    options: &Options,
) -> Result<(CandidateSource, &'static Api), Vec<(Candidate, SkipReason)>> {
    let mut tried = Vec::new();
    let mut seen = Vec::new();
    for candidate in &search.candidates {
        match attach_one::<T>(driver, candidate, options, &mut seen) {
            Ok(api) => return Ok((candidate.source, api)),
            Err(reason) => {
                let is_last = ends_search(&reason, candidate.source);
                tried.push((candidate.clone(), reason));
                if is_last {
                    break;
                }
            }
        }
    }
    Err(tried)
}

/// Loads, checks and starts one candidate. `seen` contains the files that were already loaded. For a bare name, the
/// dynamic linker may find a library that was already tried. A library that has refused to start must not be called
/// again.
fn attach_one<T: Tracer>(
    driver: Driver,
    candidate: &Candidate,
    options: &Options,
    seen: &mut Vec<PathBuf>,
) -> Result<&'static Api, SkipReason> {
    let library = open(candidate)?;
    let file = library.file().unwrap_or_else(|| candidate.file.clone());
    if seen.contains(&file) {
        return Err(SkipReason::TriedBefore);
    }
    seen.push(file.clone());
    let (functions, version) = check_library(driver, library)?;
    note_threads(functions.library());
    Api::attach::<T>(functions, (version, driver.version()), file, options)
        .map_err(|SetupRefusal { step, status }| SkipReason::NotStarted(version, step, status))
}

/// Registers every thread that the CUPTI library creates after this call. An unregistered thread of the library would
/// keep a process alive after all of the process's own threads have ended. If the library's GOT slot for
/// `pthread_create` cannot be written, its threads stay unregistered.
fn note_threads(library: &Library) {
    if let Some(inside) = library.get_version {
        threads::note_threads_of_tracer();
        let ours = threads::create_for_tracer as *const () as usize;
        let _ = interpose::replace_in_module(inside as usize, "pthread_create", ours);
    }
}

/// Loads the library file of a candidate.
///
/// Errors: the message of the dynamic linker.
pub(super) fn open(candidate: &Candidate) -> Result<Library, SkipReason> {
    let file = CString::new(candidate.file.as_os_str().as_bytes())
        .map_err(|_| SkipReason::NotLoaded("its name contains a NUL byte".to_owned()))?;
    if candidate.source == CandidateSource::Mapped {
        // SAFETY: the name of the file is that of a libcupti.
        let library = unsafe { Library::open_mapped(&file) };
        return library.ok_or_else(|| SkipReason::NotLoaded("it has been unloaded".to_owned()));
    }
    // SAFETY: the name of the file is that of a libcupti, or the user has named the file as one.
    unsafe { Library::open(&file) }.map_err(SkipReason::NotLoaded)
}

/// Checks everything about the library that can be checked without starting it.
///
/// Errors: the reason why the library cannot be used.
pub(super) fn check_library(
    driver: Driver,
    library: Library,
) -> Result<(CuptiFunctions, Version), SkipReason> {
    // SAFETY: the library is a CUPTI that has not been called before, and the driver is mapped.
    let functions = unsafe { CuptiFunctions::new(library) }.map_err(SkipReason::Lacks)?;
    let version = functions
        .version()
        .map_err(|status| SkipReason::NotStarted(Version(0), "cuptiGetVersion", status))?;
    if version < Version::OLDEST {
        return Err(SkipReason::TooOld(version));
    }
    match driver.version() {
        Some(driver) if version.is_newer_than_driver(driver) => {
            Err(SkipReason::NewerThanDriver(version, driver))
        }
        _ => Ok((functions, version)),
    }
}

/// Whether the search must end, so that no other copy of CUPTI is tried. The search must end if CUPTI has started but
/// has refused our subscription. The search must also end if the program already uses this copy of CUPTI, because the
/// process must not use two copies.
fn ends_search(reason: &SkipReason, source: CandidateSource) -> bool {
    match reason {
        SkipReason::NotStarted(_, _, Status::NOT_INITIALIZED | Status::UNKNOWN) => false,
        SkipReason::NotStarted(..) => true,
        SkipReason::TooOld(_) => source == CandidateSource::Mapped,
        _ => false,
    }
}

/// Builds the error message, which states which files were searched in which folders and why none of them could be
/// used, and gives advice.
pub(super) fn failure_error(
    environment: &SearchEnvironment,
    search: &SearchResult,
    tried: &[(Candidate, SkipReason)],
    has_gpu_file: bool,
) -> Error {
    let mut started = tried.iter().filter_map(|(candidate, reason)| match reason {
        SkipReason::NotStarted(version, step, status) => Some((candidate, *version, *step, *status)),
        _ => None,
    });
    // If a refusal has ended the search, the message reports that refusal. If no refusal has ended the search, the
    // message reports the first refusal, which is that of the preferred candidate.
    let ended = tried.last().filter(|(candidate, reason)| ends_search(reason, candidate.source));
    let telling = if ended.is_some() { started.next_back() } else { started.next() };
    if let Some((candidate, version, step, status)) = telling {
        let what = format!("CUPTI {version} ({candidate}) refused {step}: {}", status_text(status));
        let next = advice(environment, status, has_gpu_file);
        return Error::new(ErrorKind::CuptiRefused, format!("{what}; {next}"));
    }
    if let Some(driver) = environment.driver.filter(|version| *version < 11_000) {
        let driver = cuda_release(driver);
        let text =
            format!("the NVIDIA driver is too old: it supports CUDA {driver}, gpuflame needs 11.8 or later");
        return Error::new(ErrorKind::CuptiRefused, text);
    }
    Error::new(ErrorKind::NoCupti, not_found_message(environment, search, tried))
}

/// Returns advice for the user in the case that CUPTI has refused to start.
fn advice(environment: &SearchEnvironment, status: Status, has_gpu_file: bool) -> String {
    match status {
        Status::MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED => match likely_subscriber(&environment.mapped) {
            Some(tool) => format!("probably {tool}: run without it, or without gpuflame"),
            None => {
                "run without the other profiler or debugger (nsys, ncu, cuda-gdb, torch.profiler)".to_owned()
            }
        },
        Status::INSUFFICIENT_PRIVILEGES | Status::VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES => {
            "run as root, or load the driver with NVreg_RestrictProfilingToAdminUsers=0".to_owned()
        }
        Status::NOT_COMPATIBLE => {
            "another tool in this process uses CUPTI in a way that excludes gpuflame: run without that tool"
                .to_owned()
        }
        Status::NOT_INITIALIZED | Status::UNKNOWN if !has_gpu_file => {
            "no GPU is visible on this machine or in this container (no /dev/nvidia0)".to_owned()
        }
        Status::NOT_INITIALIZED | Status::UNKNOWN => {
            let driver = environment
                .driver
                .map_or("unknown".to_owned(), |version| format!("CUDA {}", cuda_release(version)));
            format!(
                "check that a GPU is visible to this process (CUDA_VISIBLE_DEVICES) and that the driver \
                 ({driver}) supports it"
            )
        }
        _ => "GPU work cannot be recorded on this system".to_owned(),
    }
}

/// Describes a refusal by CUPTI for users who know nothing about profilers.
fn status_text(status: Status) -> String {
    match status {
        Status::MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED => {
            format!("another tool in this process has already subscribed ({})", status.0)
        }
        _ => status.to_string(),
    }
}

/// Guesses which tool has subscribed to CUPTI, based on the files that the process has mapped.
fn likely_subscriber(mapped: &[PathBuf]) -> Option<&'static str> {
    const TOOLS: [(&str, &str); 8] = [
        ("libToolsInjection", "Nsight Systems (nsys)"),
        ("libcuda-injection", "Nsight Compute (ncu)"),
        ("libsanitizer-", "Compute Sanitizer"),
        ("libcudadebugger", "cuda-gdb"),
        ("libscorep", "Score-P"),
        ("libTAU", "TAU"),
        ("libhpcrun", "HPCToolkit"),
        ("libtorch_cpu", "torch.profiler"),
    ];
    let maps = |part: &str| mapped.iter().any(|file| file.to_string_lossy().contains(part));
    TOOLS.iter().find(|(part, _)| maps(part)).map(|(_, tool)| *tool)
}

fn not_found_message(
    environment: &SearchEnvironment,
    search: &SearchResult,
    tried: &[(Candidate, SkipReason)],
) -> String {
    let majors = environment.majors();
    let names: Vec<_> = majors.iter().map(|major| major.file()).collect();
    // Bare names that the dynamic linker did not find are omitted, because usually the linker finds none of them.
    let reasons: Vec<_> = tried
        .iter()
        .filter(|(candidate, reason)| {
            candidate.source != CandidateSource::ByName
                || !matches!(reason, SkipReason::NotLoaded(_) | SkipReason::TriedBefore)
        })
        .map(|(candidate, reason)| format!("{candidate}: {reason}"))
        .collect();
    let next = match majors.first() {
        Some(major) => {
            format!("pip install {}, or set GPUFLAME_CUPTI=/path/{}", major.package(), major.file())
        }
        None => "set GPUFLAME_CUPTI=/path/libcupti.so".to_owned(),
    };
    let what = match environment.setting {
        Some(_) => "the CUPTI that GPUFLAME_CUPTI names cannot be used".to_owned(),
        None if reasons.is_empty() => format!(
            "no CUPTI found: looked for {} by name and in {}",
            names.join(", "),
            list_folders(&search.folders)
        ),
        None => "no usable CUPTI found".to_owned(),
    };
    [vec![what], reasons, vec![next]].concat().join("; ")
}

/// Lists only the first few folders, because all folders would fill a screen.
fn list_folders(folders: &[PathBuf]) -> String {
    const MAX_LISTED: usize = 4;
    let shown: Vec<_> = folders.iter().take(MAX_LISTED).map(|folder| folder.display().to_string()).collect();
    match folders.len().checked_sub(MAX_LISTED + 1) {
        Some(more) => format!("{} and {} more folders", shown.join(", "), more + 1),
        None => shown.join(", "),
    }
}

/// Formats a CUDA version in the driver's encoding (12040) as text (12.4).
fn cuda_release(version: u32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotLoaded(reason) => f.write_str(reason),
            Self::Lacks(symbol) => write!(f, "it has no {symbol}"),
            Self::TriedBefore => f.write_str("it was tried before, under another name"),
            Self::TooOld(version) => write!(f, "it is {version}, gpuflame needs 11.8 or later"),
            Self::NewerThanDriver(version, driver) => {
                write!(f, "it is for CUDA {version}, the driver supports {}", cuda_release(*driver))
            }
            Self::NotStarted(_, step, status) => write!(f, "{step}: {}", status_text(*status)),
        }
    }
}

#[cfg(test)]
#[path = "load_test.rs"]
mod tests;
