//! `gpuflame run`: a command under gpuflame, on its terminal, with its exit status.
//!
//! All it does is set variables, wait, and read what the processes of the command left about themselves
//! (`GPUFLAME_REPORT`): recording is the library's business.

pub(super) mod library;
mod processes;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::Args;

use super::console::{Console, Outcome, usage};
use super::recover::recover;
use crate::error::{Error, ErrorKind, Result};
use crate::host::child;
use crate::settings;
use processes::Report;

/// What shells answer where a command is not there, or cannot be run.
const NOT_FOUND: u8 = 127;
const NOT_RUN: u8 = 126;

/// Record a command: every process of it that calls CUDA leaves a flame graph.
///
/// The command runs as without it, on the same terminal; signals reach it, and its exit status is this one's. Of its
/// processes that were killed or crashed there are the files as of a second before (`gpuflame recover`). What to
/// record and where is as the GPUFLAME_* variables say (`gpuflame settings`) that the options do not.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  gpuflame run ./app --steps 100\n  \
    gpuflame run -o out/%e.%r --formats svg,gfr -- torchrun --nproc-per-node 8 train.py\n\n\
    Exit codes: the command's; 126 and 127 where it cannot be started.")]
pub(super) struct Run {
    /// Path prefix of the outputs, with the macros of GPUFLAME_OUTPUT (%p process, %e program, %r rank ...).
    #[arg(short, long, value_name = "PREFIX")]
    output: Option<PathBuf>,
    /// What to write, as in GPUFLAME_FORMATS: folded, svg, csv, idle, wait, alloc, activities, gfr.
    #[arg(long, value_name = "LIST")]
    formats: Option<String>,
    /// Come in by LD_PRELOAD instead of the driver's injection, for programs whose driver does not inject.
    #[arg(long)]
    preload: bool,
    /// The libgpuflame.so to use, instead of the one beside this command.
    #[arg(long, value_name = "FILE")]
    library: Option<PathBuf>,
    /// Show the first picture when the command has ended.
    #[arg(long)]
    open: bool,
    /// The command, and its arguments.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl Run {
    pub(super) fn run(&self, console: Console) -> Result<Outcome> {
        if let Some(formats) = &self.formats {
            check_formats(formats)?;
        }
        let library = library::find(self.library.as_deref())?;
        let reports = processes::Folder::new()?;
        let mut command = self.command(&library, reports.path(), console)?;
        let status = match child::run(&mut command) {
            Ok(status) => status,
            Err(error) => {
                let is_missing = error.kind() == std::io::ErrorKind::NotFound;
                console.fail(&Error::new(
                    ErrorKind::Io,
                    format!("cannot run {}: {error}", Path::new(&self.command[0]).display()),
                ));
                return Ok(Outcome::Status(if is_missing { NOT_FOUND } else { NOT_RUN }));
            }
        };
        let mut left = reports.read();
        left.extend(self.recover(&reports.cut(&left), console));
        processes::lines(&left, &reports.survivors()).iter().for_each(|line| console.remark(line));
        if self.open {
            open(&left, console);
        }
        Ok(Outcome::Status(child::code(status)))
    }

    /// Writes the files of processes that ended without a word.
    fn recover(&self, cut: &[PathBuf], console: Console) -> Vec<Report> {
        let formats = self.formats.clone().or_else(|| std::env::var("GPUFLAME_FORMATS").ok());
        let formats = formats.map(|formats| ("GPUFLAME_FORMATS".to_owned(), formats));
        let (settings, _) = settings::parse(formats);
        let recovered = cut.iter().filter_map(|file| {
            let recovered = recover(file, &settings.formats, false, console);
            recovered.inspect_err(|error| console.fail(error)).ok().flatten()
        });
        recovered.map(Report::of_recovered).collect()
    }

    /// The command, with all that has its processes record.
    fn command(&self, library: &Path, reports: &Path, console: Console) -> Result<Command> {
        let mut command = Command::new(&self.command[0]);
        command.args(&self.command[1..]).env("GPUFLAME_REPORT", reports);
        if self.preload {
            let others = std::env::var_os("LD_PRELOAD").unwrap_or_default();
            let mut all = library.as_os_str().to_owned();
            if !others.is_empty() {
                all.push(":");
                all.push(others);
            }
            command.env("LD_PRELOAD", all);
        } else {
            command.env("CUDA_INJECTION64_PATH", library);
        }
        command.env("NVTX_INJECTION64_PATH", library);
        if let Some(prefix) = &self.output {
            // Processes of the command may go to other folders.
            command.env("GPUFLAME_OUTPUT", std::env::current_dir()?.join(prefix));
        }
        if let Some(formats) = &self.formats {
            command.env("GPUFLAME_FORMATS", formats);
        }
        if console.quiet {
            command.env("GPUFLAME_QUIET", "1");
        }
        Ok(command)
    }
}

/// A word that the library would pass over is told before anything is run.
fn check_formats(formats: &str) -> Result<()> {
    let (_, warnings) = settings::parse([("GPUFLAME_FORMATS".to_owned(), formats.to_owned())]);
    match warnings.first() {
        None => Ok(()),
        Some(warning) => {
            let why = warning.split("; going on").next().unwrap_or(warning);
            Err(usage(why.replacen("GPUFLAME_FORMATS=", "--formats ", 1)))
        }
    }
}

/// Has the desktop show the first picture.
fn open(left: &[Report], console: Console) {
    let picture = left
        .iter()
        .flat_map(|report| &report.files)
        .find(|file| file.extension().is_some_and(|ending| ending == "svg"));
    let Some(picture) = picture else {
        return console.remark("there is no picture to open; --formats svg writes one");
    };
    let opened = Command::new("xdg-open")
        .arg(picture)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    if opened.is_err() {
        console.remark(format_args!("no xdg-open here; open {} in a browser", picture.display()));
    }
}
