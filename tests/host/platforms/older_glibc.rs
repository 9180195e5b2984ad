//! gpuflame runs with an old C library. The loader must find every symbol that gpuflame's library needs, and the
//! recording must contain exactly the work that ran.
//!
//! The programs and the simulated CUDA stack are linked to this machine's C library. `tests/older-glibc.py` patches
//! copies of these files so that they use functions of the older C library. gpuflame's library is not patched.

use std::env::join_paths;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{Run, Way, cuda, gpuflame, root, scratch, skip};

/// Source code of the functions that the older C library lacks.
const SHIM: &str = "\
struct stat;
int __xstat(int, const char *, struct stat *);
int __fxstat(int, int, struct stat *);
int stat64(const char *path, struct stat *found) { return __xstat(1, path, found); }
int fstat64(int file, struct stat *found) { return __fxstat(1, file, found); }
";

/// Returns the path of an older C library. If this machine has none, prints a sentence and returns `None`.
fn older() -> Option<PathBuf> {
    let output = Command::new(root().join("tests/older-glibc")).output().unwrap();
    if output.status.success() {
        return Some(String::from_utf8(output.stdout).unwrap().trim_end().into());
    }
    let why = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(75), "{why}");
    skip(&format!("no older C library is available: {why}"));
    None
}

fn gcc(folder: &Path, args: &[&str]) {
    let mut command = Command::new("gcc");
    command.current_dir(folder).args(args).arg("-I").arg(root().join("tests/gpusim/include"));
    command.arg("-L").arg(cuda()).arg("-L.").args(["-lcudart", "-lcuda", "-lpthread", "-ldl"]);
    assert!(command.status().unwrap().success(), "{command:?}");
}

#[test]
#[ignore = "downloads 3 MB; .ci/long runs it"]
fn everything_is_recorded_on_an_older_glibc() {
    let Some(older) = older() else { return };
    let (new, old) = (scratch("newer"), scratch("older"));
    // The start-up code of the older C library does not call the constructors of a main program that was linked with a
    // newer C library. Therefore the test puts the constructors into a shared library.
    let source = root().join("tests/programs/odd.c");
    gcc(&new, &["-g", "-O2", "-std=gnu99", "-shared", "-fPIC", "-o", "libodd.so", source.to_str().unwrap()]);
    let loader = format!("-Wl,--dynamic-linker={}", older.join("ld-linux-x86-64.so.2").display());
    gcc(&new, &["-Wl,--no-as-needed", "-o", "odd", &loader, "-lodd"]);
    fs::write(old.join("shim.c"), SHIM).unwrap();
    let mut shim = Command::new("gcc");
    shim.current_dir(&old).args(["-shared", "-fPIC", "-nostdlib", "-o", "shim.so", "shim.c"]);
    assert!(shim.status().unwrap().success());
    let mut patch = Command::new("python3");
    patch.arg(root().join("tests/older-glibc.py")).arg(&old).args(["libodd.so", "odd"]).current_dir(&new);
    for (name, soname) in
        [("cuda", "libcuda.so.1"), ("cudart", "libcudart.so.13"), ("cupti", "libcupti.so.13")]
    {
        let file = format!("libgpusim_{name}.so");
        patch.arg(gpuflame().with_file_name(&file));
        symlink(file, old.join(soname)).unwrap();
    }
    assert!(patch.status().unwrap().success());
    for way in [Way::None, Way::Injected, Way::Preloaded] {
        let list = [old.join("shim.so"), "libpthread.so.0".into(), "libdl.so.2".into()].into_iter();
        let list = list.chain((way == Way::Preloaded).then(gpuflame));
        let run = Run::new(&old.join("odd"), way).arg("plain").env("LD_PRELOAD", join_paths(list).unwrap());
        let done = run.env("LD_LIBRARY_PATH", join_paths([&older, &old]).unwrap()).done();
        assert_eq!(done.code, Some(7), "{way:?} {}", done.stderr);
        if way != Way::None {
            done.assert_exact();
        }
    }
}
