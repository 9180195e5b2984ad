//! Opens what a verb is to read, says what is wrong with it in words that help, and shows how far it is.

use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use indicatif::{ProgressBar, ProgressStyle};

use super::Console;
use crate::error::{Error, ErrorKind, Result};
use crate::record::{Reader, Row};

/// Files smaller than this are read before anybody could look at a bar.
const LONG: u64 = 32 << 20;
/// So many remarks about a damaged file are made one by one.
const REMARKS: u64 = 3;

/// What a verb reads.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Source {
    /// `-`.
    Stdin,
    /// A file.
    File(PathBuf),
}

impl FromStr for Source {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        Ok(if text == "-" { Self::Stdin } else { Self::File(text.into()) })
    }
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Stdin => f.write_str("standard input"),
            Self::File(path) => path.display().fmt(f),
        }
    }
}

impl Source {
    /// Calls `each` with every row. A damaged row is remarked upon and passed over; what follows one that
    /// is cut short is lost, what came before it is not. Returns how many rows were damaged.
    ///
    /// # Errors
    /// `Io` or `Format`, with what, where and what next, if there is nothing to be had.
    pub(super) fn rows(&self, console: Console, each: &mut dyn FnMut(&Row<'_>)) -> Result<u64> {
        let in_source = |error: Error| error.within(self);
        let mut reader = Reader::new(self.open(console)?).map_err(in_source)?;
        let mut damaged = 0;
        loop {
            match reader.next_row() {
                Ok(Some(row)) => each(&row),
                Ok(None) => break,
                Err(error) if error.kind() == ErrorKind::Format => {
                    damaged += 1;
                    if damaged <= REMARKS {
                        console.remark(error.within(self));
                    }
                }
                Err(error) => return Err(in_source(error)),
            }
        }
        if damaged > REMARKS {
            console.remark(format!("{self}: {} more records are damaged", damaged - REMARKS));
        }
        if reader.skipped() > 0 {
            let skipped = reader.skipped();
            console.remark(format!(
                "{self}: passed over {skipped} rows of a kind that only later versions know"
            ));
        }
        Ok(damaged)
    }

    fn open(&self, console: Console) -> Result<Box<dyn BufRead>> {
        let mut input = match self {
            Self::Stdin if io::stdin().is_terminal() => {
                return Err(super::usage(
                    "standard input is a terminal; pipe a recording in, or name a file",
                ));
            }
            Self::Stdin => Box::new(BufReader::with_capacity(1 << 18, io::stdin())),
            Self::File(path) => open_file(path, console)?,
        };
        let begins = input.fill_buf().map_err(|error| Error::from(error).within(self))?;
        if begins.is_empty() {
            let message = "is empty; was the program killed before it could write, or the copy cut off?";
            return Err(Error::new(ErrorKind::Format, format!("{self}: {message}")));
        }
        Ok(input)
    }
}

fn open_file(path: &Path, console: Console) -> Result<Box<dyn BufRead>> {
    let shown = path.display();
    let refuse = |what: String| Error::new(ErrorKind::Io, format!("{shown}: {what}"));
    let file = File::open(path).map_err(|error| {
        refuse(match error.kind() {
            io::ErrorKind::NotFound => {
                "no such file; name a recording (GPUFLAME_FORMATS=gfr makes one)".to_owned()
            }
            io::ErrorKind::PermissionDenied => {
                "may not be read by this user; look at its owner and mode".to_owned()
            }
            _ => error.to_string(),
        })
    })?;
    let metadata = file.metadata().map_err(|error| refuse(error.to_string()))?;
    if metadata.is_dir() {
        return Err(refuse("is a folder; name a file in it".to_owned()));
    }
    Ok(Box::new(BufReader::with_capacity(1 << 18, watched(file, metadata.len(), console))))
}

/// `file` with a bar on a terminal, where reading it takes long enough to be watched.
fn watched(file: File, bytes: u64, console: Console) -> Box<dyn Read> {
    if console.quiet || bytes < LONG || !io::stderr().is_terminal() {
        return Box::new(file);
    }
    let style =
        ProgressStyle::with_template("{bar:40} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left");
    let bar = ProgressBar::new(bytes).with_style(style.expect("the template is right"));
    Box::new(bar.wrap_read(file))
}
