//! Finds the libraries that cargo built next to this program, and makes the simulated CUDA stack available under the
//! names that the loader looks for.

use crate::Result;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// CUDA stack on which the workload runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stack {
    Real,
    Simulated,
}

/// The simulated libraries, and the names by which the loader looks for them. Cargo puts its folder of libraries on
/// LD_LIBRARY_PATH, so the libraries in that folder must not have these names.
const SIMULATED: [(&str, &str); 3] = [
    ("libgpusim_cuda.so", "libcuda.so.1"),
    ("libgpusim_cudart.so", "libcudart.so.13"),
    ("libgpusim_cupti.so", "libcupti.so.13"),
];

/// Durations of the simulated kernels, chosen so that the picture resembles that of a real decode loop.
const DURATIONS: &str =
    "matmul_kernel=86300ns,attention_kernel=41700ns,silu_kernel=3100ns,accumulate_kernel=2400ns";

/// Returns the path of this program.
pub(crate) fn executable() -> Result<PathBuf> {
    std::env::current_exe().map_err(|e| format!("cannot tell where it runs from: {e}"))
}

/// Returns `target/release` for `target/release/examples/demo`.
fn profile_folder() -> Result<PathBuf> {
    let program = executable()?;
    let folder = program.parent().and_then(Path::parent).map(Path::to_owned);
    folder.ok_or_else(|| format!("{}: not in cargo's target folder", program.display()))
}

/// Returns the path of a library that `cargo run --example` built: `target/release/deps/libgpuflame.so`.
pub(crate) fn find_library(name: &str) -> Result<PathBuf> {
    let path = profile_folder()?.join("deps").join(name);
    if path.exists() {
        return Ok(path);
    }
    Err(format!("{}: not there; build it with cargo run --release --example demo", path.display()))
}

/// Makes `command` run on the simulated stack.
pub(crate) fn simulate(command: &mut Command) -> Result<()> {
    let folder = profile_folder()?.join("gpusim-demo");
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: cannot make it: {e}", folder.display()))?;
    for (library, soname) in SIMULATED {
        link(&find_library(library)?, &folder.join(soname))?;
    }
    let mut search = folder.into_os_string();
    if let Some(inherited) = std::env::var_os("LD_LIBRARY_PATH") {
        search.push(":");
        search.push(inherited);
    }
    command.env("LD_LIBRARY_PATH", search);
    if std::env::var_os("GPUSIM_KERNELS").is_none() {
        command.env("GPUSIM_KERNELS", DURATIONS);
    }
    Ok(())
}

/// Links `library` under a name that is unique to this process, because another demo may be running from the same
/// folder.
fn link(library: &Path, name: &Path) -> Result<()> {
    if std::fs::read_link(name).is_ok_and(|to| to == library) {
        return Ok(());
    }
    let temporary = name.with_extension(format!("{}.new", std::process::id()));
    symlink(library, &temporary)
        .and_then(|()| std::fs::rename(&temporary, name))
        .map_err(|e| format!("{}: cannot link to {}: {e}", name.display(), library.display()))
}
