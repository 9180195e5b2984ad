//! `gpuflame devices`: lists the GPUs, the driver and the CUPTI libraries of this machine. A separate process loads the
//! driver and the libraries.

use std::ffi::OsStr;
use std::io::Write;

use clap::Args;
use serde_json::{Value, json};

use super::console::{Console, Outcome};
use super::probe_process::{self, describe_source};
use super::table_output::{Cell, ReportFlags, Table};
use gpuflame_config::settings;
use gpuflame_cupti::{self as cupti, Device, FoundCupti};
use gpuflame_model::error::{Error, ErrorKind, Result};

/// File that contains the version of the driver's kernel module.
const KERNEL_MODULE: &str = "/proc/driver/nvidia/version";

/// List the GPUs, the driver and the CUPTI libraries of this machine.
///
/// Creates no CUDA context, so no GPU memory is used. `used` marks the CUPTI library that a new process records with. A
/// process that has already loaded another CUPTI library uses that library instead. The exit code is 1 if there is no
/// GPU.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  gpuflame devices --format json\n  CUDA_VISIBLE_DEVICES=1 gpuflame devices"
)]
pub(super) struct Devices {
    /// Run as the separate process that loads the driver.
    #[arg(long, hide = true)]
    probe: bool,
    #[command(flatten)]
    pub(super) report: ReportFlags,
}

impl Devices {
    pub(super) fn run(&self, console: Console) -> Result<Outcome> {
        if self.probe {
            self.report.output.write(console, print_answer)?;
            return Ok(Outcome::Clean);
        }
        let answer = probe_process::ask(&[OsStr::new("devices"), OsStr::new("--probe")]);
        let answer = answer.map_err(|why| Error::new(ErrorKind::Io, why))?;
        let gpus = gpu_table(&answer["gpus"]);
        if gpus.rows().is_empty() {
            console.remark(missing_gpus(&answer));
        }
        let outcome = if gpus.rows().is_empty() { Outcome::Findings } else { Outcome::Clean };
        let tables = [gpus, driver_table(&answer["driver"]), cupti_table(&answer["cupti"])];
        self.report.write(console, &[], &tables)?;
        Ok(outcome)
    }
}

/// Lists the devices and writes them to `out` as JSON. This function runs in the separate process that loads the
/// driver.
fn print_answer(out: &mut (dyn Write + Send)) -> Result<()> {
    let found = cupti::list_devices(settings::from_environment().0.cupti);
    let kernel = std::fs::read_to_string(KERNEL_MODULE).ok();
    let driver = json!({
        "file": found.driver_file,
        "cuda": found.cuda.map(|version| format!("{}.{}", version / 1000, version % 1000 / 10)),
        "kernel_module": kernel.as_deref().and_then(kernel_module_version),
    });
    let answer = json!({
        "gpus": found.devices.as_deref().unwrap_or_default().iter().map(gpu_to_json).collect::<Vec<_>>(),
        "status": found.devices.err(),
        "driver": driver,
        "cupti": cupti_to_json(&found.cupti),
    });
    Ok(writeln!(out, "{answer}")?)
}

/// Returns the version in the text of [`KERNEL_MODULE`]: the first word that consists of digits and dots.
fn kernel_module_version(text: &str) -> Option<&str> {
    let is_version =
        |word: &&str| word.contains('.') && word.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    text.split_whitespace().find(is_version)
}

fn gpu_to_json(gpu: &Device) -> Value {
    json!({
        "name": gpu.name,
        "memory": gpu.memory_bytes,
        "capability": gpu.compute_capability.map(|(major, minor)| format!("{major}.{minor}")),
        "multiprocessors": gpu.multiprocessors,
        "pci": gpu.pci,
        "uuid": gpu.uuid.map(format_uuid),
    })
}

/// Formats a UUID as in `nvidia-smi -L` and in CUDA_VISIBLE_DEVICES.
fn format_uuid(bytes: [u8; 16]) -> String {
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!(
        "GPU-{}-{}-{}-{}-{}",
        &digits[..8],
        &digits[8..12],
        &digits[12..16],
        &digits[16..20],
        &digits[20..]
    )
}

