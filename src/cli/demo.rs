//! `gpuflame demo`: runs the demo program, which is installed together with the `gpuflame` command. The folder of the
//! demo program also contains the simulated CUDA stack. The source code of the demo program is the example `demo` in
//! the repository.

use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;

use clap::Args;

use super::console::Outcome;
use super::run::library;
use gpuflame_model::error::{Error, ErrorKind, Result};
use gpuflame_os::stderr;

/// Name of the demo's folder. The demo's folder is next to the `gpuflame` command (in a wheel) or in the folder
/// `../lib`.
const FOLDER: &str = "gpuflame-demo";

/// Record a small demo program, with or without a GPU.
///
/// The demo decodes text with a made-up model, on this machine's first GPU. Without a GPU, the demo runs on a simulated
/// CUDA stack. Stacks and counts of a simulated run are real, but its times are made up. The demo writes its files,
/// `gpuflame-demo.PID.svg` and so on, into the current folder.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  gpuflame demo")]
pub(super) struct Demo {
    /// Path of the libgpuflame.so to use [default: next to this command, or in ../lib].
    #[arg(long, value_name = "FILE")]
    library: Option<PathBuf>,
}

impl Demo {
    /// Replaces this process with the demo program (`exec`). Returns only if the replacement fails.
    pub(super) fn run(&self) -> Result<Outcome> {
        let library = library::find(self.library.as_deref())?;
        let folder = library::command_folder();
        let places = [folder.join(FOLDER), folder.join("../lib").join(FOLDER)];
        let program = places.iter().map(|place| place.join("demo")).find(|program| program.exists());
        let program = program.ok_or_else(|| {
            Error::new(
                ErrorKind::Io,
                format!(
                    "there is no {FOLDER} in {} or its ../lib: only the wheel, the archive and the Debian package have \
                     the demo; in a clone, run `cargo run --release --example demo`",
                    folder.display()
                ),
            )
        })?;
        let mut command = std::process::Command::new(&program);
        command.arg("installed").arg(library);
        // If stderr is a file, the recorded program must be able to recognize that file as the stderr with which it was
        // started. Otherwise the recorded program does not write its messages to the stderr file.
        if let Some(identity) = stderr::file_id_to_pass_on() {
            command.env(stderr::AT_EXEC_VARIABLE, identity);
        }
        let failed = command.exec();
        Err(Error::new(ErrorKind::Io, format!("cannot start {}: {failed}", program.display())))
    }
}
