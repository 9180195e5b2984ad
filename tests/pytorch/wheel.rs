//! Tests which libraries a PyTorch program loads, and which messages an unexpected wheel causes.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::installed::{folder, run};
use crate::support::{Way, root, scratch};

#[test]
fn no_library_from_nvidias_packages_is_loaded() {
    let Some(folder) = folder() else { return };
    let done = run(folder, "maps.py", Way::Injected).ok();
    let mapped: BTreeSet<&Path> = done.stdout.lines().map(Path::new).collect();
    let has = |name: &str| mapped.iter().any(|path| path.ends_with(name));
    assert!(has("libtorch_cuda.so") && has("libgpusim_cuda.so") && has("libgpuflame.so"), "{mapped:?}");
    let stand_ins = folder.join("stand-ins");
    for path in &mapped {
        let name = path.file_name().unwrap().to_str().unwrap();
        let is_of_nvidia = ["libcu", "libnv", "libnccl"].iter().any(|begin| name.starts_with(begin));
        assert!(!is_of_nvidia || path.starts_with(&stand_ins), "{}", path.display());
        assert!(!path.iter().any(|part| part == "nvidia"), "{}", path.display());
    }
    assert!(has("stand-ins/libcublas.so.13") && has("stand-ins/libcudnn.so.9"), "{mapped:?}");
}

/// Returns the version of Python 3 on this machine in the form in which the script determines it.
fn version() -> String {
    let tell = "import sys; print('%d.%d' % sys.version_info[:2])";
    let output =
        Command::new("python3").args(["-c", tell]).output().expect("python3 is needed for the tests");
    String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
}

/// Creates a folder that looks like an installed wheel and has the text `told` in `torch/version.py`.
fn wheel(told: &str) -> PathBuf {
    let cache = scratch("wheel");
    let folder = cache.join(format!("2.15.0-py{}", version()));
    let torch = folder.join(format!("lib/python{}/site-packages/torch", version()));
    fs::create_dir_all(torch.join("lib")).unwrap();
    fs::create_dir_all(folder.join("bin")).unwrap();
    let find = Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output().unwrap();
    symlink(String::from_utf8(find.stdout).unwrap().trim_end(), folder.join("bin/python")).unwrap();
    fs::write(folder.join("done"), "").unwrap();
    fs::write(torch.join("version.py"), told).unwrap();
    cache
}

/// Returns the message that `tests/pytorch/install` prints about this cache folder. Checks that the message is one line
/// and that the exit code is 2.
fn complaint(cache: &Path) -> String {
    let mut command = Command::new(root().join("tests/pytorch/install"));
    let output = command.arg("--found").env("GPUSIM_PYTORCH", cache).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(2), &b""[..]), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    said
}

#[test]
fn a_wheel_of_another_version_is_rejected_in_one_line() {
    let said = complaint(&wheel("__version__ = '2.14.1+cu132'\ncuda: Optional[str] = '13.2'\n"));
    assert!(said.contains("holds torch 2.14.1+cu132, and not 2.15.0: remove the folder"), "{said}");
}

#[test]
fn a_wheel_without_cuda_is_rejected_in_one_line() {
    let said = complaint(&wheel("__version__ = '2.15.0+cpu'\ncuda: Optional[str] = None\n"));
    assert!(said.contains("is not built for CUDA 13: remove the folder"), "{said}");
}

#[test]
fn a_folder_without_a_wheel_is_rejected_in_one_line() {
    let cache = wheel("");
    let torch = cache.join(format!("2.15.0-py{0}/lib/python{0}/site-packages/torch", version()));
    fs::remove_file(torch.join("version.py")).unwrap();
    let said = complaint(&cache);
    assert!(said.contains("holds no PyTorch: remove the folder"), "{said}");
}

#[test]
fn a_missing_wheel_is_not_downloaded_automatically() {
    let mut command = Command::new(root().join("tests/pytorch/install"));
    let output = command.arg("--found").env("GPUSIM_PYTORCH", scratch("wheel")).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(75), "{said}");
    assert!(said.contains("not installed: tests/pytorch/install brings it, a download of 540 MB"), "{said}");
}

#[test]
fn a_function_that_is_not_simulated_is_reported_in_one_line() {
    let cache = wheel("");
    let folder = cache.join(format!("2.15.0-py{}", version()));
    fs::create_dir_all(folder.join("stand-ins")).unwrap();
    let wanted = "cudaMalloc libcudart.so.13\ncudaNoSuchThing libcudart.so.13\n";
    fs::write(folder.join("stand-ins/cuda-functions"), wanted).unwrap();
    let mut command = Command::new(folder.join("bin/python"));
    let check = command.arg(root().join("tests/pytorch/stand_ins.py")).arg("--check");
    let output = check.args([&folder, crate::support::cuda()]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(
        String::from_utf8(output.stderr).unwrap(),
        "pytorch: the wheel calls cudaNoSuchThing of libcudart.so.13, which tests/gpusim lacks: it is to be written there\n"
    );
}

#[test]
#[ignore = "takes a third of a minute; .ci/long runs it"]
fn a_function_of_an_unsimulated_library_fails_and_is_reported_once() {
    let Some(folder) = folder() else { return };
    let program = scratch("stand-in").join("transform.py");
    let transform = "import torch\nfor _ in range(2):\n    try:\n        torch.fft.fft(torch.zeros(8, device='cuda'))\n    \
                     except RuntimeError as error:\n        print(str(error).splitlines()[0])\n";
    fs::write(&program, transform).unwrap();
    for way in [Way::None, Way::Injected] {
        let done = run(folder, program.to_str().unwrap(), way).ok();
        assert_eq!(done.stdout, "cuFFT error: CUFFT_NOT_SUPPORTED\n".repeat(2), "{}", done.stderr);
        let named = done.stderr.matches("gpusim: cufftCreate of libcufft.so.12 is not simulated").count();
        assert_eq!(named, 1, "{}", done.stderr);
    }
}
