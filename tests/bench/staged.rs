//! Provides the simulated CUDA stack for benchmarks that start programs: its libraries, and programs that are linked to
//! these libraries.

use std::ffi::OsStr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, process};

/// Returns the path of a shared library that cargo built next to this program.
pub(crate) fn built(name: &str) -> PathBuf {
    env::current_exe().expect("a program has a file").with_file_name(name)
}

/// Creates a folder for the benchmark `name` that contains the simulated libraries under the names of the real ones.
pub(crate) fn stage(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("bench-{name}-{}", process::id()));
    fs::create_dir_all(&folder).expect("the target folder is writable");
    for (library, name) in [
        ("libgpusim_cuda.so", "libcuda.so.1"),
        ("libgpusim_cuda.so", "libcuda.so"),
        ("libgpusim_cudart.so", "libcudart.so.13"),
        ("libgpusim_cudart.so", "libcudart.so"),
        ("libgpusim_cupti.so", "libcupti.so.13"),
    ] {
        symlink(built(library), folder.join(name)).expect("the folder is new");
    }
    folder
}

/// Compiles `source`, a path in the repository, into a folder that [`stage`] created.
pub(crate) fn compiled(source: &str, flags: &[&str], cuda: &Path) -> PathBuf {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let program = cuda.join(Path::new(source).file_stem().expect("sources have names"));
    let mut gcc = Command::new("gcc");
    gcc.args(["-O2", "-g", "-std=gnu99"]).args(flags);
    gcc.arg("-I").arg(root.join("tests/gpusim/include")).arg(root.join(source)).arg("-o").arg(&program);
    gcc.arg("-L").arg(cuda).args(["-lcudart", "-lcuda", "-lpthread", "-ldl"]);
    assert!(gcc.status().is_ok_and(|status| status.success()), "gcc is needed, and compiles {source}");
    program
}

/// Returns a command that runs `program` with the libraries in `cuda`. gpuflame's settings are removed from the
/// environment of the command.
pub(crate) fn command(program: impl AsRef<OsStr>, cuda: &Path) -> Command {
    let mut command = Command::new(program);
    for (name, _) in env::vars_os() {
        if name.to_string_lossy().starts_with("GPU") {
            command.env_remove(name);
        }
    }
    command.env_remove("CUDA_INJECTION64_PATH").env("LD_LIBRARY_PATH", cuda);
    command
}
