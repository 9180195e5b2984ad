//! Measures how fast CPU stacks are matched with their launches, and how many stacks are matched with the right launch:
//! `cargo bench --bench merge`.
//!
//! The input has as many launches as the eBPF tutorial's input. The launches are on one thread, 2 to 32 us apart. The
//! clock that times the stacks differs from the clock that times the launches by 0, 20 or 100 us. One of every thousand
//! stacks is missing, so stacks cannot be matched with launches by their order alone. The tutorial's own algorithm
//! compares each stack with all launches. The tutorial's algorithm runs on a part of the launches only, and its time
//! for all launches is extrapolated.

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use gpuflame_traces::merge::{Launch, Method, Options, Stack, merge};

const LAUNCHES: usize = 92_732;
const ROUNDS: usize = 5;

#[allow(clippy::print_stdout)]
fn main() {
    let launches = launches();
    println!("{:34} {:>9}  {:>7}  in doubt", "92,732 launches", "ms", "right");
    for (name, offset, with_ids) in [
        ("by id, clocks 20 us apart", 20_000, true),
        ("by order, clocks 20 us apart", 20_000, false),
        ("by time, clocks agree", 0, false),
        ("by time, clocks 20 us apart", 20_000, false),
        ("by time, clocks 100 us apart", 100_000, false),
    ] {
        let lossy = name.starts_with("by time");
        let kept: Vec<usize> = (0..LAUNCHES).filter(|at| !lossy || at % 1000 != 7).collect();
        let stacks: Vec<Stack> = kept
            .iter()
            .map(|&at| Stack {
                time: launches[at].time + 700 - offset,
                process: 1,
                thread: 1,
                correlation: with_ids.then_some(launches[at].correlation),
                frames: 0,
            })
            .collect();
        let mut best = f64::MAX;
        let mut result = None;
        for _ in 0..ROUNDS {
            let begin = Instant::now();
            result = Some(merge(&stacks, &launches, &Options::default()));
            best = best.min(begin.elapsed().as_secs_f64());
        }
        let (pairs, report) = result.unwrap();
        let is_right =
            |(pair, at): &(&Option<(usize, Method)>, &usize)| pair.is_some_and(|(found, _)| found == **at);
        let right = pairs.iter().zip(&kept).filter(is_right).count();
        let share = 100.0 * right as f64 / kept.len() as f64;
        println!("{name:34} {:9.2}  {share:5.1} %  {:>8}", best * 1e3, report.doubtful);
    }
    println!("{:34} {:9.2}", "each looks at all launches, scaled", quadratic(&launches) * 1e3);
    let folder = std::env::temp_dir().join(format!("gpuflame-merge-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    write(&folder, &launches);
    println!("{:34} {:9.2}", "the command, from file to file", command(&folder) * 1e3);
    std::fs::remove_dir_all(&folder).unwrap();
}

fn launches() -> Vec<Launch> {
    let (mut state, mut time) = (7_u64, 1_761_680_628_903_821_454_i64);
    let launch = |correlation| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        time += 2_000 + (state >> 33) as i64 % 30_000;
        Launch { time, process: Some(1), thread: Some(1), correlation }
    };
    (1..=LAUNCHES as u64).map(launch).collect()
}

/// Returns the time, in seconds, that the first loop of the tutorial takes. The tutorial's first loop compares each
/// stack with all launches. The tutorial's second loop is not included.
fn quadratic(launches: &[Launch]) -> f64 {
    let part = 200;
    let begin = Instant::now();
    let mut sum = 0;
    for stack in &launches[..part] {
        let nearest =
            launches.iter().enumerate().min_by_key(|(_, launch)| launch.time.abs_diff(stack.time + 700));
        sum += nearest.map_or(0, |(at, _)| at);
    }
    std::hint::black_box(sum);
    begin.elapsed().as_secs_f64() * launches.len() as f64 / part as f64
}

fn write(folder: &Path, launches: &[Launch]) {
    let (mut cpu, mut gpu) = (String::new(), String::new());
    let micros = |nanos: i64| format!("{}.{:03}", nanos / 1000, nanos % 1000);
    for (at, Launch { time, correlation, .. }) in launches.iter().enumerate() {
        writeln!(cpu, "{} app 1 1 0 main;forward;layer{};cudaLaunchKernel", time + 700, at % 7).unwrap();
        let comma = if at == 0 { "" } else { ",\n" };
        write!(
            gpu,
            "{comma}{{\"name\":\"Runtime: cudaLaunchKernel\",\"ph\":\"X\",\"ts\":{},\"dur\":1.5,\"tid\":1,\"pid\":1,\
             \"cat\":\"CUDA_Runtime\",\"args\":{{\"correlationId\":{correlation}}}}},\n\
             {{\"name\":\"Kernel: k{}\",\"ph\":\"X\",\"ts\":{},\"dur\":1.25,\"tid\":\"GPU0_Stream7\",\"pid\":\"Device_0\",\
             \"cat\":\"GPU_Kernel\",\"args\":{{\"correlationId\":{correlation}}}}}",
            micros(*time),
            at % 7,
            micros(time + 5_000),
        )
        .unwrap();
    }
    std::fs::write(folder.join("cpu.txt"), cpu).unwrap();
    std::fs::write(folder.join("gpu.json"), format!("{{\"traceEvents\":[\n{gpu}\n]}}\n")).unwrap();
}

/// Returns the duration of the fastest run, in seconds.
fn command(folder: &Path) -> f64 {
    let run = |_| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpuflame"));
        command.args(["-q", "merge", "-c", "cpu.txt", "-g", "gpu.json", "-o", "merged.folded"]);
        let begin = Instant::now();
        assert!(command.current_dir(folder).stdout(Stdio::null()).status().unwrap().success());
        begin.elapsed().as_secs_f64()
    };
    (0..ROUNDS).map(run).fold(f64::MAX, f64::min)
}
