//! If a program unloads CUDA's libraries while it is recorded, the program survives, and all its launches are in the
//! outputs.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::{Done, Run, Way, compile, stage};

const RUNTIME: &str = "libcudart.so.13";
const CUPTI: &str = "libcupti.so.13";

/// Creates a simulated CUDA stack whose runtime and CUPTI are unloaded when their last handle is closed, as NVIDIA's
/// libraries are. In other tests, these libraries are marked as not unloadable.
fn unloadable() -> PathBuf {
    let folder = stage("unloadable", &[CUPTI]);
    for name in [RUNTIME, CUPTI] {
        let path = folder.join(name);
        let mut library = fs::read(&path).unwrap();
        let entry = dynamic_entry(&library, 0x6fff_fffb).expect("the library has DT_FLAGS_1");
        assert_ne!(library[entry] & 8, 0, "DF_1_NODELETE");
        library[entry] &= !8;
        // The library file in this folder is a link to the library that all tests share. The test removes the link
        // before it changes the file, so that the shared library stays unchanged.
        fs::remove_file(&path).unwrap();
        fs::write(&path, library).unwrap();
    }
    folder
}

/// Returns the offset in a library's file at which the value of the dynamic entry with this tag is.
fn dynamic_entry(library: &[u8], tag: u64) -> Option<usize> {
    const DYNAMIC: u64 = 2;
    let word = |at: usize, bytes: usize| {
        let mut word = [0; 8];
        word[..bytes].copy_from_slice(&library[at..at + bytes]);
        u64::from_le_bytes(word)
    };
    let (headers, size, count) = (word(32, 8) as usize, word(54, 2) as usize, word(56, 2) as usize);
    let dynamic = (0..count).map(|at| headers + at * size).find(|&at| word(at, 4) == DYNAMIC)?;
    let (start, length) = (word(dynamic + 8, 8) as usize, word(dynamic + 32, 8) as usize);
    (start..start + length).step_by(16).find(|&at| word(at, 8) == tag).map(|at| at + 8)
}

fn run(program: &Path, libraries: &Path, way: Way, rounds: u32) -> Done {
    let run = Run::new(program, way).with_libraries(libraries).arg(rounds.to_string());
    run.args([RUNTIME, CUPTI]).env("GPUFLAME_FORMATS", "folded,activities,gfr").ok()
}

/// If a program unloads the CUDA runtime, this removes code that was on stacks and that made CUPTI's callbacks.
/// gpuflame also holds a handle of CUPTI, so CUPTI stays loaded.
#[test]
fn unloading_the_runtime_and_cupti_repeatedly_keeps_the_sums_exact() {
    const ROUNDS: u32 = 50;
    let program = compile("tests/programs/unloads.c", &["-O2", "-Wl,--as-needed"]);
    let libraries = unloadable();
    let alone = run(&program, &libraries, Way::None, ROUNDS);
    assert_eq!(alone.stdout, format!("{ROUNDS} {ROUNDS}\n"), "without gpuflame both libraries are unloaded");
    for way in [Way::Injected, Way::Preloaded] {
        let done = run(&program, &libraries, way, ROUNDS);
        assert_eq!(done.stdout, format!("{ROUNDS} 0\n"), "{}", done.stderr);
        assert_eq!(done.sum("launches").0, u64::from(ROUNDS) * 100, "{}", done.stderr);
        done.assert_exact();
    }
}
