//! Writes the output of a verb to stdout, or to a file that gets its final name only when it is complete.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use super::console::Console;
use gpuflame_model::error::{Error, Result};
use gpuflame_os::file::Draft;

/// Destination of a verb's output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// Standard output, written `-`.
    Stdout,
    /// A file.
    File(PathBuf),
}

impl From<OsString> for Target {
    fn from(argument: OsString) -> Self {
        if argument == "-" { Self::Stdout } else { Self::File(argument.into()) }
    }
}

impl Target {
    /// Returns the ending of the file's name (the part after the last dot), from which the output format is derived.
    pub(super) fn ending(&self) -> Option<&str> {
        match self {
            Self::Stdout => None,
            Self::File(path) => path.extension()?.to_str(),
        }
    }

    /// Calls `content` to write the output. If the output file already exists, the new file replaces the old file as
    /// soon as the new file is complete. On an error, the existing file is unchanged.
    ///
    /// # Errors
    /// Returns an error if `content` fails, or if the file cannot be written. The message of an error contains the
    /// file's name.
    pub(super) fn write(
        &self,
        console: Console,
        content: impl FnOnce(&mut (dyn Write + Send)) -> Result<()>,
    ) -> Result<()> {
        match self {
            Self::Stdout => {
                let mut closed = false;
                let mut out = BufWriter::with_capacity(1 << 16, Stdout { closed: &mut closed });
                let written = content(&mut out).and_then(|()| Ok(out.flush()?));
                drop(out.into_parts());
                // A closed pipe is not an error: the reader, such as `head` in `gpuflame top x | head`, has read
                // enough.
                if closed { Ok(()) } else { written }
            }
            Self::File(path) => {
                write_file(path, content).map_err(|error| not_written_error(path, error))?;
                console.remark(format!("wrote {}", path.display()));
                Ok(())
            }
        }
    }
}

/// Standard output, with a flag that is set when the reader has closed the pipe.
struct Stdout<'a> {
    closed: &'a mut bool,
}

impl Write for Stdout<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = io::stdout().write(bytes);
        *self.closed |= written.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe);
        written
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = io::stdout().flush();
        *self.closed |= flushed.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe);
        flushed
    }
}

fn not_written_error(path: &Path, error: Error) -> Error {
    error.within(format!("{} was not written", path.display()))
}

/// Writes a file. If writing fails, no incomplete file is left. Devices, pipes and the Linux kernel's names for open
/// descriptors (`/dev/stdout`, `/dev/fd/3`) are written directly.
fn write_file(path: &Path, content: impl FnOnce(&mut (dyn Write + Send)) -> Result<()>) -> Result<()> {
    if is_special(path) {
        let mut out = BufWriter::new(File::options().write(true).open(path)?);
        content(&mut out)?;
        return Ok(out.flush()?);
    }
    let mut draft = create_draft(path)?;
    draft.fill(|out| content(out))?;
    Ok(draft.publish()?)
}

fn is_special(path: &Path) -> bool {
    path.starts_with("/dev") && !path.starts_with("/dev/shm")
        || fs::metadata(path).is_ok_and(|metadata| !metadata.is_file())
}

/// Creates a temporary file next to `path`. When the file is complete, the temporary file is renamed to `path`.
///
/// # Errors
/// Fails if the folder of `path` does not exist or is not writable.
fn create_draft(path: &Path) -> Result<Draft> {
    let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !folder.is_dir() {
        let error = io::Error::new(io::ErrorKind::NotFound, "the folder does not exist; create it first");
        return Err(error.into());
    }
    Ok(Draft::create(path)?)
}
