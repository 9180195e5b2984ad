//! Handles preloading and linking, which are the two ways to load the library into a process without the CUDA driver.
//!
//! A preloaded library only sets environment variables. The environment variables make the CUDA driver inject the
//! library if the program ever loads the driver. Therefore, in a process without CUDA, the library only takes the time
//! to search the environment once. A preloaded library initialises nothing that a later fork would copy. A library
//! against which the program is linked does nothing until the program calls `gpuflame_start`.

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr::{NonNull, null};
use std::sync::atomic::{AtomicPtr, Ordering};

use gpuflame_cupti::tracer::errno;
use gpuflame_os::stderr;

use crate::GetExportTable;

/// Environment variables that contain the path of a library to load. The CUDA driver reads the first variable, and NVTX
/// reads the second variable. Each loads the named library during its first call.
const INJECTION_VARIABLES: [&str; 2] = ["CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH"];

// SAFETY: this constructor runs while the loader initialises this library, and uses only memory that the C library and
// the loader have set up. Other threads may exist already, because a library that was initialised before this library
// has created threads, or because a running program loads this library.
#[ctor::ctor(unsafe)]
fn ask_to_be_injected_if_preloaded() {
    let Some(list) = std::env::var_os("LD_PRELOAD") else { return };
    // errno is preserved, because the driver may be loading this library during a call of the application.
    errno::preserve(|| {
        let Some(own) = own_path().filter(|own| list_contains(&list, own)) else { return };
        stderr::remember_file_at_exec();
        let unset = INJECTION_VARIABLES.into_iter().filter(|name| std::env::var_os(name).is_none());
        let unset: Vec<_> = unset.collect();
        if unset.is_empty() {
            return;
        }
        let own = own.as_os_str().as_bytes();
        add_to_environment(unset.iter().map(|name| [name.as_bytes(), b"=", own].concat()));
    });
}

unsafe extern "C" {
    /// The process's environment: pointers to `NAME=value`, terminated by null.
    static mut environ: *mut *mut c_char;
}

/// Adds variables to the environment while other threads may be reading it. `setenv` is not used, because it would free
/// the list that other threads may be reading. This function installs a new list of variables and leaves the old list
/// unchanged. If another thread adds a variable at the same moment, the other thread's variable is lost. (A program
/// with several threads must not change the environment anyway.)
fn add_to_environment(variables: impl Iterator<Item = Vec<u8>>) {
    // SAFETY: The C library's variable `environ` is read and written as a whole.
    let list = unsafe { AtomicPtr::from_ptr(&raw mut environ) };
    let old = list.load(Ordering::Acquire);
    // SAFETY: `old` is null, or a list that ends in null.
    let at = |n: usize| if old.is_null() { null() } else { unsafe { old.add(n).read().cast_const() } };
    let mut new: Vec<_> = (0..).map(at).take_while(|entry| !entry.is_null()).collect();
    new.extend(variables.filter_map(|text| Some(CString::new(text).ok()?.into_raw().cast_const())));
    new.push(null());
    list.store(new.leak().as_mut_ptr().cast(), Ordering::Release);
}

/// Whether `own` is one of the files in a preload list. Blanks or colons separate the file names in the list.
fn list_contains(list: &OsStr, own: &Path) -> bool {
    let entries = list
        .as_bytes()
        .split(|byte| matches!(byte, b' ' | b':'))
        .map(|entry| Path::new(OsStr::from_bytes(entry)));
    entries.filter(|entry| !entry.as_os_str().is_empty()).any(|entry| {
        entry.canonicalize().map_or_else(|_| entry.file_name() == own.file_name(), |entry| entry == own)
    })
}

/// Returns the absolute path of this library.
fn own_path() -> Option<PathBuf> {
    let function = ask_to_be_injected_if_preloaded as *const c_void;
    file_containing(function)?.canonicalize().ok()
}

fn file_containing(address: *const c_void) -> Option<PathBuf> {
    // SAFETY: all-zero bytes are a valid `Dl_info` that contains null pointers.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: dladdr takes any address and writes to `info`.
    if unsafe { libc::dladdr(address, &mut info) } == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: dladdr returned a NUL-terminated name that lives as long as the library.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(PathBuf::from(OsStr::from_bytes(name.to_bytes())))
}

/// Checks the version of the preload stub that made the driver load this library. If the stub is from another release,
/// returns a message that explains why this library refuses to work. If the stub and this library have the same
/// version, returns `None`.
pub(crate) fn version_mismatch() -> Option<String> {
    let told = std::env::var_os("_GPUFLAME_PRELOAD")?;
    let told = told.to_string_lossy();
    let (version, library) = told.split_once(' ')?;
    // Different versions are reported only if the driver loads the library whose path is in the stub's variable. A
    // program inherits the stub's variable even if the program's CUDA driver loads another library.
    let is_its_choice =
        std::env::var_os(INJECTION_VARIABLES[0]).is_some_and(|named| named.to_string_lossy() == library);
    let own = env!("CARGO_PKG_VERSION");
    (is_its_choice && version != own).then(|| {
        format!(
            "libgpuflame-preload.so has version {version}, but {library} has version {own}: install both \
             from the same release"
        )
    })
}

/// The application may be linked against one copy of this library while the driver injects another copy. In this case,
/// the linked copy owns the session. If this copy does not own the session, this function forwards the driver's call to
/// the linked copy. Returns `false` if this copy of the library owns the session.
pub(crate) fn forward_to_linked_copy() -> bool {
    let Some(entry) = entry_of_linked_copy(c"InitializeInjection") else { return false };
    // SAFETY: a library that exports gpuflame_start exports this entry with this type.
    let entry: extern "C" fn() -> c_int = unsafe { std::mem::transmute(entry.as_ptr()) };
    entry();
    true
}

/// Does the same as [`forward_to_linked_copy`] for the call from NVTX, which may also inject another copy of this
/// library.
pub(crate) fn forward_nvtx_to_linked_copy(table: GetExportTable) -> bool {
    let Some(entry) = entry_of_linked_copy(c"InitializeInjectionNvtx2") else { return false };
    // SAFETY: a library that exports gpuflame_start also exports this entry with this type.
    let entry: extern "C" fn(GetExportTable) -> c_int = unsafe { std::mem::transmute(entry.as_ptr()) };
    entry(table);
    true
}

/// Returns the address of the symbol `name` in the copy against which the application is linked; `None` if there is no
/// such copy, or if the calling copy is that copy.
fn entry_of_linked_copy(name: &CStr) -> Option<NonNull<c_void>> {
    // SAFETY: `dlsym` only looks up a symbol in the loader's global scope. The global scope does not contain an
    // injected copy of the library.
    let linked = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"gpuflame_start".as_ptr()) };
    // The path of this copy of the library is found through the address of a private function. The address of
    // `gpuflame_start` is unsuitable, because the loader resolves this name to the copy against which the application
    // is linked, even for uses in this file.
    let own = file_containing(ask_to_be_injected_if_preloaded as *const c_void);
    let path = file_containing(linked).filter(|path| Some(path) != own.as_ref())?;
    let path = CString::new(path.into_os_string().into_encoded_bytes()).ok()?;
    // SAFETY: RTLD_NOLOAD only finds libraries that are already loaded.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    let handle = NonNull::new(handle)?;
    // SAFETY: the handle is open, and the name ends with NUL.
    NonNull::new(unsafe { libc::dlsym(handle.as_ptr(), name.as_ptr()) })
}
