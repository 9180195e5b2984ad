//! Runs the checks of `gpuflame doctor` that may crash or hang. The checks run in a separate process, which prints a
//! JSON object.

use std::ffi::OsStr;
use std::io::Write;
use std::path::Path;

use serde_json::{Value, json};

use super::super::probe_process::{self, describe_source};
use gpuflame_config::settings;
use gpuflame_cupti::{self as cupti, ProbeRefusal, ProbeReport};
use gpuflame_model::error::Result;
use gpuflame_os::library;

/// Findings of the separate process.
#[derive(Debug)]
pub(super) struct ProbeAnswer {
    pub(super) has_driver: bool,
    pub(super) driver: Option<u64>,
    pub(super) gpus: std::result::Result<Vec<String>, u64>,
    pub(super) cupti: Option<CuptiAnswer>,
    /// Kind and message of the error with which CUPTI refused to record; `None` if CUPTI did not refuse.
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
/// Returns a description of how the separate process ended, if it ended without an answer.
pub(super) fn run_probe(library: Option<&Path>) -> std::result::Result<ProbeAnswer, String> {
    let mut words = vec![OsStr::new("doctor"), OsStr::new("--probe")];
    words.extend(library.into_iter().flat_map(|library| [OsStr::new("--library"), library.as_os_str()]));
    Ok(ProbeAnswer::from_json(&probe_process::ask(&words)?))
}

/// Runs the checks and writes the findings to `out` as JSON. This function runs in the separate process.
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
