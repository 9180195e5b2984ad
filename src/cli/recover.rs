//! `gpuflame recover`: writes the output files that a killed or crashed process would have written at its exit. The
//! data of the output files comes from the recording that the process left.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use clap::Args;

use super::console::{Console, Outcome};
use super::explain::{Explained, explain_opened, max_memory};
use super::input::Source;
use super::output::Target;
use gpuflame_config::settings::{self, Output, SET_SUFFIX, Settings};
use gpuflame_explain::{describe_process, describe_set};
use gpuflame_export::{self as export, Drawing};
use gpuflame_model::error::{Error, ErrorKind, Result};
use gpuflame_model::profile::views::GPU;
use gpuflame_offline::run::ReadOptions;
use gpuflame_os::file::{self, Claim, survive_file_size_limit};
use gpuflame_traces::import::{Kind, WriterState};

/// Write the output files of a process that did not exit normally.
///
/// This verb reads the recording (NAME.gfr) that a killed or crashed process left, and writes the files that the
/// process would have written at its exit: NAME.folded, NAME.svg, NAME.csv, idle time and NAME.set.json. If one of the
/// files exists already, the names of all new files get a number.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  gpuflame recover app.4711.gfr")]
pub(super) struct Recover {
    /// Recordings that processes have left.
    #[arg(required = true)]
    inputs: Vec<PathBuf>,
    /// Recover even if the process is still running.
    #[arg(long)]
    alive: bool,
}

impl Recover {
    pub(super) fn run(&self, console: Console) -> Result<Outcome> {
        // The recovered files replace the files that `libgpuflame.so` would have written, so they get the same
        // permissions.
        file::set_file_mode(settings::from_environment().0.file_mode);
        survive_file_size_limit();
        let (mut any, mut finished, mut incomplete) = (false, Vec::new(), Vec::new());
        for input in &self.inputs {
            match recover(input, &Settings::default().formats, self.alive, console)? {
                Recovery::Written(recovered) => {
                    any = true;
                    incomplete.extend(recovered.describe_unwritten(input));
                }
                Recovery::StillRunning => {
                    let why = "its process is still running and will write its files at exit; use --alive to \
                               write them now";
                    return Err(Error::new(ErrorKind::Format, format!("{}: {why}", input.display())));
                }
                Recovery::Finished => finished.push(input),
            }
        }
        if !incomplete.is_empty() {
            return Err(Error::new(ErrorKind::Io, incomplete.join("; ")));
        }
        let why = "its process has written its files at its exit; `gpuflame flamegraph` and `gpuflame convert` \
                   write others from it";
        match finished.first() {
            Some(first) if !any => Err(Error::new(ErrorKind::Format, format!("{}: {why}", first.display()))),
            Some(first) => {
                let count = finished.len();
                console.remark(format!("skipped {count} files, first {}: {why}", first.display()));
                Ok(Outcome::Clean)
            }
            None => Ok(Outcome::Clean),
        }
    }
}

/// Result of recovering the output files of a process.
pub(super) struct Recovered {
    /// Report that the process would have written for `gpuflame run` (`GPUFLAME_REPORT`) at its exit.
    pub(super) report: String,
    /// Number of files that could not be written. The errors for files that could not be written have already been
    /// printed.
    unwritten: usize,
    /// Number of files that should have been written.
    wanted: usize,
}

impl Recovered {
    /// Returns a sentence that explains how to use the recording `input` to get the files that could not be written.
    /// Returns `None` if all files were written.
    pub(super) fn describe_unwritten(&self, input: &Path) -> Option<String> {
        let Self { unwritten, wanted, .. } = self;
        let input = input.display();
        (*unwritten > 0).then(|| {
            format!(
                "{unwritten} of {wanted} files were not written, but their data is in the recording {input}: remove the \
                 cause (for example, free disk space), then run `gpuflame recover {input}`"
            )
        })
    }
}

/// Outcome of an attempt to recover the files of a process.
pub(super) enum Recovery {
    /// The output files were written, except those files for which an error has been printed.
    Written(Recovered),
    /// No files were written, because the process may still be running. A process that is still running writes its
    /// files itself.
    StillRunning,
    /// No files were written, because the process exited and wrote its files itself. The input file is one of the files
    /// that the process wrote itself.
    Finished,
}

