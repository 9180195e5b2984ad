//! Tests the examples. The test builds each example with the commands in its first lines. The results of each example
//! must equal the results in the truth file of the simulated CUDA stack.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::support::{Run, Way, compile, root, scratch, skip};

/// Returns compiler flags that include the headers of the simulated CUDA stack in place of CUDA's. The headers are
/// system headers to the compiler, so they cause no warnings.
fn as_system() -> [String; 2] {
    ["-isystem".to_owned(), root().join("tests/gpusim/include").display().to_string()]
}

pub(crate) fn example(source: &str, flags: &[&str]) -> PathBuf {
    let system = as_system();
    let flags: Vec<&str> = system.iter().map(String::as_str).chain(flags.iter().copied()).collect();
    compile(source, &flags)
}

#[test]
fn the_decode_loop_is_exact_with_every_cupti_and_with_one_thread_or_three() {
    let program = example("examples/llm_inference.c", &["-std=c99", "-O2"]);
    for (cupti, threads) in [("11.8", "1"), ("12.9", "3"), ("13.0", "1"), ("13.0", "3"), ("13.4", "3")] {
        let run = Run::new(&program, Way::Injected).env("GPUSIM_CUPTI_VERSION", cupti);
        let done = run.args(["--tokens", "24", "--threads", threads]).ok();
        done.assert_exact();
        assert!(done.truth().count("count") > 1000);
    }
}

#[test]
fn the_decode_loop_is_exact_with_and_without_frame_pointers() {
    for flag in ["-fno-omit-frame-pointer", "-fomit-frame-pointer"] {
        let program = example("examples/llm_inference.c", &["-std=c99", "-O2", flag]);
        Run::new(&program, Way::Injected).args(["--tokens", "8", "--threads", "3"]).ok().assert_exact();
    }
}

/// Asserts that only the launches in the program's recording window are recorded. If gpuflame is linked, it does not
/// see the launches before the window. If gpuflame is injected, it sees the launches before the window and leaves them
/// out.
fn assert_only_the_middle_is_recorded(program: &Path) {
    for (way, before) in [(Way::None, 0), (Way::Injected, 100), (Way::Preloaded, 100)] {
        let done = Run::new(program, way).env("GPUFLAME_ENABLED", "0").ok();
        let truth = done.truth();
        let inside: Vec<_> = truth.sums.iter().filter(|((site, _), _)| site.contains(";measure")).collect();
        let found = done.by_site();
        assert_eq!(found.iter().collect::<Vec<_>>(), inside, "{}", done.stderr);
        assert_eq!(inside.len(), 1, "{:?}", truth.sums);
        for side in ["launches", "activities"] {
            let (total, parts) = done.sum(side);
            assert_eq!((total, parts["matched"]), (before + 200, 100), "{way:?}\n{}", done.stderr);
            assert_eq!(parts["outside"], before + 100, "{way:?}\n{}", done.stderr);
        }
        assert!(done.stdout.contains("300 launches"), "{}", done.stdout);
    }
}

const STRICT: [&str; 4] = ["-O2", "-pedantic", "-DGPUSIM", "-DLINKED"];

#[test]
fn embedding_in_strict_c99_records_the_middle_hundred() {
    let flags = [&["-std=c99"], &STRICT[..]].concat();
    assert_only_the_middle_is_recorded(&example("examples/embed.c", &flags));
}

#[test]
fn embedding_in_strict_cpp11_records_the_middle_hundred() {
    let flags = [&["-std=c++11"], &STRICT[..]].concat();
    assert_only_the_middle_is_recorded(&example("examples/embed.cpp", &flags));
}

/// Returns the path of an example program that cargo has built.
pub(crate) fn rust_example(name: &str) -> PathBuf {
    let deps = std::env::current_exe().unwrap();
    let program = deps.parent().and_then(Path::parent).unwrap().join("examples").join(name);
    // `cargo test --test project` alone does not build the example programs.
    assert!(program.exists(), "`cargo test` builds the examples, as does `cargo build --example {name}`");
    program
}

#[test]
fn embedding_in_rust_records_the_middle_hundred_and_prints_statistics_during_the_run() {
    let done = Run::new(&rust_example("embed"), Way::None).ok();
    let (launches, parts) = done.sum("launches");
    assert_eq!((launches, parts["matched"], parts["outside"]), (150, 100, 50), "{}", done.stderr);
    let mut stacks = done.folded();
    stacks.sort();
    for ((frames, nanos), range) in stacks.iter().zip(["[range]first half", "[range]second half"]) {
        assert!(frames.iter().any(|frame| frame == "embed::measure"), "{frames:?}");
        assert_eq!((frames[frames.len() - 2].as_str(), *nanos), (range, stacks[0].1));
    }
    let busy = 2 * stacks[0].1;
    let told = format!(
        "launches 100 = matched 100 + launch_pending 0 + outside 0 + dropped 0; the GPU was busy for {busy} ns in 2 steps\n"
    );
    assert_eq!((stacks.len(), done.stdout.as_str()), (2, told.as_str()));
}

