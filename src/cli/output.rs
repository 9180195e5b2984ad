//! Output of a verb: stdout, or a file that gets its final name only when it is complete.

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
    /// Returns the part after the last dot of `name.ENDING`, from which the format is derived.
    pub(super) fn ending(&self) -> Option<&str> {
        match self {
            Self::Stdout => None,
            Self::File(path) => path.extension()?.to_str(),
        }
    }

    /// Calls `content` to write the output. If the file already exists, the new file replaces it once it is complete.
    /// On an error, the existing file is unchanged.
    ///
    /// # Errors
    /// Errors of `content`; errors of the file, with its name.
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
                // A closed pipe is not an error, because the reader has read enough, as in `gpuflame top x | head`.
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

/// Standard output, and a flag that is set when the reader has closed it.
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

/// Writes a file so that it is either complete or absent. Devices, pipes, and the kernel's names for open descriptors
/// (`/dev/stdout`, `/dev/fd/3`) are written directly.
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

/// Creates a temporary file next to `path`. When it is published, it gets the name `path`.
///
/// # Errors
/// The folder does not exist, or is not writable.
fn create_draft(path: &Path) -> Result<Draft> {
    let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !folder.is_dir() {
        let error = io::Error::new(io::ErrorKind::NotFound, "the folder does not exist; create it first");
        return Err(error.into());
    }
    Ok(Draft::create(path)?)
}