/// Returns the CUPTI libraries as JSON, each with its state. A newly started program uses the first CUPTI library in
/// this list that is usable.
fn cupti_to_json(all: &[FoundCupti]) -> Vec<Value> {
    let is_usable = |found: &FoundCupti| found.version.is_some() && found.refusal.is_none();
    let used = all.iter().position(is_usable);
    let rows = all.iter().enumerate().map(|(at, found)| {
        let state = match (is_usable(found), &found.refusal) {
            (true, _) if Some(at) == used => "used",
            (true, _) => "usable",
            (false, Some(_)) => "unusable",
            (false, None) => "not loaded",
        };
        let why = found.refusal.as_deref().unwrap_or(describe_source(found.source));
        json!({
            "state": state,
            "version": found.version.map(|version| version.to_string()),
            "file": found.file.to_string_lossy(),
            "why": why,
        })
    });
    rows.collect()
}

/// Returns the message that explains why no GPU was found.
fn missing_gpus(answer: &Value) -> String {
    let why = match answer["status"].as_u64() {
        _ if answer["driver"]["file"].is_null() => "libcuda.so.1 cannot be loaded".to_owned(),
        Some(status) => format!("cuInit or a later call of the driver returned {status}"),
        None => "the driver finds none".to_owned(),
    };
    format!("no GPU: {why}; `gpuflame doctor` prints what to do")
}

fn gpu_table(gpus: &Value) -> Table {
    let columns = &["gpu", "memory_bytes", "capability", "multiprocessors", "pci", "uuid", "name"];
    let mut table = Table::new("found_gpus", columns);
    for (ordinal, gpu) in (0..).zip(gpus.as_array().into_iter().flatten()) {
        table.add_row([
            Cell::Id(ordinal),
            gpu["memory"].as_u64().map_or(Cell::Nothing, Cell::Bytes),
            text(&gpu["capability"]),
            gpu["multiprocessors"].as_u64().map_or(Cell::Nothing, Cell::Count),
            text(&gpu["pci"]),
            text(&gpu["uuid"]),
            text(&gpu["name"]),
        ]);
    }
    table
}

fn driver_table(driver: &Value) -> Table {
    let mut table = Table::new("driver", &["cuda", "kernel_module", "file"]);
    if !driver["file"].is_null() {
        table.add_row(["cuda", "kernel_module", "file"].map(|key| text(&driver[key])));
    }
    table
}

fn cupti_table(all: &Value) -> Table {
    let mut table = Table::new("cupti", &["state", "version", "file", "why"]);
    for found in all.as_array().into_iter().flatten() {
        table.add_row(["state", "version", "file", "why"].map(|key| text(&found[key])));
    }
    table
}

fn text(value: &Value) -> Cell {
    value.as_str().map_or(Cell::Nothing, Cell::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_module_of_both_kinds_of_driver_has_a_version() {
        for (text, version) in [
            (
                "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n\
                 GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)",
                Some("550.54.15"),
            ),
            (
                "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build",
                Some("570.124.06"),
            ),
            ("NVRM version: unknown", None),
        ] {
            assert_eq!(kernel_module_version(text), version, "{text}");
        }
    }

    #[test]
    fn a_uuid_has_the_groups_of_nvidia_smi() {
        let bytes = [0x1a, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 0xf0];
        assert_eq!(format_uuid(bytes), "GPU-1a020304-0506-0708-090a-0b0c0d0e0ff0");
    }

    #[test]
    fn the_first_library_without_an_obstacle_is_the_used_one() {
        let found = |refusal: Option<&str>, version| FoundCupti {
            file: "libcupti.so.13".into(),
            source: cupti::find::CandidateSource::Toolkit,
            version,
            refusal: refusal.map(str::to_owned),
        };
        let version = Some(cupti::version::Version(130_100));
        let all = [
            found(Some("it is newer"), version),
            found(None, version),
            found(None, version),
            found(None, None),
        ];
        let states: Vec<_> =
            cupti_to_json(&all).iter().map(|row| row["state"].as_str().unwrap().to_owned()).collect();
        assert_eq!(states, ["unusable", "used", "usable", "not loaded"]);
    }
}
