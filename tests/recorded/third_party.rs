//! Tests that a program which calls CUDA through NVIDIA's Python binding is profiled like any program.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{Done, Run, Way, root, skip};

/// Returns a Python interpreter with NVIDIA's CUDA binding. If this machine has no such interpreter, prints a sentence
/// and returns `None`.
fn python() -> Option<PathBuf> {
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("third-party");
    let output = Command::new(root().join("tests/third-party.sh")).arg(cache).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() {
        return Some(String::from_utf8(output.stdout).unwrap().trim_end().into());
    }
    skip(&format!("cuda-bindings cannot be installed from PyPI here\n{said}"));
    None
}

/// For each leaf frame, returns the number of launches, the GPU time, and the API calls that made the launches.
fn by_leaf(done: &Done) -> BTreeMap<String, (u64, Vec<String>)> {
    let mut leaves: BTreeMap<String, (u64, Vec<String>)> = BTreeMap::new();
    for (mut frames, weight) in done.folded() {
        let (leaf, call) = (frames.pop().unwrap(), frames.pop().unwrap());
        let (sum, calls) = leaves.entry(leaf).or_default();
        *sum += weight;
        if !calls.contains(&call) {
            calls.push(call);
        }
    }
    leaves
}

#[test]
fn launches_through_the_cuda_python_binding_are_exact() {
    let Some(python) = python() else { return };
    for (way, version) in [(Way::Injected, "13.0"), (Way::Preloaded, "12.9")] {
        let run = Run::new(&python, way).env("GPUSIM_CUPTI_VERSION", version);
        let done = run.arg(root().join("tests/programs/bindings.py")).ok();
        let truth = done.truth();
        // The program launches two kernels 200 times each, makes 20 copies and 20 fills, and copies the result back.
        assert_eq!(truth.count("count"), 441);
        assert_eq!((done.sum("launches").0, done.sum("launches").1["matched"]), (441, 441));
        assert_eq!((done.sum("activities").0, done.sum("activities").1["matched"]), (441, 441));

        let leaves = by_leaf(&done);
        let one = |call: &str| vec![call.to_owned()];
        assert_eq!(leaves["[GPU_Kernel]net::gemm_d777"], (200 * 777, one("cuLaunchKernel")));
        assert_eq!(leaves["[GPU_Kernel]relu_d301"], (200 * 301, one("cuLaunchKernelEx")));
        assert_eq!(leaves["[GPU_Memcpy HtoD]"].1, one("cuMemcpyHtoDAsync"));
        assert_eq!(leaves["[GPU_Memcpy DtoH]"].1, one("cuMemcpyDtoH"));
        assert_eq!(leaves["[GPU_Memset]"].1, one("cuMemsetD8Async"));
        let sum: u64 = leaves.values().map(|(nanos, _)| nanos).sum();
        assert_eq!(sum, truth.count("total_ns"), "{leaves:?}");

        let table = done.file("out.csv");
        for kernel in ["net::gemm_d777,0,200,155400,", "relu_d301,0,200,60200,"] {
            assert!(table.contains(&format!("kernel,{kernel}")), "{table}");
        }
    }
}

/// Kernels of `examples/python_frames.py`: the number of times that the kernel runs, its duration in ns, and the
/// functions of the example that lead to the launch, root first.
const LAUNCHED: [(&str, u64, u64, &[&str]); 5] = [
    ("load_d100", 10, 100, &["<module>", "main", "train", "batches", "launch"]),
    ("attention_d500", 30, 500, &["<module>", "main", "train", "step", "forward", "attention", "launch"]),
    ("mlp_d300", 30, 300, &["<module>", "main", "train", "step", "forward", "launch"]),
    ("copy_d200", 40, 200, &["prefetch", "launch"]),
    ("decode_d400", 16, 400, &["<module>", "main", "answer", "decode", "launch"]),
];

#[test]
#[cfg(target_arch = "x86_64")]
fn the_examples_kernels_appear_under_their_launching_python_functions() {
    let Some(python) = python() else { return };
    let example = root().join("examples/python_frames.py");
    let source = std::fs::read_to_string(&example).unwrap();
    let line_of = |function: &str| match function {
        "<module>" => 1,
        _ => 1 + source.lines().position(|line| line.contains(&format!("def {function}("))).unwrap(),
    };
    let done = Run::new(&python, Way::Injected).arg(&example).ok();
    let mut found = BTreeMap::new();
    for (frames, nanos) in done.folded() {
        // A frame of the example has the form `Block.forward (python_frames.py:52)`.
        let own =
            frames.iter().filter_map(|frame| frame.strip_suffix(')')?.split_once(" (python_frames.py:"));
        let own: Vec<_> = own
            .map(|(name, line)| (name.rsplit('.').next().unwrap().to_owned(), line.parse::<usize>().unwrap()))
            .collect();
        assert_eq!(frames[frames.len() - 2], "cuLaunchKernel");
        *found.entry((frames.last().unwrap().clone(), own)).or_default() += nanos;
    }
    let expected: BTreeMap<_, u64> = LAUNCHED
        .iter()
        .map(|(kernel, count, nanos, functions)| {
            let frames = functions.iter().map(|name| ((*name).to_owned(), line_of(name))).collect();
            ((format!("[GPU_Kernel]{kernel}"), frames), count * nanos)
        })
        .collect();
    assert_eq!(found, expected, "{}", done.stderr);
    assert!(done.ledger("lost: ")[0].contains(" python_dropped 0, python_unsure 0"), "{}", done.stderr);
}
