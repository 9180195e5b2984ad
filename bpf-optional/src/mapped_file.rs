//! Provides the bytes of a file, which is mapped into memory. A library may have a size of a gigabyte, but only the
//! pages that contain its symbols are read.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::ptr::NonNull;

/// The bytes of a file, which are mapped and not copied. If another process truncates the file while it is mapped, a
/// read of the mapping raises SIGBUS, which kills this program.
#[derive(Debug)]
pub(crate) struct MappedFile {
    start: NonNull<u8>,
    length: usize,
}

impl MappedFile {
    pub(crate) fn map(file: &File) -> std::io::Result<Self> {
        let length = file.metadata()?.len() as usize;
        // SAFETY: this creates a new mapping of an open file at any free address. The kernel refuses an empty mapping.
        let start = unsafe {
            libc::mmap(std::ptr::null_mut(), length, libc::PROT_READ, libc::MAP_PRIVATE, file.as_raw_fd(), 0)
        };
        if start == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(std::io::ErrorKind::InvalidInput)?;
        Ok(Self { start, length })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: `length` bytes stay mapped at `start` until this value is dropped.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping, and there is no slice of the mapping any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.length) };
    }
}
