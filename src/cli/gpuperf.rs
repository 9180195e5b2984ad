//! `gpuflame gpuperf`: does the same as `gpuperf.py`, the runner of eunomia's tutorial, with the verbs `run`, `convert`
//! and `merge`. `gpuflame gpuperf` has the runner's options, file names and exit code. `gpuflame gpuperf` does not need
//! root, because stacks are captured inside the recorded process.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;

use super::console::{Console, Outcome, usage_error};
use gpuflame_model::error::{Error, ErrorKind, Result};
use gpuflame_os::child;

/// Run a command as the tutorial's gpuperf.py does.
///
/// Writes a GPU trace, the CPU stacks at launches, and a merged file. Every stack carries the correlation id of its
/// launch, so stacks are not matched by time. If the command has several processes, the largest recording is used.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  gpuflame gpuperf -m merged.folded ./app\n  timeout -s 2 10 gpuflame gpuperf ./app\n\n\
    Exit codes: the command's; 130 after SIGINT, with all files written."
)]
pub(super) struct Gpuperf {
    /// Output file for the GPU trace, in the format that CUPTI's tracer prints.
    #[arg(short, long, default_value = "gpu_results.txt", value_name = "FILE")]
    output: PathBuf,
    /// Output file for the GPU trace, for Chrome's viewer.
    #[arg(short, long, default_value = "gpu_results.json", value_name = "FILE")]
    chrome: PathBuf,
    /// Output file for the CPU stacks (extended folded).
    #[arg(short = 'p', long = "cpu-profile", default_value = "cpu_results.txt", value_name = "FILE")]
    cpu: PathBuf,
    /// Output file for the CPU stacks with the kernels that they launched (folded, ns).
    #[arg(short, long, default_value = "merged_trace.folded", value_name = "FILE")]
    merged: PathBuf,
    /// Write only CPU stacks.
    #[arg(long, conflicts_with = "no_cpu")]
    cpu_only: bool,
    /// Same as --cpu-only.
    #[arg(long, conflicts_with = "no_cpu")]
    no_gpu: bool,
    /// Write only the GPU trace.
    #[arg(long)]
    no_cpu: bool,
    /// Do not write the merged file.
    #[arg(long)]
    no_merge: bool,
    /// Path of the libgpuflame.so to use [default: next to this command, or in ../lib].
    #[arg(long, value_name = "FILE")]
    library: Option<PathBuf>,
    /// Command and its arguments.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Exit code that a shell returns for a command that SIGINT ended.
const INTERRUPTED: u8 = 130;

impl Gpuperf {
    /// Records the command and converts the recording. `verb` is a function that runs another verb with the given
    /// command-line words.
    pub(super) fn run(
        &self,
        console: Console,
        verb: fn(&[OsString], Console) -> Result<Outcome>,
    ) -> Result<Outcome> {
        let folder = TempFolder::new()?;
        let status = match verb(&self.record_arguments(&folder.0), Console { quiet: true, ..console })? {
            Outcome::Status(code) => code,
            Outcome::Clean | Outcome::Findings => 0,
        };
        let code = if child::was_interrupted() { INTERRUPTED } else { status };
        let Some(recording) = folder.find_largest_recording()? else {
            console.remark(format_args!(
                "the command ended with {status} and launched nothing: no files were written"
            ));
            return Ok(Outcome::Status(code));
        };
        for words in self.step_arguments(&recording) {
            verb(&words, console)?;
        }
        Ok(Outcome::Status(code))
    }

    /// Returns the words of the `gpuflame run` command line that records the command.
    fn record_arguments(&self, folder: &Path) -> Vec<OsString> {
        let mut words = os_args(["run", "--no-config", "--formats", "gfr", "--output"]);
        words.push(folder.join("run.%p").into());
        if let Some(library) = &self.library {
            words.extend(["--library".into(), library.into()]);
        }
        words.push("--".into());
        words.extend(self.command.iter().cloned());
        words
    }

    /// Returns the words of the command lines that convert the recording, one command line per conversion.
    fn step_arguments(&self, recording: &Path) -> Vec<Vec<OsString>> {
        let convert = |format: &str, to: &Path| {
            let mut words = os_args(["convert", "--to", format, "-i"]);
            words.extend([recording.into(), "-o".into(), to.into()]);
            words
        };
        let (wants_gpu, wants_cpu) = (!self.cpu_only && !self.no_gpu, !self.no_cpu);
        let mut steps = Vec::new();
        if wants_gpu {
            steps.extend([convert("cupti-text", &self.output), convert("chrome", &self.chrome)]);
        }
        if wants_cpu {
            steps.push(convert("extended-folded", &self.cpu));
        }
        if wants_gpu && wants_cpu && !self.no_merge {
            let mut merge = os_args(["merge", "--summary", "-c"]);
            merge.extend([self.cpu.clone().into(), "-g".into(), self.chrome.clone().into()]);
            merge.extend(["-o".into(), self.merged.clone().into()]);
            steps.push(merge);
        }
        steps
    }
}

fn os_args<const N: usize>(words: [&str; N]) -> Vec<OsString> {
    words.map(OsString::from).into()
}

/// A temporary folder for recordings, which is removed on drop.
struct TempFolder(PathBuf);

impl TempFolder {
    fn new() -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("gpuflame-gpuperf-{}", std::process::id()));
        // `gpuflame run` would interpret a `%` in the path as the start of a macro.
        if folder.as_os_str().as_encoded_bytes().contains(&b'%') {
            return Err(usage_error(format!(
                "{} contains a %; set TMPDIR to another folder",
                folder.display()
            )));
        }
        fs::create_dir(&folder)
            .map_err(|error| Error::new(ErrorKind::Io, format!("{}: {error}", folder.display())))?;
        Ok(Self(folder))
    }

    /// Returns the path of the largest recording in the folder; `None` if the folder contains no recording.
    fn find_largest_recording(&self) -> Result<Option<PathBuf>> {
        let mut largest = None;
        for entry in fs::read_dir(&self.0)? {
            let entry = entry?;
            if entry.path().extension() == Some(OsStr::new("gfr")) {
                largest = largest.max(Some((entry.metadata()?.len(), entry.path())));
            }
        }
        Ok(largest.map(|(_, path)| path))
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        // Errors are ignored, because files that remain are small, and the system deletes its temporary files.
        let _ = fs::remove_dir_all(&self.0);
    }
}
