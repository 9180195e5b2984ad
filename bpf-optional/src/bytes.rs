//! The bytes of a file, mapped: of a library of a gigabyte only its symbols are read.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::ptr::NonNull;

/// A file's bytes. They are those of the file as it is: whoever cuts it short meanwhile ends us, as it would end the
/// program that has it mapped.
#[derive(Debug)]
pub(crate) struct Bytes {
    start: NonNull<u8>,
    length: usize,
}

impl Bytes {
    pub(crate) fn of(file: &File) -> std::io::Result<Self> {
        let length = file.metadata()?.len() as usize;
        // SAFETY: a new mapping, of an open file, anywhere; an empty one is refused by the kernel.
        let start = unsafe {
            libc::mmap(std::ptr::null_mut(), length, libc::PROT_READ, libc::MAP_PRIVATE, file.as_raw_fd(), 0)
        };
        if start == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(std::io::ErrorKind::InvalidInput)?;
        Ok(Self { start, length })
    }

    pub(crate) fn get(&self) -> &[u8] {
        // SAFETY: `length` bytes are mapped there, until this is dropped.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nobody has a slice of it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.length) };
    }
}
