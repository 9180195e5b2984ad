//! `gpuflame doctor`: checks whether programs can be recorded on this machine, and lists what prevents it.
//!
//! Checks that could crash or hang run in a separate process (`probe`), which loads the driver, CUPTI and
//! `libgpuflame.so`, and initialises CUDA. No check changes the machine or its settings.

mod machine;
mod probe;

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;

use super::console::{Console, Outcome};
use super::page::{Page, Style};
use super::run::library;
use super::shorten::wrap;
use super::table_output::{self, Cell, ReportFlags, ReportFormat, Table};
use gpuflame_config::settings;
use gpuflame_config::{Outputs, PrefixMacros};
use gpuflame_export::clean_line;
use gpuflame_model::error::Result;
use gpuflame_model::record;
use gpuflame_os::file::Draft;
use gpuflame_os::library::c_library;
use machine::{check_disk, check_python, check_samples};
use probe::ProbeAnswer;

/// Check whether programs can be recorded here, and what to fix.
///
/// Prints one line per requirement of recording: ok, warn or fail, and what to do. The last line states whether
/// programs can be recorded. The exit code is 1 if a line says fail. Recordings and traces can be read even if no
/// requirement is met.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  gpuflame doctor --format json\n  gpuflame doctor --library build/libgpuflame.so"
)]
pub(super) struct Doctor {
    /// Path of the libgpuflame.so to check [default: next to this command, or in ../lib].
    #[arg(long, value_name = "FILE")]
    library: Option<PathBuf>,
    /// Run as the separate process that probes the driver.
    #[arg(long, hide = true)]
    probe: bool,
    #[command(flatten)]
    pub(super) report: ReportFlags,
}

/// State of a requirement after its check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CheckState {
    Ok,
    Warn,
    Fail,
}

impl CheckState {
    fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

/// Result of a check, as one line of the report.
#[derive(Debug)]
struct CheckResult {
    state: CheckState,
    what: &'static str,
    found: String,
    /// Action that the user should take; empty if no action is needed.
    remedy: String,
}

impl CheckResult {
    fn ok(what: &'static str, found: impl Into<String>) -> Self {
        Self { state: CheckState::Ok, what, found: found.into(), remedy: String::new() }
    }

    fn warn(what: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { state: CheckState::Warn, what, found: found.into(), remedy: remedy.into() }
    }

    fn print_error(what: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { state: CheckState::Fail, what, found: found.into(), remedy: remedy.into() }
    }
}

impl Doctor {
    pub(super) fn run(&self, console: Console) -> Result<Outcome> {
        if self.probe {
            self.report.output.write(console, |out| probe::print_answer(self.library.as_deref(), out))?;
            return Ok(Outcome::Clean);
        }
        let lines = self.run_checks();
        let page = Page::of(&self.report.output, console);
        self.report.output.write(console, |out| match self.report.format {
            ReportFormat::Text => write_text(&lines, page, out),
            format => table_output::write_tables(&[], &[result_table(&lines)], format, Page::UNBOUNDED, out),
        })?;
        let fails = lines.iter().any(|line| line.state == CheckState::Fail);
        Ok(if fails { Outcome::Findings } else { Outcome::Clean })
    }

