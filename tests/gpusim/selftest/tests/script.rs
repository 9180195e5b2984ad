//! Tests the script `tests/gpusim/run`, which starts programs on the simulated CUDA stack for users who do not write
//! Rust tests.

use gpusim_selftest::{deps, program, scratch};
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn run(args: &[&str], version: &str) -> Output {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../run");
    let mut command = Command::new(script);
    command.args(args).env("GPUSIM_LIBS", deps()).env("CARGO_TARGET_DIR", scratch().join("script"));
    command.env("GPUSIM_CUPTI_VERSION", version).output().expect("a shell")
}

#[test]
fn the_run_script_keeps_the_programs_exit_code_and_output() {
    let program = program("init");
    let output = run(&[program.to_str().unwrap(), "runtime"], "13.0");
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.stdout, b"count 0 1\nerror cudaSuccess\n");
    assert_eq!(run(&["/bin/sh", "-c", "exit 7"], "13.0").status.code(), Some(7));
}

#[test]
fn the_run_script_stages_the_versions_libraries_and_prints_their_folder() {
    let dir = scratch().join("staged");
    for (version, cupti) in
        [("11.8", "libcupti.so.11.8"), ("12.9", "libcupti.so.12"), ("13.4", "libcupti.so.13")]
    {
        let output = run(&["--stage", dir.to_str().unwrap()], version);
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), dir.to_str().unwrap());
        assert!(output.stderr.is_empty());
        let mut names: Vec<String> =
            fs::read_dir(&dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort_unstable();
        let runtimes = ["libcudart.so", "libcudart.so.11.0", "libcudart.so.12", "libcudart.so.13"];
        let expected = [&["libcuda.so", "libcuda.so.1"][..], &runtimes, &[cupti]].concat();
        assert_eq!(names, expected);
    }
}
