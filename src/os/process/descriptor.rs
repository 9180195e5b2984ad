//! Protects files that gpuflame keeps open. The host program may close any descriptor (`for (i = 3; i < 256; i++)
//! close(i)`). If the host closed one of gpuflame's descriptors, the next file that the host opens would get the same
//! number. gpuflame would then write its output into the host's file. Therefore gpuflame moves its files to high
//! descriptor numbers, which loops like this one do not reach. Before each write, gpuflame checks whether the
//! descriptor still refers to gpuflame's file.
//!
//! Directly after a file is opened, it is not protected yet. The kernel assigns the lowest free descriptor number, and
//! the file has this number until gpuflame moves the file to a higher number. A file that gpuflame only reads (in
//! `/proc`, or a module's symbol names) is not moved. A file that gpuflame only reads keeps its low number until the
//! file is closed, usually after tens of microseconds.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Minimum descriptor number of files that gpuflame keeps open. Most loops that close descriptors end at 255 or 1,023,
/// and files that the host opens get the lowest free numbers.
const MIN_DESCRIPTOR: i32 = 1000;

/// Makes the kernel enlarge the process's descriptor table, so that the table has room for descriptors of 1,000 and
/// above. Later calls do nothing. Call this function before opening a file that will be moved to a number of 1,000 or
/// above. If this function is not called, moving the first file enlarges the table. Enlarging the table takes 10 to 30
/// ms in a process with threads, and the file has its low number during that time.
pub fn enlarge_table() {
    static IS_MADE: AtomicBool = AtomicBool::new(false);
    if !IS_MADE.load(Ordering::Acquire) {
        // SAFETY: no file has the number -1, so nothing is duplicated; the kernel enlarges the table before it checks
        // the number.
        unsafe { libc::dup3(-1, MIN_DESCRIPTOR, libc::O_CLOEXEC) };
        IS_MADE.store(true, Ordering::Release);
    }
}

/// Moves an open file to a descriptor number of at least 1,000. If the process's limit on open files does not permit
/// this, moves the file to a number of at least 3. Therefore the file never gets the number of stdin, stdout or stderr,
/// which a program may have closed and may open again.
pub fn move_out_of_reach(file: File) -> File {
    for first in [MIN_DESCRIPTOR, 3] {
        // SAFETY: the descriptor is open while `file` is alive.
        let raised = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, first) };
        if raised >= 0 {
            // SAFETY: the kernel has just created this descriptor, and the new `File` is its only owner.
            return unsafe { File::from_raw_fd(raised) };
        }
    }
    file
}

/// Identity of a file: device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileId(u64, u64);

/// Formats the identity as `DEVICE:INODE`, in hexadecimal.
impl fmt::Display for FileId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:x}:{:x}", self.0, self.1)
    }
}

/// Returns the kernel's description (`stat`) of the file that is open under a descriptor number.
///
/// # Errors
/// Fails if no file is open under this number.
pub fn stat_descriptor(number: i32) -> io::Result<libc::stat> {
    // SAFETY: all-zero is a valid `stat`.
    let mut facts: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: fstat accepts any number and writes to `facts`.
    match unsafe { libc::fstat(number, &mut facts) } {
        0 => Ok(facts),
        _ => Err(io::Error::last_os_error()),
    }
}

impl FileId {
    /// Returns the identity of an open file.
    ///
    /// # Errors
    /// Fails if the file system returns an error.
    pub fn from_file(file: &File) -> io::Result<Self> {
        Self::from_descriptor(file.as_raw_fd())
    }

    /// Returns the identity of the file that is open under a descriptor number. The file may belong to gpuflame or to
    /// the host.
    ///
    /// # Errors
    /// Fails if no file is open under this number.
    pub fn from_descriptor(number: i32) -> io::Result<Self> {
        stat_descriptor(number).as_ref().map(Self::from_stat).map_err(|error| error.kind().into())
    }

    /// Returns the identity that a `stat` result contains, without a system call.
    pub fn from_stat(facts: &libc::stat) -> Self {
        Self(facts.st_dev, facts.st_ino)
    }

    /// Returns the identity of the file at `path`. A symbolic link is not followed.
    ///
    /// # Errors
    /// Fails if the file system returns an error.
    pub fn from_path(path: &Path) -> io::Result<Self> {
        path.symlink_metadata().map(|facts| Self(facts.dev(), facts.ino()))
    }

    /// Parses an identity from the text that `Display` writes.
    pub fn parse(text: &str) -> Option<Self> {
        let (device, inode) = text.split_once(':')?;
        let number = |digits| u64::from_str_radix(digits, 16).ok();
        Some(Self(number(device)?, number(inode)?))
    }
}