    fn run_checks(&self) -> Vec<CheckResult> {
        let library = library::find(self.library.as_deref());
        let (settings, warnings) = settings::from_environment();
        let mut lines = match probe::run_probe(library.as_deref().ok()) {
            Ok(found) => {
                let mut lines = check_cuda(&found);
                lines.push(check_library(library, &found));
                lines
            }
            Err(why) => vec![CheckResult::print_error(
                "driver",
                why,
                "loading the driver, CUPTI or the library crashes or hangs: try another CUPTI \
                 (GPUFLAME_CUPTI=FILE), or rebuild the library",
            )],
        };
        lines.push(CheckResult::ok("glibc", c_library()));
        lines.push(check_samples());
        lines.extend(check_python());
        lines.push(check_injection());
        lines.extend(check_settings(&settings, warnings));
        let outputs = Outputs::new(&settings.output, &PrefixMacros::from_process());
        lines.extend(check_outputs(&outputs, &settings));
        lines.push(CheckResult::ok(
            "offline",
            "recordings and traces can be read here: info, top, flamegraph, diff, convert, merge-ranks need no GPU",
        ));
        lines
    }
}

/// Checks the driver, the GPUs, CUPTI, and the permission to use CUPTI.
fn check_cuda(found: &ProbeAnswer) -> Vec<CheckResult> {
    if !found.has_driver {
        return vec![CheckResult::print_error(
            "driver",
            "libcuda.so.1 cannot be loaded: there is no NVIDIA driver here",
            "to record, install the driver, or start the container with --gpus all; reading recordings needs \
             no driver",
        )];
    }
    let version = found.driver.map_or("libcuda.so.1, unknown version".to_owned(), |version| {
        format!("libcuda.so.1, for CUDA {}.{}", version / 1000, version % 1000 / 10)
    });
    let mut lines = vec![CheckResult::ok("driver", version)];
    lines.push(match &found.gpus {
        Ok(gpus) if !gpus.is_empty() => {
            CheckResult::ok("GPU", format!("{}: {}", gpus.len(), gpus.join(", ")))
        }
        Ok(_) => no_gpu_result("the driver finds no GPU".to_owned()),
        Err(status) => {
            no_gpu_result(format!("the driver finds no GPU (cuInit or a later call returned {status})"))
        }
    });
    match &found.cupti {
        Some(cupti) => {
            lines.push(CheckResult::ok(
                "CUPTI",
                format!("{} at {}, {}", cupti.version, cupti.file, cupti.why),
            ));
            for hazard in &cupti.hazards {
                lines.push(CheckResult::warn(
                    "CUPTI",
                    hazard.clone(),
                    "use another release of CUPTI (GPUFLAME_CUPTI=FILE)",
                ));
            }
        }
        None => {
            let why = found.refused.as_ref().map_or("none was found", |(_, why)| why.as_str());
            lines.push(CheckResult::print_error(
                "CUPTI",
                why,
                "CUPTI comes with the CUDA toolkit and with PyTorch; set GPUFLAME_CUPTI=FILE if it is \
                 elsewhere",
            ));
        }
    }
    lines.extend(check_permission(found));
    lines
}

fn no_gpu_result(found: String) -> CheckResult {
    let remedy = "is CUDA_VISIBLE_DEVICES empty, or is this a container without --gpus all?";
    CheckResult::print_error("GPU", found, remedy)
}

/// Checks whether CUPTI permits this user to record, and whether another client owns CUPTI.
fn check_permission(found: &ProbeAnswer) -> Vec<CheckResult> {
    if found.cupti.is_none() {
        return Vec::new();
    }
    let (why, other, permission) = match &found.refused {
        None => {
            let mut lines = vec![CheckResult::ok("other tools", "no other tool uses CUPTI in a new process")];
            lines.push(match found.notes.is_empty() {
                true => CheckResult::ok("permission", "kernels, copies and fills may be recorded"),
                false => {
                    CheckResult::warn("permission", found.notes.join("; "), "the outputs will lack this data")
                }
            });
            return lines;
        }
        Some((kind, why)) => (why, kind == "other_tool", kind == "permission"),
    };
    let remedy = match (other, permission) {
        (true, _) => {
            "run without the other profiler or debugger; look for one in LD_PRELOAD and CUDA_INJECTION64_PATH"
        }
        (_, true) => {
            "run as root, or load the driver with NVreg_RestrictProfilingToAdminUsers=0 (ERR_NVGPUCTRPERM)"
        }
        _ => "this is CUPTI's answer",
    };
    let what = match (other, permission) {
        (true, _) => "other tools",
        (_, true) => "permission",
        _ => "recording",
    };
    vec![CheckResult::print_error(what, why, remedy)]
}

/// Checks whether `libgpuflame.so` can be loaded and has the same version as this command.
fn check_library(library: Result<PathBuf>, found: &ProbeAnswer) -> CheckResult {
    let own = env!("CARGO_PKG_VERSION");
    match (library, &found.library) {
        (Err(error), _) => {
            CheckResult::print_error("library", error.to_string(), "recording needs this library")
        }
        (Ok(path), Some(Ok(version))) if version == own => CheckResult::ok(
            "library",
            format!("{}, version {version} (same as this command)", path.display()),
        ),
        (Ok(path), Some(Ok(version))) => CheckResult::warn(
            "library",
            format!("{} has version {version}, this command has {own}", path.display()),
            "build or install both: cargo build --release",
        ),
        (Ok(path), Some(Err(why))) => CheckResult::print_error(
            "library",
            format!("{} cannot be loaded: {why}", path.display()),
            "build it on this machine, or on one with an older glibc",
        ),
        (Ok(path), None) => {
            CheckResult::warn("library", format!("{} was not checked", path.display()), "run doctor again")
        }
    }
}

/// Checks whether the environment makes the driver inject another library into CUDA programs.
fn check_injection() -> CheckResult {
    let Some(path) = std::env::var_os("CUDA_INJECTION64_PATH").map(PathBuf::from) else {
        return CheckResult::ok(
            "injection",
            "CUDA_INJECTION64_PATH is not set; `gpuflame run` sets it for its command",
        );
    };
    let shown = format!("CUDA_INJECTION64_PATH={}", path.display());
    match (path.is_file(), library::is_ours(path.as_os_str())) {
        (true, true) => CheckResult::ok("injection", shown),
        (true, false) => CheckResult::warn(
            "injection",
            format!("{shown} is another tool"),
            "only one can be injected: unset it, or record with `gpuflame run`, which replaces it",
        ),
        (false, _) => CheckResult::print_error(
            "injection",
            format!("{shown}: no such file, and the driver does not report that"),
            "set it to the absolute path of libgpuflame.so, or unset it",
        ),
    }
}

/// Lists the settings in the environment, including invalid settings.
fn check_settings(settings: &settings::Settings, warnings: Vec<String>) -> Vec<CheckResult> {
    let mut lines: Vec<_> = warnings
        .into_iter()
        .map(|warning| CheckResult::warn("settings", warning, "`gpuflame settings` lists all settings"))
        .collect();
    let mut formats: Vec<_> = settings.formats.iter().map(|output| output.word()).collect();
    formats.dedup();
    let when = match settings.enabled {
        true if settings.has_window_limits() => "in windows, as set in the environment",
        true => "from the start",
        false => "from the first gpuflame_start() on",
    };
    if let Some(flag) = settings.flag.as_ref().filter(|flag| flag.is_dir()) {
        lines.push(CheckResult::warn(
            "settings",
            format!("GPUFLAME_FLAG={} is a folder: no window would open", flag.display()),
            "name a file, which need not exist yet",
        ));
    }
    if settings.disable {
        lines.push(CheckResult::print_error(
            "settings",
            "GPUFLAME_DISABLE=1 switches gpuflame off: nothing would be recorded",
            "unset GPUFLAME_DISABLE",
        ));
        return lines;
    }
    lines.push(CheckResult::ok("settings", format!("would record {when}, and write {}", formats.join(", "))));
    lines
}

/// Checks the folder to which files are written, and searches this folder for recordings of killed processes.
fn check_outputs(outputs: &Outputs, settings: &settings::Settings) -> Vec<CheckResult> {
    let suffixes: Vec<_> = settings.formats.iter().map(|output| output.suffix()).collect();
    let suffixes: Vec<_> = suffixes.iter().map(String::as_str).collect();
    let (paths, _) = outputs.choose_names(&suffixes, |_| false, |_| true);
    let Some(first) = paths.first() else { return Vec::new() };
    let folder = first.parent().unwrap_or(Path::new("/"));
    // Missing folders are created when files are written. Missing folders cannot be created if one of the existing
    // ancestors is not a folder.
    let there = folder.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("/"));
    let mut lines = vec![match Draft::create(&there.join("gpuflame-doctor")) {
        Ok(_) => CheckResult::ok("outputs", format!("files would be written to {}/", folder.display())),
        Err(error) => CheckResult::print_error(
            "outputs",
            format!("files cannot be written to {}/: {error}", folder.display()),
            "set GPUFLAME_OUTPUT to a prefix in a writable folder",
        ),
    }];
    lines.extend(check_disk(there));
    let left = find_unfinished_recordings(folder);
    if let Some(first) = left.first() {
        lines.push(CheckResult::warn(
            "checkpoints",
            format!("{} from processes that were killed or still run: {} ...", left.len(), first.display()),
            format!("`gpuflame recover {}` writes the usual files from it", first.display()),
        ));
    } else {
        lines.push(CheckResult::ok("checkpoints", "no process has left one in that folder"));
    }
    lines
}

