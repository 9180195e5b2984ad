//! Watches NVIDIA's own CUDA runtime library on a machine without a GPU. The library's calls fail without a GPU, but
//! the probes still record them. `bpf-optional/tests/install` downloads this library.

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use support::{can_probe, command, compile, finish, root, scratch, skip};

/// Returns the folder of the CUDA runtime library, if the library was downloaded and can be watched.
fn runtime() -> Option<PathBuf> {
    let target = std::env::current_exe().unwrap().ancestors().nth(3).unwrap().to_owned();
    let folder = target.join("cudart/nvidia/cu13/lib");
    if !folder.exists() {
        skip("NVIDIA's runtime is not installed; run `bpf-optional/tests/install`");
        return None;
    }
    can_probe().then_some(folder)
}

/// Records the launches of a program. Returns the output of the run.
fn record(libraries: &Path, program: &Path, args: &[&str]) -> support::Ran {
    let (mut command, folder) = command(["record", "-E", "-o", "cpu.txt", "--"]);
    command.arg(program).args(args).env("LD_LIBRARY_PATH", libraries);
    finish(command, folder)
}

/// Compiles a program into which the static CUDA runtime is linked.
fn with_static_runtime(libraries: &Path) -> PathBuf {
    let program = scratch().join("direct");
    let compiled = Command::new("gcc")
        .args(["-g", "-O2", "-fno-omit-frame-pointer"])
        .arg(root().join("bpf-optional/tests/programs/direct.c"))
        .arg(libraries.join("libcudart_static.a"))
        .args(["-o".as_ref(), program.as_os_str()])
        .args(["-ldl", "-lpthread", "-lrt"])
        .status();
    assert!(compiled.unwrap().success());
    program
}

#[test]
fn failed_launches_are_recorded() {
    let Some(libraries) = runtime() else { return };
    let late = compile("bpf-optional/tests/programs/late.c", &[]);
    let ran = record(&libraries, &late, &["libcudart.so.13", "50"]);
    assert_eq!((ran.code, &*ran.stdout, ran.lines().len()), (0, "failed 50\n", 50), "{ran:?}");
}

#[test]
fn a_static_runtime_is_probed_if_the_program_has_symbols() {
    let Some(libraries) = runtime() else { return };
    let program = with_static_runtime(&libraries);
    let ran = record(&libraries, &program, &["9"]);
    assert_eq!((ran.code, ran.lines().len()), (0, 9), "{ran:?}");
    assert!(ran.lines()[0][5].ends_with("main;launch;cudaLaunchKernel"), "{ran:?}");

    assert!(Command::new("strip").arg(&program).status().unwrap().success());
    let ran = record(&libraries, &program, &["9"]);
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(ran.stderr.contains("nothing was probed"), "{ran:?}");
}
