//! Measures the cost of a launch while gpuflame's recording window is closed. For comparison, it measures the cost of a
//! launch without gpuflame, with the same activity kinds enabled and no callbacks.

use std::fs;
use std::path::Path;

use crate::staged::{built, command, compiled};

/// Number of turns. Each turn runs the program with gpuflame and without gpuflame, one after the other.
const PAIRS: usize = 5;

/// Cost of a launch in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Closed {
    pub(crate) without: f64,
    pub(crate) with: f64,
}

pub(crate) fn measure(cuda: &Path) -> Closed {
    let include = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/../../include");
    let program = compiled("tests/bench/launch/closed.c", &[include], cuda);
    let folder = cuda.join("closed-run");
    fs::create_dir_all(&folder).expect("the target folder is writable");
    let run = |mode: &str| -> f64 {
        let mut command = command(&program, cuda);
        command.arg(mode).current_dir(&folder);
        if mode == "window" {
            command.env("CUDA_INJECTION64_PATH", built("libgpuflame.so")).env("GPUFLAME_ENABLED", "0");
            // With `GPUFLAME_VERBOSE`, the process prints the ledger, which contains how long the window was closed.
            command.env("GPUFLAME_OUTPUT", "out-%p").env("GPUFLAME_VERBOSE", "1");
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