/// Returns the recordings in `folder` that have no end row. A recording without an end row was not finished by its
/// process.
fn find_unfinished_recordings(folder: &Path) -> Vec<PathBuf> {
    let files = folder.read_dir().into_iter().flatten().flatten().map(|entry| entry.path());
    let recordings = files.filter(|path| path.extension().is_some_and(|ending| ending == "gfr"));
    let mut left: Vec<_> = recordings.filter(|path| matches!(record::has_end_row(path), Ok(false))).collect();
    left.sort();
    left
}

fn result_table(lines: &[CheckResult]) -> Table {
    let mut table = Table::new("doctor", &["result", "what", "found", "remedy"]);
    for line in lines {
        let remedy = if line.remedy.is_empty() { Cell::Nothing } else { line.remedy.as_str().into() };
        table.add_row([line.state.word().into(), line.what.into(), line.found.as_str().into(), remedy]);
    }
    table
}

/// Returns the last line of the report, which states whether programs can be recorded here.
fn verdict(lines: &[CheckResult]) -> String {
    let count = |state| lines.iter().filter(|line| line.state == state).count();
    match (count(CheckState::Fail), count(CheckState::Warn)) {
        (0, 0) => "You can record here: gpuflame run COMMAND".to_owned(),
        (0, 1) => "You can record here: gpuflame run COMMAND (one warning above)".to_owned(),
        (0, warnings) => format!("You can record here: gpuflame run COMMAND ({warnings} warnings above)"),
        (1, _) => "You cannot record here until the line that says fail is fixed.".to_owned(),
        (fails, _) => format!("You cannot record here until the {fails} lines that say fail are fixed."),
    }
}