/// Returns a command that runs the demo in `folder`.
fn demo(folder: &Path) -> Command {
    let mut command = Command::new(rust_example("demo"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("GPU")) {
        command.env_remove(name);
    }
    command.current_dir(folder);
    command
}

#[test]
fn the_demo_succeeds_if_the_reader_of_its_stdout_is_gone() {
    let folder = scratch("demo-unread");
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let Output { status, stderr, .. } =
        demo(&folder).stdout(writer).stderr(std::process::Stdio::piped()).output().unwrap();
    assert!(status.success(), "{status}\n{}", String::from_utf8_lossy(&stderr));
    let drawn = folder.read_dir().unwrap().filter(|entry| {
        entry.as_ref().unwrap().path().extension().is_some_and(|extension| extension == "svg")
    });
    assert_eq!(drawn.count(), 2);
}

#[test]
fn the_demo_writes_its_files_and_prints_the_cuda_stack_it_used() {
    let folder = scratch("demo");
    let Output { status, stdout, stderr } = demo(&folder).output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{status}\n{stdout}{stderr}");
    let is_simulated = stdout.contains("on the simulated CUDA stack, whose times are made up");
    assert!(is_simulated || Path::new("/dev/nvidiactl").exists(), "{stdout}{stderr}");
    assert!(is_simulated || stdout.contains("recording a decode loop on "), "{stdout}");
    let mut suffixes: Vec<_> = folder.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    suffixes.sort();
    let mut suffixes: Vec<_> =
        suffixes.iter().map(|path| path.extension().unwrap().to_str().unwrap()).collect();
    suffixes.sort_unstable();
    assert_eq!(suffixes, ["csv", "folded", "folded", "gfr", "json", "svg", "svg"], "{stdout}{stderr}");
    assert!(stderr.contains("gpuflame: complete: ") && stdout.contains("matmul_kernel"), "{stdout}{stderr}");
}

/// Builds an example with the script `examples/build-cuda.sh`. Returns `None` if this machine has no nvcc and cannot install
/// one.
fn with_nvcc(name: &str) -> Option<PathBuf> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let script = root().join("examples/build-cuda.sh");
    let output = Command::new(script).env("CARGO_TARGET_DIR", target).output().unwrap();
    if output.status.success() {
        return Some(target.join("examples-cuda").join(name));
    }
    let reason = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let has_no_nvcc = reason.contains("cannot install nvcc") || reason.contains("virtual environment");
    assert!(has_no_nvcc, "{reason}");
    skip(&format!("nvcc is not available: {reason}"));
    None
}

#[test]
fn the_cuda_program_that_nvcc_builds_is_exact_on_the_simulated_stack() {
    let Some(program) = with_nvcc("llm_inference") else { return };
    for threads in ["1", "3"] {
        let run = Run::new(&program, Way::Injected);
        let done = run.args(["--tokens", "16", "--threads", threads]).ok();
        done.assert_exact_as(&done.truth().without_stubs());
    }
}

#[test]
fn a_graph_that_nvcc_captures_shows_the_functions_of_its_layers() {
    let Some(program) = with_nvcc("graph_decode") else { return };
    let done = Run::new(&program, Way::Injected).ok();
    // The program runs 40 layers of 8 kernels for each of 1,000 tokens.
    let (nodes, parts) = done.sum("graph activities");
    assert_eq!((nodes, parts["created"]), (320_000, 320_000), "{}", done.stderr);
    // Each graph node takes 10 us per token. For the second half of the tokens, the graph was captured again.
    let each = 500 * 40 * 10_000;
    let mut expected = Vec::new();
    for caller in ["prepare", "grow_cache"] {
        for (function, kernels) in [
            ("attention", ["norm", "qkv", "scores", "softmax", "values"].as_slice()),
            ("feed_forward", ["norm", "up", "down"].as_slice()),
        ] {
            let layer =
                format!("main;generate;cudaGraphLaunch;[graph];{caller};capture;step;layer;{function}");
            let line = |kernel| format!("{layer};cudaLaunchKernel;[GPU_Kernel]{kernel}_kernel {each}");
            expected.extend(kernels.iter().map(line));
        }
    }
    expected.sort();
    let file = done.file("out.folded");
    let mut found: Vec<_> = file.lines().collect();
    found.sort_unstable();
    assert_eq!(found, expected, "{}", done.stderr);
}
