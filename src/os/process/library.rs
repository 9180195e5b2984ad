//! Queries the versions of shared libraries through this process's dynamic linker.

use std::ffi::{CStr, CString, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Returns the version that a `libgpuflame.so` reports. Call this function only in a process that may crash, because it
/// loads the file and runs the file's code.
///
/// # Errors
/// Fails with the dynamic linker's message, or with a message that the file is not gpuflame's library.
pub fn library_version(path: &Path) -> Result<String, String> {
    let name =
        CString::new(path.as_os_str().as_bytes()).map_err(|_| "its name contains a NUL byte".to_owned())?;
    // SAFETY: the name is a C string, and the caller accepts any effect of loading the file.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if library.is_null() {
        // SAFETY: after a failed `dlopen`, `dlerror` returns a C string or null.
        let why = unsafe { libc::dlerror() };
        // SAFETY: the message is not null, so it is a C string.
        return Err(if why.is_null() { "it cannot be loaded".to_owned() } else { unsafe { text(why) } });
    }
    // SAFETY: the library is open, and the name is a C string.
    let version = unsafe { libc::dlsym(library, c"gpuflame_version".as_ptr()) };
    if version.is_null() {
        return Err("it is not a libgpuflame.so (it has no gpuflame_version)".to_owned());
    }
    // SAFETY: gpuflame's header declares a function with this name and this type.
    let version: extern "C" fn() -> *const c_char = unsafe { std::mem::transmute(version) };
    // SAFETY: gpuflame's header guarantees that the function returns a C string that is never freed.
    Ok(unsafe { text(version()) })
}

/// Returns the version of the C library, such as `2.36`.
#[cfg(target_env = "gnu")]
pub fn c_library() -> String {
    // SAFETY: the function returns a C string that is never freed.
    unsafe { text(libc::gnu_get_libc_version()) }
}

/// On systems without glibc, returns a text instead of a version, because only glibc can report its version.
#[cfg(not(target_env = "gnu"))]
pub fn c_library() -> String {
    "not glibc".to_owned()
}

/// # Safety
/// `at` must be a C string.
unsafe fn text(at: *const c_char) -> String {
    // SAFETY: the caller fulfils this function's contract.
    unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned()
}
