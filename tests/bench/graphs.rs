//! Measures the cost of a CUDA graph launch for the application, for graphs with different numbers of nodes, with
//! examples/graph_decode.c on the simulated stack. Prints one line per figure: `name value unit`.
//!
//! callgrind counts the instructions that run inside gpuflame's callback between two launches. The benchmark fails if
//! the number of instructions grows with the number of nodes. Times are read from the ledger (the counts that gpuflame
//! prints on exit). Times do grow with the number of nodes, because the simulated driver handles every node between two
//! launches, which evicts gpuflame's data from the CPU caches.
//!
//!     cargo bench --bench graphs
#![cfg(target_os = "linux")]

#[path = "staged.rs"]
mod staged;

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::Stdio;

use staged::{built, command, compiled, stage};

/// Sizes of the graph in layers of eight kernels, each with the number of tokens that are timed. A run delivers at most
/// 1.6 million activity records, because these records fit into the buffers even if the collector thread gets no CPU
/// time.
const SIZES: [(u32, u32); 3] = [(1, 20_000), (40, 5_000), (400, 500)];
/// Number of rounds. Each round measures all graph sizes once, and the best round of each size is used.
const TURNS: usize = 3;
/// Numbers of graph launches in a run. `MADE` is this number; `KNOWN_AFTER` is the number of launches after which the
/// launching stack is certainly cached. The capture of the graph visits many stacks that do not repeat, which raises
/// the back-off in `unwind/cache_backoff.rs`. Therefore the launching stack is not cached at first.
const MADE: u32 = 300;
const KNOWN_AFTER: u32 = 240;
/// Maximum ratio between the instructions per launch for the largest graph and those for the smallest graph.
const MOST: f64 = 1.01;

/// Runs the program, optionally under a tool such as callgrind. Returns its stderr.
fn run(tool: &[&str], program: &Path, folder: &Path, layers: u32, tokens: u32) -> String {
    let words = tool.iter().map(OsStr::new).chain([program.as_os_str()]).collect::<Vec<_>>();
    let mut command = command(words[0], folder);
    command
        .args(&words[1..])
        .args(["--layers", &layers.to_string(), "--tokens", &tokens.to_string()])
        .current_dir(folder)
        .env("CUDA_INJECTION64_PATH", built("libgpuflame.so"))
        .env("GPUFLAME_OUTPUT", "out-%p")
        .env("GPUFLAME_VERBOSE", "1")
        .stdin(Stdio::null());
    let output = command.output().expect("the program runs; instructions are counted by valgrind");
    let ledger = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{ledger}");
    let nodes = u64::from(layers) * 8 * u64::from(tokens);
    assert!(ledger.contains(&format!("graph activities {nodes} = created {nodes} ")), "{ledger}");
    ledger
}

/// Returns the median time that gpuflame's callback takes per graph launch, in ns.
fn nanoseconds(program: &Path, folder: &Path, layers: u32, tokens: u32) -> f64 {
    let ledger = run(&[], program, folder, layers, tokens);
    let line = ledger.lines().find_map(|line| line.strip_prefix("gpuflame: graph launches: "));
    let number = line.and_then(|line| line.split(' ').next()).and_then(|number| number.parse().ok());
    number.expect("the ledger has the cost of a graph launch")
}

/// Returns the number of instructions that gpuflame's callback executes per graph launch. The result is the median of
/// the instruction counts between two consecutive launches.
fn instructions(program: &Path, folder: &Path, layers: u32) -> f64 {
    let name = format!("callgrind.{layers}");
    let out = format!("--callgrind-out-file={}", folder.join(&name).display());
    let tool = [
        "valgrind",
        "--tool=callgrind",
        "--toggle-collect=*on_event*",
        "--dump-before=cudaGraphLaunch",
        &out,
    ];
    run(&tool, program, folder, layers, MADE);
    // callgrind starts a new output file at each launch. The counts before the first timed launch, and those after the
    // last timed launch, are in files that are not read here.
    let launches = KNOWN_AFTER..=MADE;
    let mut counts =
        launches.map(|launch| summary(&folder.join(format!("{name}.{launch}")))).collect::<Vec<_>>();
    counts.sort_unstable();
    counts[counts.len() / 2] as f64
}

/// Returns the total number of instructions in a file that callgrind wrote.
fn summary(file: &Path) -> u64 {
    let text = fs::read_to_string(file).expect("callgrind writes a file before each launch");
    let line = text.lines().find_map(|line| line.strip_prefix("totals: ")).expect("and a sum in it");
    line.trim().parse().expect("a number")
}

#[allow(clippy::print_stdout)]
fn main() {
    let folder = stage("graphs");
    let program = compiled("examples/graph_decode.c", &[], &folder);
    let counts = SIZES.map(|(layers, _)| instructions(&program, &folder, layers));
    let mut times = [f64::INFINITY; SIZES.len()];
    for _ in 0..TURNS {
        for ((layers, tokens), best) in SIZES.into_iter().zip(&mut times) {
            *best = best.min(nanoseconds(&program, &folder, layers, tokens));
        }
    }
    for (at, (layers, _)) in SIZES.iter().enumerate() {
        let nodes = 8 * layers;
        println!("graph_launch_{nodes}_nodes {:.0} instructions", counts[at]);
        println!("graph_launch_{nodes}_nodes {:.0} ns", times[at]);
    }
    let ratio = counts[2] / counts[0];
    println!("graph_launch_3200_to_8_nodes {ratio:.3} ratio_of_instructions");
    println!("graph_launch_3200_to_8_nodes {:.2} ratio_of_ns", times[2] / times[0]);
    // If the folder cannot be removed, the next `cargo clean` removes it.
    let _ = fs::remove_dir_all(folder);
    assert!(ratio <= MOST, "a launch of a graph takes more instructions if the graph has more nodes");
}
