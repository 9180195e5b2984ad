//! How the library gets in, other than by the driver.
//!
//! Preloaded, it only asks the driver to inject it, if there ever is a driver: processes without CUDA
//! pay one look at the environment, and nothing is initialised before a fork. Linked, it does nothing
//! until `gpuflame_start`.

use std::ffi::{CStr, OsStr, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

const INJECTION: &str = "CUDA_INJECTION64_PATH";

// SAFETY: runs while the loader initialises this library: it reads and sets environment variables, as
// constructors may, and there are no threads yet that could read them at the same time.
#[ctor::ctor(unsafe)]
fn ask_to_be_injected_if_preloaded() {
    if std::env::var_os(INJECTION).is_some() {
        return;
    }
    let (Some(list), Some(own)) = (std::env::var_os("LD_PRELOAD"), own_path()) else { return };
    if names_file(&list, &own) {
        // SAFETY: see above: no other thread can be reading the environment.
        unsafe { std::env::set_var(INJECTION, &own) };
    }
}

/// Whether a preload list (blanks or colons between the names) has an entry that is the file `own`.
fn names_file(list: &OsStr, own: &Path) -> bool {
    let entries = list
        .as_bytes()
        .split(|byte| matches!(byte, b' ' | b':'))
        .map(|entry| Path::new(OsStr::from_bytes(entry)));
    entries.filter(|entry| !entry.as_os_str().is_empty()).any(|entry| {
        entry.canonicalize().map_or_else(|_| entry.file_name() == own.file_name(), |entry| entry == own)
    })
}

/// The absolute path of this library.
fn own_path() -> Option<PathBuf> {
    let function = ask_to_be_injected_if_preloaded as *const c_void;
    file_of(function)?.canonicalize().ok()
}

fn file_of(address: *const c_void) -> Option<PathBuf> {
    // SAFETY: all-zero is a valid `Dl_info`: null pointers.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: dladdr takes any address and writes to `info`.
    if unsafe { libc::dladdr(address, &mut info) } == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: dladdr gave a NUL-terminated name that lives as long as the library.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(PathBuf::from(OsStr::from_bytes(name.to_bytes())))
}

/// When the application is linked against one copy of this library and the driver injects another
/// (two files), the linked one is the session: it gets the call. False: this copy is it.
pub(crate) fn forward_to_linked_copy() -> bool {
    // SAFETY: looks a symbol up in the global scope; an injected copy is not in it.
    let linked = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"gpuflame_start".as_ptr()) };
    // Our own address of that name is no help: the loader gives us the linked copy's.
    let own = file_of(ask_to_be_injected_if_preloaded as *const c_void);
    let Some(path) = file_of(linked).filter(|path| Some(path) != own.as_ref()) else { return false };
    let Ok(path) = std::ffi::CString::new(path.into_os_string().into_encoded_bytes()) else { return false };
    // SAFETY: RTLD_NOLOAD only finds what is loaded already.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if handle.is_null() {
        return false;
    }
    // SAFETY: the handle is live, and the name NUL-terminated.
    let entry = unsafe { libc::dlsym(handle, c"InitializeInjection".as_ptr()) };
    if entry.is_null() {
        return false;
    }
    // SAFETY: a library that exports gpuflame_start exports this entry with this type.
    let entry: extern "C" fn() -> c_int = unsafe { std::mem::transmute(entry) };
    entry();
    true
}
