//! Collects the inputs of the search for CUPTI. The inputs are the files that this process has mapped, the folders in
//! which its Python may be installed, and the machine's library folders.
//!
//! All inputs come from files and from the dynamic linker. Collecting the inputs needs no CUDA call.

use super::Options;
use super::find::{SearchEnvironment, list_entries};
use std::ffi::{CStr, OsStr, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Returns the inputs of the search for CUPTI in this process. `driver` is the newest CUDA version that the driver
/// supports, in the driver's encoding (12040 = 12.4).
pub fn search_environment(driver: Option<u32>, options: &Options) -> SearchEnvironment {
    let variable = |name: &&str| if options.without_environment { None } else { std::env::var_os(name) };
    let named = |names: &[&str]| names.iter().filter_map(variable).map(PathBuf::from).collect();
    let started_as = if options.without_environment { None } else { std::env::args_os().next() };
    SearchEnvironment {
        setting: options.library.clone(),
        mapped: mapped_files(),
        driver,
        python: python_roots(named(&["VIRTUAL_ENV", "CONDA_PREFIX"]), started_as.map(PathBuf::from)),
        toolkits: toolkit_roots(named(&["CUDA_HOME", "CUDA_PATH", "CUDA_ROOT"])),
        system: system_folders(),
    }
}

/// Whether the machine has the device file of a GPU, which comes either from the NVIDIA driver or from WSL.
pub(super) fn has_gpu_file() -> bool {
    let numbered = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().as_bytes();
        name.last().is_some_and(u8::is_ascii_digit)
    };
    Path::new("/dev/dxg").exists() || list_entries(Path::new("/dev"), "nvidia").iter().any(numbered)
}

/// Returns the files that the dynamic linker has mapped, in the linker's order. The list does not contain the program
/// itself.
pub(super) fn mapped_files() -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = Vec::new();
    // SAFETY: `add_mapped_file` runs only before `dl_iterate_phdr` returns. The argument of `add_mapped_file` is the
    // pointer to `files` that is passed here.
    unsafe { libc::dl_iterate_phdr(Some(add_mapped_file), (&raw mut files).cast()) };
    files
}

/// Adds the name of a mapped file to `files`.
///
/// # Safety
/// Only `dl_iterate_phdr` may call this function, and `files` must point to a `Vec<PathBuf>`.
unsafe extern "C" fn add_mapped_file(
    info: *mut libc::dl_phdr_info,
    _size: usize,
    files: *mut c_void,
) -> c_int {
    // SAFETY: the dynamic linker passes a valid struct.
    let name = unsafe { (*info).dlpi_name };
    if !name.is_null() {
        // SAFETY: the name is a C string while the linker holds its lock, and the linker holds it during this callback.
        let name = unsafe { CStr::from_ptr(name) };
        if !name.is_empty() {
            // SAFETY: `files` is the pointer that `mapped_files` has passed.
            let files = unsafe { &mut *files.cast::<Vec<PathBuf>>() };
            files.push(OsStr::from_bytes(name.to_bytes()).into());
        }
    }
    0
}

/// Returns the root folders in which the Python of this process may be installed. The roots of virtual environments are
/// among these folders. If this program is a Python interpreter, the folders also include the root of its executable,
/// and the root of the path with which it was started.
fn python_roots(environment: Vec<PathBuf>, started_as: Option<PathBuf>) -> Vec<PathBuf> {
    let programs = started_as.into_iter().chain(std::env::current_exe());
    let roots = programs.filter_map(|program| {
        let name = program.file_name()?.as_bytes();
        name.starts_with(b"python").then(|| program.parent()?.parent().map(Path::to_owned))?
    });
    environment.into_iter().chain(roots).filter(|root| root.is_absolute()).collect()
}

fn toolkit_roots(named: Vec<PathBuf>) -> Vec<PathBuf> {
    let usual = ["/usr/local/cuda", "/opt/cuda"];
    let versions = list_entries(Path::new("/usr/local"), "cuda-");
    let all = named.into_iter().chain(usual.map(PathBuf::from)).chain(versions);
    all.filter(|root| root.is_absolute()).collect()
}

fn system_folders() -> Vec<PathBuf> {
    let multiarch = format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH);
    [multiarch.as_str(), "/usr/lib64", "/usr/lib"].map(PathBuf::from).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_c_library_is_among_the_mapped_files() {
        let files = mapped_files();
        assert!(files.iter().any(|file| file.to_string_lossy().contains("libc.so")), "{files:?}");
    }
}