/// Width in characters of the columns before the text of a line.
const LABELS_WIDTH: usize = 19;
/// Minimum width in characters of a line's text, even on a narrow terminal.
const MIN_TEXT_WIDTH: usize = 16;

fn write_text(lines: &[CheckResult], page: Page, out: &mut dyn Write) -> Result<()> {
    let width = |indent| {
        page.columns.map_or(usize::MAX, |columns| columns.saturating_sub(indent).max(MIN_TEXT_WIDTH))
    };
    for line in lines {
        let style = match line.state {
            CheckState::Ok => Style::Good,
            CheckState::Warn => Style::Warning,
            CheckState::Fail => Style::Bad,
        };
        let state = page.paint(style, &format!("{:<5}", line.state.word()));
        let mut labels = format!("{state} {:<12} ", line.what);
        for text in wrap(&clean_line(&line.found), width(LABELS_WIDTH)) {
            writeln!(out, "{labels}{text}")?;
            labels = " ".repeat(LABELS_WIDTH);
        }
        let mut mark = "->";
        for text in
            wrap(&clean_line(&line.remedy), width(LABELS_WIDTH + 3)).iter().filter(|it| !it.is_empty())
        {
            writeln!(out, "{:LABELS_WIDTH$}{mark} {text}", "")?;
            mark = "  ";
        }
    }
    for text in wrap(&verdict(lines), width(0)) {
        writeln!(out, "{}", page.paint(Style::Strong, &text))?;
    }
    Ok(())
}
