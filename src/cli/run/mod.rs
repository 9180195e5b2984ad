//! `gpuflame run`: runs a command with gpuflame, on the same terminal, and exits with the command's status.
//!
//! This verb only sets environment variables, waits, and reads the reports of the command's processes
//! (`GPUFLAME_REPORT`). The injected library does the recording.

mod advice;
pub(super) mod library;
mod pages;
mod process_reports;
mod setting_flags;
mod settings_file;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use clap::Args;

use super::console::{Console, Outcome, usage_error};
use super::merge_ranks::describe_straggler;
use super::open_file::open_in_browser;
use super::recover::recover;
use super::summary::describe_lost_time;
use gpuflame_config::settings;
use gpuflame_model::error::{Error, ErrorKind, Result};
use gpuflame_os::{child, file, stderr};
use process_reports::ProcessReport;
use setting_flags::SettingPair;

const OUTPUT_VARIABLE: &str = "GPUFLAME_OUTPUT";
const FORMATS_VARIABLE: &str = "GPUFLAME_FORMATS";
/// Environment variables that name a library to load. The CUDA driver reads the first variable, and NVTX reads the
/// second variable.
const INJECTION_VARIABLES: [&str; 2] = ["CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH"];

/// Maximum time to wait until stderr accepts a line.
const STDERR_TIMEOUT: Duration = Duration::from_secs(5);

/// Exit code that a shell returns for a command that does not exist. `CANNOT_RUN` is the exit code for a command that
/// exists but cannot be run.
const NOT_FOUND: u8 = 127;
const CANNOT_RUN: u8 = 126;

/// Record a command: each of its processes that calls CUDA writes a flame graph.
///
/// The command runs on the same terminal. `run` passes signals on to the command, and returns its exit status. For
/// processes that were killed or crashed, the files are written from their last checkpoint, which is about a second old
/// (`gpuflame recover`). GPUFLAME_* variables (`gpuflame settings`) determine everything that no option sets.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  gpuflame run ./app --steps 100\n  \
    gpuflame run -o out/%e.%r --formats svg,gfr -- torchrun --nproc-per-node 8 train.py\n  \
    gpuflame run --window delay=60,duration=5 -- python serve.py\n\n\
    Exit codes: the command's; 126 or 127 if it cannot be started; 1 or 2 if gpuflame fails before that (no library, an \
    invalid option).")]
