//! What a launch costs while gpuflame's window is closed, beside one with the same kinds of activities on and nobody who is
//! called back.

use std::path::Path;
use std::process::Command;
use std::{env, fs};

use crate::simulated::built;

/// Turns of both, one after another.
const PAIRS: usize = 5;

/// Nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Closed {
    pub(crate) without: f64,
    pub(crate) with: f64,
}

pub(crate) fn measure(cuda: &Path) -> Closed {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = cuda.join("closed");
    let mut compiler = Command::new("gcc");
    compiler.args(["-O2", "-g", "-std=gnu99", "-I"]).arg(root.join("tests/gpusim/include"));
    compiler.arg("-I").arg(root.join("include")).arg(root.join("tests/bench/launch/closed.c"));
    compiler.arg("-o").arg(&program).arg("-L").arg(cuda).args(["-lcudart", "-lcuda", "-ldl"]);
    assert!(compiler.status().is_ok_and(|status| status.success()), "gcc is needed, and compiles closed.c");
    let folder = cuda.join("closed-run");
    fs::create_dir_all(&folder).expect("the target folder is writable");
    let run = |mode: &str| -> f64 {
        let mut command = Command::new(&program);
        command.arg(mode).current_dir(&folder).env("LD_LIBRARY_PATH", cuda);
        for (name, _) in env::vars_os() {
            if name.to_string_lossy().starts_with("GPU") {
                command.env_remove(name);
            }
        }
        command.env_remove("CUDA_INJECTION64_PATH");
        if mode == "window" {
            command.env("CUDA_INJECTION64_PATH", built("libgpuflame.so")).env("GPUFLAME_ENABLED", "0");
            command.env("GPUFLAME_OUTPUT", "out-%p");
        }
        let output = command.output().expect("the program runs");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{mode}: {stderr}");
        assert!(mode == "kinds" || stderr.contains("gpuflame: closed: for "), "{stderr}");
        String::from_utf8_lossy(&output.stdout).trim().parse().expect("nanoseconds")
    };
    let mut closed = Closed { without: f64::MAX, with: f64::MAX };
    for _ in 0..PAIRS {
        closed.without = closed.without.min(run("kinds"));
        closed.with = closed.with.min(run("window"));
    }
    closed
}
