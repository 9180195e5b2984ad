//! Runs this program as a separate process that loads the driver and CUPTI, because loading these libraries could crash
//! or hang. The separate process answers with a JSON value on stdout.

use std::ffi::OsStr;
use std::io::Read as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use gpuflame_cupti::find::CandidateSource;

/// Maximum time to wait for the process's answer. A driver that no other process uses takes seconds to start.
const PROBE_TIMEOUT: Duration = Duration::from_secs(60);
const EXIT_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Runs this program as a new process with the command-line words `words`, and waits for the process's answer.
///
/// # Errors
/// Returns a description of how the process ended, if it ended without an answer.
pub(super) fn ask(words: &[&OsStr]) -> Result<Value, String> {
    let myself = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(myself);
    command.args(words);
    // If the driver injected a library, that library would own CUPTI before the probe could use CUPTI.
    command.env_remove("CUDA_INJECTION64_PATH").env_remove("LD_PRELOAD");
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| error.to_string())?;
    let mut answer = String::new();
    let deadline = Instant::now() + PROBE_TIMEOUT;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < deadline => std::thread::sleep(EXIT_POLL_INTERVAL),
            Ok(None) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!(
                    "the process that probes the driver did not answer within {} s",
                    PROBE_TIMEOUT.as_secs()
                ));
            }
            Err(error) => return Err(error.to_string()),
        }
    };
    // The whole answer fits into the pipe's buffer, so the answer can be read after the process has ended.
    if let Some(mut pipe) = child.stdout.take() {
        let _ = pipe.read_to_string(&mut answer);
    }
    serde_json::from_str(&answer)
        .map_err(|_| format!("the process that probes the driver ended with {status}, without an answer"))
}

/// Returns the reason why a CUPTI library was tried. The reason is the place where the library was found.
pub(super) fn describe_source(source: CandidateSource) -> &'static str {
    match source {
        CandidateSource::Setting => "named by GPUFLAME_CUPTI",
        CandidateSource::Mapped => "already loaded in the process",
        CandidateSource::NextToRuntime => "found next to libcudart",
        CandidateSource::SitePackages => "found in a package of the running Python",
        CandidateSource::ByName => "found by name by the dynamic linker",
        CandidateSource::Toolkit => "found in the CUDA toolkit",
        CandidateSource::System => "found among the system's libraries",
    }
}