/// Writes the files that the process would have written at its exit, next to `input`. If the process may still be
/// running, files are written only if `alive` is set. If a file cannot be written, prints the error and writes the
/// other files, because a smaller file may fit on a full disk.
///
/// # Errors
/// Returns `Format` if nothing can be recovered, and `Io` if `input` cannot be read or no names for new files are free.
pub(super) fn recover(input: &Path, outputs: &[Output], alive: bool, console: Console) -> Result<Recovery> {
    let source = Source::File(input.to_owned());
    let opened = source.open()?;
    if opened.kind() != Kind::Recording {
        let refusal = format!("{source}: not a gpuflame recording; left unchanged");
        return Err(Error::new(ErrorKind::Format, refusal));
    }
    let options = ReadOptions { max_memory: max_memory(), ..ReadOptions::default() };
    let Explained { profile, ledger, facts, .. } = explain_opened(&source, opened, &options, console, ())?;
    if facts.writer_state == Some(WriterState::Alive) && !alive {
        return Ok(Recovery::StillRunning);
    }
    if facts.is_finished {
        return Ok(Recovery::Finished);
    }
    // Only views and the summary table are written. Outputs that list every activity or stack are not written. A second
    // recording is not written either.
    let outputs = outputs.iter().filter(|output| matches!(output, Output::View(..) | Output::Table));
    let outputs: Vec<_> = outputs.copied().collect();
    let suffixes: Vec<_> =
        outputs.iter().map(|output| output.suffix()).chain([SET_SUFFIX.to_owned()]).collect();
    let Some(mut paths) = find_free_names(input, &suffixes) else {
        let taken = format!(
            "{}: all names for the new files are taken, up to number 9999; remove some of these files",
            input.display()
        );
        return Err(Error::new(ErrorKind::Io, taken));
    };
    let about = paths.pop().unwrap_or_default();
    let outputs: Vec<_> = outputs.into_iter().zip(paths).collect();
    let options = gpuflame_export::Options::default();
    let mut drawing = Drawing::new(&profile, &GPU, &options);
    let wanted = outputs.len() + 1;
    let mut files = Vec::new();
    for (output, path) in outputs {
        let written = Target::File(path.clone()).write(console, |mut out| match &output {
            Output::View(view, format) => {
                if drawing.view() != *view {
                    drawing = Drawing::new(&profile, view, &options);
                }
                export::format(format).map_or(Ok(()), |format| format.write(&drawing, &mut out))
            }
            _ => export::write_csv(&profile, &mut out),
        });
        match written {
            Ok(()) => files.push(path),
            Err(error) => console.print_error(&error),
        }
    }
    let all = [&files[..], &[input.to_owned()]].concat();
    let text = describe_set(&profile, &ledger, None, &all);
    match Target::File(about.clone()).write(console, |out| Ok(out.write_all(text.as_bytes())?)) {
        Ok(()) => files.push(about),
        Err(error) => console.print_error(&error),
    }
    let unwritten = wanted - files.len();
    // The recording is listed among the files of the process too, because `gpuflame run` reads the data for the
    // findings and the page from the recording.
    files.push(input.to_owned());
    let report = describe_process(&profile, &ledger, files.iter());
    Ok(Recovery::Written(Recovered { report, unwritten, wanted }))
}

/// Count of different numbers that are tried in the names of the new files: 0 to 9999.
const MAX_FILE_NUMBERS: u32 = 10_000;

/// For `NAME.gfr`, returns the paths `NAME.svg` and so on. If a path is taken, returns `NAME.1.svg` and so on, with the
/// same number in all paths. A path may be taken because a process was interrupted while it exited. A path may also be
/// taken by another process with the same name. A process with the same name may have written only its recording so
/// far, or may be writing its other files now.
fn find_free_names(input: &Path, suffixes: &[String]) -> Option<Vec<PathBuf>> {
    let name = input.file_name().unwrap_or_default().as_bytes();
    let name = OsStr::from_bytes(name.strip_suffix(b".gfr").unwrap_or(name));
    let named = |number: u32, suffix: &str| {
        let number = if number == 0 { String::new() } else { format!(".{number}") };
        let mut name = name.to_owned();
        name.push(number + suffix);
        input.with_file_name(name)
    };
    let is_free = |number: &u32| {
        let is_taken = |suffix: &str| named(*number, suffix).symlink_metadata().is_ok();
        // The number 0 represents file names without a number. For the number 0, the name of the recording is the name
        // of the input itself, so this name does not count as taken.
        let is_others = *number > 0 && is_taken(".gfr") || Claim::is_claimed(&named(*number, SET_SUFFIX));
        !is_others && !suffixes.iter().any(|suffix| is_taken(suffix))
    };
    let number = (0..MAX_FILE_NUMBERS).find(is_free)?;
    Some(suffixes.iter().map(|suffix| named(number, suffix)).collect())
}
