//! `gpuflame recover`: the files that a process would have written at its exit, of what it left without one.

use std::path::{Path, PathBuf};

use clap::Args;

use super::console::{Console, Outcome};
use super::explain::{Explained, explain_opened, max_memory};
use super::input::Source;
use super::output::Target;
use crate::error::{Error, ErrorKind, Result};
use crate::export;
use crate::import::{CutOff, Kind};
use crate::run::ReadOptions;
use crate::settings::{Output, Settings};

/// Write the files of an exit that did not come.
///
/// What a process leaves that is killed or crashes (NAME.gfr) becomes what it would have written at its exit:
/// NAME.folded, NAME.svg, NAME.csv and idle time. Files that are there are left alone.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  gpuflame recover gpuflame-app.4711.gfr")]
pub(super) struct Recover {
    /// What processes have left.
    #[arg(required = true)]
    inputs: Vec<PathBuf>,
    /// Also of a process that still runs.
    #[arg(long)]
    alive: bool,
}

impl Recover {
    pub(super) fn run(&self, console: Console) -> Result<Outcome> {
        for input in &self.inputs {
            self.recover(input, console)?;
        }
        Ok(Outcome::Clean)
    }

    fn recover(&self, input: &Path, console: Console) -> Result<()> {
        let source = Source::File(input.to_owned());
        let refuse = |what: &str| Error::new(ErrorKind::Format, format!("{source}: {what}"));
        let opened = source.open()?;
        if opened.kind() != Kind::Recording {
            return Err(refuse("is no recording of gpuflame; nothing is lost of it"));
        }
        let options = ReadOptions { max_memory: max_memory(), ..ReadOptions::default() };
        let Explained { profile, facts, .. } = explain_opened(&source, opened, &options, console, ())?;
        if facts.cut_off == Some(CutOff::Alive) && !self.alive {
            return Err(refuse("its process still runs, and writes its files when it ends (--alive: now)"));
        }
        let options = export::Options::default();
        let outputs = Settings::default().formats;
        let paths: Vec<_> = outputs.iter().map(|output| beside(input, &output.suffix())).collect();
        if let Some(taken) = paths.iter().find(|path| path.symlink_metadata().is_ok()) {
            let there = format!("{} is there already; move it away first", taken.display());
            return Err(Error::new(ErrorKind::Io, there));
        }
        for (output, path) in outputs.into_iter().zip(paths) {
            Target::File(path).write(console, |mut out| match output {
                Output::Drawn(view, format) => {
                    let format = export::format(format);
                    format.map_or(Ok(()), |format| format.draw(&profile, view, &options, &mut out))
                }
                _ => export::write_csv(&profile, &mut out),
            })?;
        }
        Ok(())
    }
}

/// `NAME.svg` for `NAME.gfr`.
fn beside(input: &Path, suffix: &str) -> PathBuf {
    let name = input.file_name().unwrap_or_default().to_string_lossy();
    let name = name.strip_suffix(".gfr").unwrap_or(&name);
    input.with_file_name(format!("{name}{suffix}"))
}