/// Appends to a file. Before each write, the appender checks whether its descriptor still refers to the file. If the
/// descriptor refers to another file or has a low number, the appender opens the file again for this write. Use an
/// appender with a buffer, so that there are few writes.
#[derive(Debug)]
pub struct Appender {
    path: PathBuf,
    identity: FileId,
    /// The open file, if its descriptor number is at least [`MIN_DESCRIPTOR`]. The file is kept open because opening it
    /// again may be impossible, for example if the host has dropped its privileges.
    kept: Option<File>,
}

impl Appender {
    /// Creates an appender to the file that has this path and identity. `open` is the same file, open for appending.
    pub fn new(path: &Path, identity: FileId, open: Option<File>) -> Self {
        Self { path: path.to_owned(), identity, kept: open.filter(is_out_of_reach) }
    }

    /// Opens the file again.
    ///
    /// # Errors
    /// Fails if the file system returns an error, or if the path refers to another file.
    pub fn open(&self) -> io::Result<File> {
        self.open_with(OpenOptions::new().append(true))
    }

    /// Overwrites the start of the file with `bytes`, which takes no additional disk space.
    ///
    /// # Errors
    /// Fails in the same cases as [`Appender::open`], or if writing fails.
    pub fn overwrite(&self, bytes: &[u8]) -> io::Result<()> {
        self.open_with(OpenOptions::new().write(true))?.write_all(bytes)
    }

    fn open_with(&self, how: &mut OpenOptions) -> io::Result<File> {
        enlarge_table();
        let file = how.custom_flags(libc::O_NOFOLLOW).open(&self.path)?;
        let file = move_out_of_reach(file);
        if self.is_ours(&file) {
            Ok(file)
        } else {
            Err(io::Error::new(ErrorKind::NotFound, "the file was replaced"))
        }
    }

    fn is_ours(&self, file: &File) -> bool {
        FileId::from_file(file).is_ok_and(|identity| identity == self.identity)
    }

    /// Returns the open file, if it was kept open and its descriptor still refers to the appender's file.
    pub fn open_file(&self) -> Option<&File> {
        self.kept.as_ref().filter(|file| self.is_ours(file))
    }

    /// Removes the open file from the appender and returns it, if its descriptor still refers to the appender's file. A
    /// descriptor that refers to another file belongs to the host and must not be closed.
    fn take_file(&mut self) -> Option<File> {
        let file = self.kept.take()?;
        if self.is_ours(&file) {
            return Some(file);
        }
        let _ = file.into_raw_fd();
        None
    }
}

fn is_out_of_reach(file: &File) -> bool {
    file.as_raw_fd() >= MIN_DESCRIPTOR
}

/// Total number of bytes that all appenders have written.
static APPENDED_BYTES: AtomicU64 = AtomicU64::new(0);

/// Total number of bytes written to gpuflame's files so far.
pub fn appended_bytes() -> u64 {
    APPENDED_BYTES.load(Ordering::Relaxed)
}

impl Write for Appender {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut file = match self.take_file() {
            Some(file) => file,
            None => self.open()?,
        };
        let written = file.write(bytes);
        APPENDED_BYTES.fetch_add(written.as_ref().map_or(0, |written| *written as u64), Ordering::Relaxed);
        self.kept = Some(file).filter(is_out_of_reach);
        written
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Appender {
    fn drop(&mut self) {
        drop(self.take_file());
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn appender(name: &str) -> (PathBuf, Appender) {
        let path = std::env::temp_dir().join(format!("gpuflame-append-{name}-{}", std::process::id()));
        let _ = fs::remove_file(&path);
        let file = move_out_of_reach(OpenOptions::new().append(true).create_new(true).open(&path).unwrap());
        let appender = Appender::new(&path, FileId::from_file(&file).unwrap(), Some(file));
        (path, appender)
    }

    #[test]
    fn kept_descriptors_are_numbered_at_least_1000() {
        let (path, appender) = appender("high");
        assert!(appender.kept.as_ref().unwrap().as_raw_fd() >= 1000);
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_descriptor_number_reused_by_another_file_is_neither_written_nor_closed() {
        let (path, mut appender) = appender("taken");
        appender.write_all(b"one ").unwrap();
        let other = path.with_extension("other");
        let file = File::create(&other).unwrap();
        let number = appender.kept.as_ref().unwrap().as_raw_fd();
        // SAFETY: both descriptors are open. `dup2` closes the file to which `number` refers.
        assert_eq!(unsafe { libc::dup2(file.as_raw_fd(), number) }, number);
        appender.write_all(b"two").unwrap();
        drop(appender);
        assert_eq!(fs::read_to_string(&path).unwrap(), "one two");
        assert_eq!(fs::read_to_string(&other).unwrap(), "");
        assert_eq!(
            FileId::from_descriptor(number).unwrap(),
            FileId::from_file(&file).unwrap(),
            "it is still open"
        );
        // SAFETY: dup2 has opened this descriptor, which belongs to this test.
        unsafe { libc::close(number) };
        for path in [path, other] {
            let _ = fs::remove_file(path);
        }
    }
}
