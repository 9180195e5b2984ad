//! Runs programs with the PyTorch wheel that `tests/pytorch/install` installs, and with the Python interpreter of that
//! installation.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::support::{Run, Way, is_ci, root, skip, stage};

/// Returns the folder that contains Python and the PyTorch wheel. If they are not installed, prints a message and
/// returns `None`.
pub(crate) fn folder() -> Option<&'static Path> {
    static FOLDER: OnceLock<Option<PathBuf>> = OnceLock::new();
    FOLDER.get_or_init(install).as_deref()
}

fn install() -> Option<PathBuf> {
    let mut command = Command::new(root().join("tests/pytorch/install"));
    // Outside CI, `cargo test` must not download half a gigabyte unless the user asks for it.
    let output = command.args((!is_ci()).then_some("--found")).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() {
        return Some(String::from_utf8(output.stdout).unwrap().trim_end().into());
    }
    skip(&format!("PyTorch's wheel is not installed\n{said}"));
    None
}

/// Returns the folder of Transformers. If it is not installed, prints a message and returns `None`. CI does not install
/// Transformers in each run, because it is too large.
pub(crate) fn transformers() -> Option<&'static Path> {
    static FOLDER: OnceLock<Option<PathBuf>> = OnceLock::new();
    FOLDER.get_or_init(|| found("tests/pytorch/transformers")).as_deref()
}

/// Returns the folder of Triton. If it is not installed, prints a message and returns `None`.
pub(crate) fn triton() -> Option<&'static Path> {
    static FOLDER: OnceLock<Option<PathBuf>> = OnceLock::new();
    FOLDER.get_or_init(|| found("tests/pytorch/triton")).as_deref()
}

/// Returns the folder of the packages that a program needs in addition to PyTorch. If these packages or PyTorch are not
/// installed, prints a message and returns `None`.
pub(crate) fn packages(program: &str) -> Option<&'static Path> {
    match program {
        "transformers_models.py" => transformers(),
        "triton_kernels.py" | "compiled.py" => triton(),
        _ => Some(Path::new("")),
    }
}

fn found(script: &str) -> Option<PathBuf> {
    let output = Command::new(root().join(script)).arg("--found").output().unwrap();
    if output.status.success() {
        return Some(String::from_utf8(output.stdout).unwrap().trim_end().into());
    }
    skip(&format!("Transformers or Triton is not installed: {}", String::from_utf8_lossy(&output.stderr)));
    None
}

/// Returns the folder that contains the simulated CUDA libraries and the libraries that replace NVIDIA's packages.
fn libraries(folder: &Path) -> &'static Path {
    static LIBRARIES: OnceLock<PathBuf> = OnceLock::new();
    LIBRARIES.get_or_init(|| {
        let staged = stage("pytorch", &["libcupti.so.13"]);
        for entry in fs::read_dir(folder.join("stand-ins")).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap();
            if name.to_string_lossy().contains(".so.") {
                symlink(&path, staged.join(name)).unwrap();
            }
        }
        let mut command = Command::new(folder.join("bin/python"));
        let check = command.arg(root().join("tests/pytorch/stand_ins.py")).arg("--check");
        let output = check.args([folder, &staged]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        staged
    })
}

/// Returns a run of one of the programs in `programs/`. Each kernel runs for the duration in its name.
pub(crate) fn run(folder: &Path, program: &str, way: Way) -> Run {
    let run = Run::new(&folder.join("bin/python"), way).with_libraries(libraries(folder));
    run.arg(root().join("tests/pytorch/programs").join(program)).env("GPUSIM_KERNELS", "by_name")
}

/// Returns the number of GPUs that a program needs.
pub(crate) fn devices(program: &str) -> &'static str {
    if matches!(program, "devices.py" | "ddp.py") { "2" } else { "1" }
}
