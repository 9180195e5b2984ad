//! Finds the libraries that cargo built or that were installed. Makes the simulated CUDA stack available under the
//! names for which the loader searches.

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

/// The simulated libraries, with the names for which the loader searches. Libraries in cargo's own folder must not have
/// these names, because cargo adds this folder to LD_LIBRARY_PATH.
const SIMULATED: [(&str, &str); 3] = [
    ("libgpusim_cuda.so", "libcuda.so.1"),
    ("libgpusim_cudart.so", "libcudart.so.13"),
    ("libgpusim_cupti.so", "libcupti.so.13"),
];

/// Durations of the simulated kernels, chosen so that the flame graph resembles that of a real decode loop.
const DURATIONS: &str =
    "matmul_kernel=86300ns,attention_kernel=41700ns,silu_kernel=3100ns,accumulate_kernel=2400ns";

/// The files that a demo needs in addition to its program.
pub(crate) struct Files {
    /// Path of `libgpuflame.so`.
    pub(crate) library: PathBuf,
    /// Folder with the simulated libraries under the names for which the loader searches.
    simulated: PathBuf,
}

impl Files {
    /// Returns the files that `cargo run --example` built, such as `target/release/deps/libgpuflame.so` for the program
    /// `target/release/examples/demo`.
    pub(crate) fn built() -> Result<Files> {
        let program = executable()?;
        let profile = program.parent().and_then(Path::parent);
        let profile =
            profile.ok_or_else(|| format!("{}: not in cargo's target folder", program.display()))?;
        let find = |name| {
            let path = profile.join("deps").join(name);
            if path.exists() {
                return Ok(path);
            }
            Err(format!("{}: not there; build it with cargo run --release --example demo", path.display()))
        };
        let simulated = profile.join("gpusim-demo");
        std::fs::create_dir_all(&simulated)
            .map_err(|e| format!("{}: cannot make it: {e}", simulated.display()))?;
        for (library, soname) in SIMULATED {
            link(&find(library)?, &simulated.join(soname))?;
        }
        Ok(Files { library: find("libgpuflame.so")?, simulated })
    }

    /// Returns the files of an installation. In an installation, the simulated libraries are in this program's folder.
    pub(crate) fn installed(library: &str) -> Result<Files> {
        let program = executable()?;
        let simulated = program.parent().unwrap_or(Path::new("/")).to_owned();
        Ok(Files { library: library.into(), simulated })
    }

    /// Makes `command` run on the simulated stack.
    pub(crate) fn simulate(&self, command: &mut Command) -> Result<()> {
        for (_, soname) in SIMULATED {
            let path = self.simulated.join(soname);
            if !path.exists() {
                return Err(format!("{}: not there; install gpuflame again", path.display()));
            }
        }
        let mut search = self.simulated.clone().into_os_string();
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
}

/// Returns the path of this program.
pub(crate) fn executable() -> Result<PathBuf> {
    std::env::current_exe().map_err(|e| format!("cannot tell where it runs from: {e}"))
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
