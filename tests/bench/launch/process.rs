//! What a whole process pays: 200,000 launches at a depth of 64 from one thread, with gpuflame and without,
//! from exec to exit, outputs written.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;
use std::{env, fs};

use crate::simulated::built;

const LAUNCHES: u32 = 200_000;
/// Pairs of runs, with and without.
const PAIRS: usize = 20;

/// Nanoseconds a launch that gpuflame adds to a process. The best run with it less the best without: whatever
/// else the machine does only makes a run slower.
pub(crate) fn added_per_launch(cuda: &Path) -> f64 {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = cuda.join("launches");
    let status = Command::new("gcc")
        .args(["-O2", "-g", "-std=gnu99", "-fomit-frame-pointer", "-I"])
        .arg(root.join("tests/gpusim/include"))
        .arg(root.join("tests/bench/launch/launches.c"))
        .arg("-o")
        .arg(&program)
        .arg("-L")
        .arg(cuda)
        .args(["-lcudart", "-lcuda"])
        .status();
    assert!(status.is_ok_and(|status| status.success()), "gcc is needed, and compiles launches.c");
    let folder = cuda.join("run");
    fs::create_dir_all(&folder).expect("the target folder is writable");
    let run = |with: bool| {
        let mut command = Command::new(&program);
        command
            .arg(LAUNCHES.to_string())
            .current_dir(&folder)
            .env("LD_LIBRARY_PATH", cuda)
            .stdin(Stdio::null());
        for (name, _) in env::vars_os() {
            if name.to_string_lossy().starts_with("GPU") {
                command.env_remove(name);
            }
        }
        command.env_remove("CUDA_INJECTION64_PATH");
        if with {
            command.env("CUDA_INJECTION64_PATH", built("libgpuflame.so")).env("GPUFLAME_OUTPUT", "out-%p");
        }
        command.stderr(Stdio::piped());
        let began = Instant::now();
        let output = command.output().expect("the program runs");
        let nanoseconds = began.elapsed().as_nanos() as f64;
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        if with {
            let ledger = String::from_utf8_lossy(&output.stderr);
            assert!(ledger.contains(&format!("launches {LAUNCHES} = matched {LAUNCHES} ")), "{ledger}");
        }
        nanoseconds
    };
    let (mut without, mut with) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..PAIRS {
        (without, with) = (without.min(run(false)), with.min(run(true)));
    }
    (with - without) / f64::from(LAUNCHES)
}