pub(super) struct Run {
    /// Path prefix of the output files, with the macros of GPUFLAME_OUTPUT (%p process, %e program, %r rank
    /// ...). A prefix that ends in / is a folder, in which the files have their default names.
    #[arg(short, long, value_name = "PREFIX")]
    output: Option<PathBuf>,
    /// Also print the ledger, which contains all counts in lines for scripts.
    #[arg(short, long)]
    verbose: bool,
    /// Formats to write, as in GPUFLAME_FORMATS: folded, svg, csv, idle, wait, alloc, cpu, off-cpu, together,
    /// activities, chrome, cupti-text, gfr, sums.
    #[arg(short, long, visible_alias = "format", value_name = "LIST")]
    formats: Option<String>,
    /// Record every call and activity, for timelines and `view`: adds gfr to the formats.
    #[arg(long)]
    rows: bool,
    /// Recording window, as a list of delay=TIME, duration=TIME (`500ms`, `2.5s`), repeat=TIMES, steps=FROM..TO,
    /// step-range=NAME, launches=NUMBER, bytes=SIZE, flag=FILE and signal=USR2, separated by commas; or
    /// `off`: the program itself starts and stops recording.
    #[arg(long, value_name = "WHEN")]
    window: Option<String>,
    /// Number of samples of the launching threads' stacks per second of CPU time. The samples are drawn as
    /// NAME.cpu.svg. The samples are also shown in the idle picture if a GPU waited for the sampled threads. A rate of
    /// 99 costs almost nothing, 999 shows more.
    #[arg(long, value_name = "HZ")]
    cpu_samples: Option<String>,
    /// Record where the launching threads sleep or wait, and for how long. The waits are drawn as NAME.off-cpu.svg. The
    /// waits are also shown in the idle picture if a GPU waited for the threads. Needs kernel.perf_event_paranoid of 1
    /// or CAP_PERFMON.
    #[arg(long)]
    off_cpu: bool,
    /// TOML file with settings, named without GPUFLAME_ (`duration = 2.5`). The environment and the other
    /// options take precedence. [default: gpuflame.toml in the current folder, if it exists]
    #[arg(long, value_name = "FILE.toml")]
    config: Option<PathBuf>,
    /// Do not read gpuflame.toml in the current folder.
    #[arg(long, conflicts_with = "config")]
    no_config: bool,
    /// Load gpuflame with LD_PRELOAD instead of the driver's injection, for drivers that do not inject.
    #[arg(long)]
    preload: bool,
    /// Path of the libgpuflame.so to use [default: next to this command, or in ../lib].
    #[arg(long, value_name = "FILE")]
    library: Option<PathBuf>,
    /// Open the page of the run after the command has ended.
    #[arg(long)]
    open: bool,
    /// Command and its arguments.
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl Run {
    pub(super) fn run(&self, console: Console) -> Result<Outcome> {
        // If stderr is a full pipe, the command must still start, and this process must still exit. Therefore the wait
        // for stderr has a timeout.
        let console = Console { patience: Some(STDERR_TIMEOUT), ..console };
        if self.verbose && console.quiet {
            return Err(usage_error("--verbose and --quiet exclude each other"));
        }
        let chosen = self.settings(console)?;
        let library = library::find(self.library.as_deref())?;
        let reports = process_reports::ReportFolder::new();
        let reports = reports.inspect_err(|error| {
            console.remark(format_args!(
                "cannot collect reports of the command's processes: {error}; set TMPDIR to a writable folder"
            ));
        });
        let reports = reports.ok();
        let mut command = self.command(&library, reports.as_ref(), &chosen, console);
        let status = match child::run(&mut command) {
            Ok(status) => status,
            Err(error) => {
                let is_missing = error.kind() == std::io::ErrorKind::NotFound;
                let name = Path::new(&self.command[0]).display();
                let advice = match error.raw_os_error() {
                    Some(libc::EMFILE) => Some("raise the limit of open files, `ulimit -n`".to_owned()),
                    _ => advice::for_command(&self.command),
                };
                let advice = advice.map_or(String::new(), |how| format!("; {how}"));
                console
                    .print_error(&Error::new(ErrorKind::Io, format!("cannot run {name}: {error}{advice}")));
                return Ok(Outcome::Status(if is_missing { NOT_FOUND } else { CANNOT_RUN }));
            }
        };
        if let Some(reports) = reports {
            self.print_summary(&reports, &chosen, console);
        }
        Ok(Outcome::Status(child::exit_code(status)))
    }

    /// Prints the reports of the command's processes. Also writes the output files of processes that ended without
    /// running their exit handlers.
    fn print_summary(
        &self,
        reports: &process_reports::ReportFolder,
        chosen: &[SettingPair],
        console: Console,
    ) {
        let mut left = reports.read();
        let all: BTreeMap<_, _> = settings_from_environment().chain(chosen.iter().cloned()).collect();
        let (settings, _) = settings::parse(all);
        file::set_file_mode(settings.file_mode);
        file::survive_file_size_limit();
        left.recover(|file| {
            let recovered = recover(file, &settings.formats, false, console);
            recovered.inspect_err(|error| console.print_error(error))
        });
        reports.forward(&left);
        left.lines(&reports.find_survivors(), settings.disable).iter().for_each(|line| console.remark(line));
        if let Some(line) = describe_straggler(&left.ranks(), console) {
            console.remark(line);
        }
        for line in left.longest().map(|file| describe_lost_time(&file, console)).unwrap_or_default() {
            console.remark(line);
        }
        // If the user has chosen formats, pages are written only for `--open`. `--rows` does not count as a choice of
        // formats, because it only adds a format to the default formats.
        let chosen_formats = chosen.iter().filter(|(name, _)| name == FORMATS_VARIABLE).count();
        let has_formats =
            chosen_formats > usize::from(self.rows) || std::env::var_os(FORMATS_VARIABLE).is_some();
        let pages = match settings.disable || (has_formats && !self.open) {
            true => Vec::new(),
            false => pages::write(&left, console),
        };
        if self.open && !left.reports.is_empty() {
            match pages.first().cloned().or_else(|| first_picture(&left.reports)) {
                Some(file) => open_in_browser(&file, console),
                None => console.remark("no page or picture to open; write one with --formats svg"),
            }
        }
    }

    /// Returns the settings in the settings file, except those settings that the environment overrides.
    fn settings_of_file(&self, console: Console) -> Result<Vec<SettingPair>> {
        let mut chosen = match &self.config {
            Some(file) => settings_file::read_config(file)?,
            None if self.no_config => Vec::new(),
            None => settings_file::find_config(Path::new("."))?,
        };
        chosen.retain(|(name, _)| std::env::var_os(name).is_none());
        if self.config.is_none() && !chosen.is_empty() {
            let keys: Vec<_> = chosen.iter().map(|(name, _)| settings_file::key_of(name)).collect();
            let file = settings_file::DEFAULT_FILE;
            console.remark(format_args!("{file} sets {} (--no-config ignores the file)", keys.join(", ")));
        }
        Ok(chosen)
    }

    /// Returns the settings from the command-line options, and the settings from the settings file that neither the
    /// options nor the environment override.
    fn settings(&self, console: Console) -> Result<Vec<SettingPair>> {
        let mut chosen = self.settings_of_file(console)?;
        // If a setting occurs twice in the returned list, the second value applies.
        chosen.extend(
            self.window.as_deref().map(setting_flags::parse_window).transpose()?.into_iter().flatten(),
        );
        chosen.extend(self.cpu_samples.as_deref().map(setting_flags::parse_cpu_samples).transpose()?);
        chosen.extend(self.off_cpu.then(|| ("GPUFLAME_OFF_CPU".to_owned(), "1".to_owned())));
        chosen.extend(self.verbose.then(|| ("GPUFLAME_VERBOSE".to_owned(), "1".to_owned())));
        chosen.extend(self.formats.as_deref().map(setting_flags::parse_formats).transpose()?);
        if self.rows {
            chosen.push(setting_flags::with_rows(&chosen));
        }
        Ok(chosen)
    }

    /// Creates the command, with the environment variables that make its processes record.
    fn command(
        &self,
        library: &Path,
        reports: Option<&process_reports::ReportFolder>,
        chosen: &[SettingPair],
        console: Console,
    ) -> Command {
        let mut command = Command::new(&self.command[0]);
        command.args(&self.command[1..]);
        if let Some(reports) = reports {
            command.env(process_reports::REPORT_VARIABLE, reports.path());
        }
        for name in INJECTION_VARIABLES {
            let Some(other) =
                std::env::var_os(name).filter(|named| !named.is_empty() && !library::is_ours(named))
            else {
                continue;
            };
            console.remark(format_args!(
                "{name}={} is replaced for the command by {}: only one tool can be injected",
                other.display(),
                library.display()
            ));
            command.env_remove(name);
        }
        let [driver, nvtx] = INJECTION_VARIABLES;
        if self.preload {
            let others = std::env::var_os("LD_PRELOAD").unwrap_or_default();
            let mut all = library::library_to_preload(library).into_os_string();
            if !others.is_empty() {
                all.push(":");
                all.push(others);
            }
            // The small library tells the driver to load `libgpuflame.so`. With `_GPUFLAME_LOAD`, the small library
            // loads `libgpuflame.so` immediately if possible.
            command.env_remove(driver);
            command.env("LD_PRELOAD", all).env("_GPUFLAME_LOAD", "1");
        } else {
            command.env(driver, library);
        }
        command.env(nvtx, library);
        // If stderr (descriptor 2) of a process is a regular file, the process writes the ledger to this file only if
        // the command was started with this file as stderr. The variable `_GPUFLAME_STDERR` identifies the stderr file.
        match stderr::file_id_to_pass_on() {
            Some(identity) => command.env(stderr::AT_EXEC_VARIABLE, identity),
            None => command.env_remove(stderr::AT_EXEC_VARIABLE),
        };
        command.envs(chosen.iter().map(|(name, value)| (name, value)));
        if let Some(prefix) = &self.output {
            command.env(OUTPUT_VARIABLE, prefix);
        }
        // A deleted current folder has no path, but the command can still run in that folder.
        if let Ok(here) = std::env::current_dir() {
            make_absolute(&mut command, &here);
        }
        if console.quiet {
            command.env("GPUFLAME_QUIET", "1");
        }
        command
    }
}

/// Returns the settings in the environment, which are the variables with the prefix `GPUFLAME_`.
fn settings_from_environment() -> impl Iterator<Item = SettingPair> {
    let text =
        |(name, value): (OsString, OsString)| Some((name.into_string().ok()?, value.into_string().ok()?));
    std::env::vars_os().filter_map(text).filter(|(name, _)| name.starts_with("GPUFLAME_"))
}

/// Makes relative paths in the options absolute, because processes of the command may change their current folder.
fn make_absolute(command: &mut Command, here: &Path) {
    let parts: Vec<_> = here.as_os_str().as_bytes().split(|byte| *byte == b'%').collect();
    let as_prefix = PathBuf::from(OsString::from_vec(parts.join(&b"%%"[..])));
    for (name, here) in [(OUTPUT_VARIABLE, as_prefix.as_path()), (setting_flags::FLAG_VARIABLE, here)] {
        let given = command.get_envs().find(|(given, _)| *given == name).and_then(|(_, value)| value);
        if let Some(absolute) = given.map(|path| here.join(path)) {
            command.env(name, absolute);
        }
    }
}

/// Returns the first flame graph (`.svg`) that the command's processes wrote.
fn first_picture(left: &[ProcessReport]) -> Option<PathBuf> {
    let files = left.iter().filter(|report| report.is_ours).flat_map(|report| &report.files);
    files.into_iter().find(|file| file.extension().is_some_and(|ending| ending == "svg")).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_paths_in_options_are_resolved_against_the_current_folder() {
        let mut command = Command::new("x");
        command.env(OUTPUT_VARIABLE, "out/%p").env(setting_flags::FLAG_VARIABLE, "on");
        make_absolute(&mut command, Path::new("/half/50%p"));
        let found: Vec<_> = command.get_envs().map(|(_, value)| value.unwrap().to_str().unwrap()).collect();
        assert_eq!(found, ["/half/50%p/on", "/half/50%%p/out/%p"]);
    }
}
