//! Determines the free space of file systems.

use std::ffi::CString;
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Returns the number of bytes that this user may still write to the file system of `path`.
///
/// # Errors
/// Fails if `statvfs` fails, for example because the path does not exist.
pub fn free_bytes(path: &Path) -> io::Result<u64> {
    let name = CString::new(path.as_os_str().as_bytes())?;
    let mut facts = MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: the name ends with NUL, and `facts` has room for the structure that the function writes.
    if unsafe { libc::statvfs(name.as_ptr(), facts.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, so it has written the whole structure.
    let facts = unsafe { facts.assume_init() };
    Ok(facts.f_bavail.saturating_mul(facts.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_has_no_space_and_a_missing_folder_is_an_error() {
        assert_eq!(free_bytes(Path::new("/proc")).unwrap(), 0);
        assert!(free_bytes(Path::new("/no such folder")).is_err());
    }
}
