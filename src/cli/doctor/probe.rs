//! The part of `doctor` that may crash or hang. It runs in a separate process, whose answer is a JSON object.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use gpuflame_config::settings;
use gpuflame_cupti::find::CandidateSource;
use gpuflame_cupti::{self as cupti, ProbeRefusal, ProbeReport};
use gpuflame_model::error::Result;
use gpuflame_os::library;

/// Maximum time to wait for the answer. A driver that no other process uses takes seconds to start.
const PROBE_TIMEOUT: Duration = Duration::from_secs(60);
const EXIT_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Findings of the separate process.
#[derive(Debug)]
pub(super) struct ProbeAnswer {
    pub(super) has_driver: bool,
    pub(super) driver: Option<u64>,
    pub(super) gpus: std::result::Result<Vec<String>, u64>,
    pub(super) cupti: Option<CuptiAnswer>,
    /// Kind and message of CUPTI's refusal; `None` if CUPTI did not refuse.
    pub(super) refused: Option<(String, String)>,
    pub(super) notes: Vec<String>,
    /// Version of `libgpuflame.so`, or the reason why it cannot be loaded.
    pub(super) library: Option<std::result::Result<String, String>>,
}

#[derive(Debug)]
pub(super) struct CuptiAnswer {
    pub(super) file: String,
    pub(super) why: String,
    pub(super) version: String,
    pub(super) hazards: Vec<String>,
}

/// Starts the separate process and waits for its answer.
///
/// # Errors
/// A description of how the separate process ended, if it did not answer.
pub(super) fn run_probe(library: Option<&Path>) -> std::result::Result<ProbeAnswer, String> {
    let myself = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(myself);
    command.args(["doctor", "--probe"]);
    if let Some(library) = library {
        command.arg("--library").arg(library);
    }
    // If the driver injected a library, that library would own CUPTI before the probe could use it.
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
    // The whole answer fits into the pipe's buffer, so it can be read after the process has ended.
    if let Some(mut pipe) = child.stdout.take() {
        let _ = pipe.read_to_string(&mut answer);
    }
    match serde_json::from_str::<Value>(&answer) {
        Ok(answer) => Ok(ProbeAnswer::from_json(&answer)),
        Err(_) => Err(format!("the process that probes the driver ended with {status}, without an answer")),
    }
}

/// Runs in the separate process: does the checks, and writes the findings to `out`.
pub(super) fn print_answer(path: Option<&Path>, out: &mut dyn Write) -> Result<()> {
    let version = path.map(library::library_version);
    let mut answer = match cupti::probe(settings::from_environment().0.cupti) {
        Ok(probe) => probe_to_json(&probe),
        Err(_) => json!({ "has_driver": false }),
    };
    answer["library"] = match version {
        Some(Ok(version)) => json!({ "version": version }),
        Some(Err(why)) => json!({ "why": why }),
        None => Value::Null,
    };
    Ok(writeln!(out, "{answer}")?)
}

fn probe_to_json(probe: &ProbeReport) -> Value {
    let cupti = probe.cupti.as_ref().map(|cupti| {
        json!({
            "file": cupti.file.to_string_lossy(),
            "why": describe_source(cupti.source),
            "version": cupti.version.to_string(),
            "hazards": cupti.version.known_bugs().collect::<Vec<_>>(),
        })
    });
    let refused = probe.refused.as_ref().map(|(kind, error)| {
        let kind = match kind {
            ProbeRefusal::OtherTool => "other_tool",
            ProbeRefusal::Permission => "permission",
            ProbeRefusal::Other => "other",
        };
        json!([kind, error.to_string()])
    });
    json!({
        "has_driver": true,
        "driver": probe.driver,
        "gpus": probe.gpus.as_ref().ok(),
        "gpus_status": probe.gpus.as_ref().err(),
        "cupti": cupti,
        "refused": refused,
        "notes": probe.notes,
    })
}

/// Returns the reason why the CUPTI library was chosen, from the source where it was found.
fn describe_source(source: CandidateSource) -> &'static str {
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

impl ProbeAnswer {
    fn from_json(answer: &Value) -> Self {
        let texts = |value: &Value| -> Vec<String> {
            value
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|text| Some(text.as_str()?.to_owned()))
                .collect()
        };
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (cupti, library) = (&answer["cupti"], &answer["library"]);
        Self {
            has_driver: answer["has_driver"].as_bool() == Some(true),
            driver: answer["driver"].as_u64(),
            gpus: match answer["gpus_status"].as_u64() {
                Some(status) => Err(status),
                None => Ok(texts(&answer["gpus"])),
            },
            cupti: cupti.is_object().then(|| CuptiAnswer {
                file: text(&cupti["file"]),
                why: text(&cupti["why"]),
                version: text(&cupti["version"]),
                hazards: texts(&cupti["hazards"]),
            }),
            refused: answer["refused"].is_array().then(|| {
                let refused = texts(&answer["refused"]);
                (refused.first().cloned().unwrap_or_default(), refused.get(1).cloned().unwrap_or_default())
            }),
            notes: texts(&answer["notes"]),
            library: library.is_object().then(|| match library["version"].as_str() {
                Some(version) => Ok(version.to_owned()),
                None => Err(text(&library["why"])),
            }),
        }
    }
}
