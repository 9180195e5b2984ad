//! Tests `gpuflame merge` on CPU and GPU traces in the formats of the eBPF tutorial.
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use crate::support::command::gpuflame;
use crate::support::scratch;

/// A made-up launch: the time and thread of its call, its stack, and the duration of its kernel.
#[derive(Clone, Copy)]
struct Truth {
    time: u64,
    thread: u32,
    stack: usize,
    nanos: u64,
}

const STACKS: [&str; 7] = [
    "_start;__libc_start_main;0x70c4;main;chat(int, char*);forward(T*, int);__device_stub__Z5accumPf(float*);cudaLaunchKernel",
    "_start;__libc_start_main;0x70c4;main;chat(int, char*);forward(T*, int);__device_stub__Z6matmulPf(float*);cudaLaunchKernel",
    "_start;__libc_start_main;0x70c4;main;forward(T*, int);rope;cudaLaunchKernel",
    "_start;__libc_start_main;0x70c4;main;forward(T*, int);attention;cudaLaunchKernel",
    "_start;__libc_start_main;0x70c4;main;forward(T*, int);swiglu;cudaLaunchKernel",
    "_start;__libc_start_main;0x70c4;main;forward(T*, int);argmax;cudaLaunchKernel",
    "main;warm;cudaLaunchKernel",
];

/// Returns pseudo-random numbers that are the same in every run.
fn chance(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

fn truth(count: usize, threads: u32) -> Vec<Truth> {
    let (mut state, mut time) = (7, 1_761_680_628_903_821_454_u64);
    (0..count)
        .map(|_| {
            time += 2_000 + chance(&mut state) % 30_000;
            let thread = 500 + (chance(&mut state) as u32) % threads;
            let stack = chance(&mut state) as usize % STACKS.len();
            Truth { time, thread, stack, nanos: 300 + chance(&mut state) % 90_000 }
        })
        .collect()
}

/// Writes the CPU stacks of those launches for which `keep` returns true. The time of each stack is `late` ns later
/// than the launch.
fn write_cpu(path: &Path, truth: &[Truth], late: i64, with_ids: bool, keep: impl Fn(usize) -> bool) {
    let mut text = String::new();
    for (at, launch) in truth.iter().enumerate().filter(|(at, _)| keep(*at)) {
        let id = if with_ids { format!(";[correlation {}]", at + 1) } else { String::new() };
        let time = launch.time.wrapping_add_signed(late);
        writeln!(text, "{time} pt_main thread 500 {} 1 {}{id}", launch.thread, STACKS[launch.stack]).unwrap();
    }
    fs::write(path, text).unwrap();
}

/// Writes the GPU trace in the tutorial's JSON format, with times in microseconds with three decimals.
fn write_gpu(path: &Path, truth: &[Truth]) {
    let mut events = Vec::new();
    let micros = |nanos: u64| format!("{}.{:03}", nanos / 1000, nanos % 1000);
    for (at, launch) in truth.iter().enumerate() {
        let (id, begin) = (at + 1, micros(launch.time));
        events.push(format!(
            "{{\"name\":\"Runtime: cudaLaunchKernel\",\"ph\":\"X\",\"ts\":{begin},\"dur\":1.5,\"tid\":{},\"pid\":500,\
             \"cat\":\"CUDA_Runtime\",\"args\":{{\"correlationId\":{id}}}}}",
            launch.thread
        ));
        events.push(format!(
            "{{\"name\":\"Kernel: k{}\",\"ph\":\"X\",\"ts\":{},\"dur\":{},\"tid\":\"GPU0_Stream7\",\"pid\":\"Device_0\",\
             \"cat\":\"GPU_Kernel\",\"args\":{{\"correlationId\":{id}}}}}",
            launch.stack,
            micros(launch.time + 5_000),
            micros(launch.nanos)
        ));
    }
    fs::write(path, format!("{{\"traceEvents\":[\n{}\n]}}\n", events.join(",\n"))).unwrap();
}

fn folded(path: &Path) -> BTreeMap<String, u64> {
    let text = fs::read_to_string(path).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert!(lines.is_sorted());
    lines
        .iter()
        .map(|line| line.rsplit_once(' ').unwrap())
        .map(|(s, n)| (s.to_owned(), n.parse().unwrap()))
        .collect()
}

/// Returns the expected output, in which every kernel is under the stack that launched it.
fn expected(truth: &[Truth]) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for launch in truth {
        let frames: Vec<_> = STACKS[launch.stack]
            .split(';')
            .filter(|frame| !matches!(*frame, "_start" | "__libc_start_main"))
            .collect();
        *sums.entry(format!("{};[GPU_Kernel]k{}", frames.join(";"), launch.stack)).or_default() +=
            launch.nanos;
    }
    sums
}

fn setting(count: usize, threads: u32) -> (PathBuf, Vec<Truth>) {
    let folder = scratch("merge");
    let truth = truth(count, threads);
    write_gpu(&folder.join("gpu.json"), &truth);
    (folder, truth)
}

fn merged(folder: &Path, more: &[&str]) -> (BTreeMap<String, u64>, String, String) {
    let args = ["merge", "-c", "cpu.txt", "-g", "gpu.json", "-o", "merged.folded", "-t", "10", "-s"];
    let ran = gpuflame(folder, args.iter().chain(more)).ok();
    (folded(&folder.join("merged.folded")), ran.stdout, ran.stderr)
}

#[test]
fn the_tutorials_92732_launches_merge_into_its_seven_stacks() {
    let (folder, truth) = setting(92_732, 1);
    write_cpu(&folder.join("cpu.txt"), &truth, 700, false, |_| true);
    let (lines, summary, _) = merged(&folder, &[]);
    assert_eq!(lines, expected(&truth));
    assert_eq!(lines.values().sum::<u64>(), truth.iter().map(|launch| launch.nanos).sum::<u64>());
    assert!(summary.contains("CPU stacks captured: 92732"), "{summary}");
    assert!(summary.contains("0 by id, 92732 by order, 0 by time"), "{summary}");
}

#[test]
fn each_threads_launches_are_matched_separately() {
    let (folder, truth) = setting(5_000, 8);
    // Every probe is delayed by 90 us, which is more than the time between two consecutive launches.
    write_cpu(&folder.join("cpu.txt"), &truth, 90_000, false, |_| true);
    assert_eq!(merged(&folder, &[]).0, expected(&truth));
}

#[test]
fn lost_stacks_leave_only_their_own_kernels_without_a_stack() {
    let (folder, truth) = setting(5_000, 1);
    let keep = |at: usize| at % 10 != 3;
    write_cpu(&folder.join("cpu.txt"), &truth, 700, false, keep);
    let (mut lines, summary, _) = merged(&folder, &[]);
    let kept: Vec<_> =
        truth.iter().enumerate().filter(|(at, _)| keep(*at)).map(|(_, launch)| *launch).collect();
    let lost: u64 =
        lines.iter().filter(|(stack, _)| stack.starts_with("[no launch stack];")).map(|(_, n)| n).sum();
    let all: u64 = truth.iter().map(|launch| launch.nanos).sum();
    assert_eq!(lost, all - kept.iter().map(|launch| launch.nanos).sum::<u64>());
    lines.retain(|stack, _| !stack.starts_with('['));
    assert_eq!(lines, expected(&kept));
    assert!(summary.contains("4500 by time"), "{summary}");
}

#[test]
fn matching_by_id_survives_clock_skew_and_matching_by_time_warns() {
    let (folder, truth) = setting(5_000, 1);
    write_cpu(&folder.join("cpu.txt"), &truth, -20_000, true, |at| at > 0);
    let (lines, summary, warning) = merged(&folder, &[]);
    let mut all_but_first = expected(&truth[1..]);
    all_but_first.insert(format!("[no launch stack];[GPU_Kernel]k{}", truth[0].stack), truth[0].nanos);
    assert_eq!(lines, all_but_first);
    assert!(
        summary.contains("4999 by id") && summary.contains("Doubtful (clocks 0 ns apart, gaps 0 ns): 0"),
        "{summary}"
    );
    assert!(!warning.contains("doubtful"), "{warning}");
    write_cpu(&folder.join("cpu.txt"), &truth, -20_000, false, |at| at > 0);
    let (_, _, warning) = merged(&folder, &[]);
    assert!(warning.contains("stacks matched without an id are doubtful"), "{warning}");
    let (lines, _, warning) = merged(&folder, &["--offset", "20"]);
    assert_eq!(lines, all_but_first, "with the right offset the result is right");
    assert!(!warning.contains("doubtful"), "{warning}");
}

#[test]
fn the_unit_option_sets_the_unit_of_the_merged_values() {
    let (folder, truth) = setting(100, 1);
    write_cpu(&folder.join("cpu.txt"), &truth, 0, false, |_| true);
    let counts: BTreeMap<String, u64> = merged(&folder, &["--unit", "count"]).0;
    assert_eq!(counts.values().sum::<u64>(), 100);
    let micros = merged(&folder, &["--unit", "us"]).0;
    for (stack, nanos) in expected(&truth) {
        assert_eq!(micros[&stack], (nanos + 500) / 1000);
    }
}

/// Returns the expected output of the tutorial's first script, computed with a simple, slow version of its algorithm.
fn as_the_script(truth: &[Truth], late: i64, tolerance: u64) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for stack in truth {
        let time = stack.time.wrapping_add_signed(late);
        let (mut best, mut least) = (None, tolerance);
        for launch in truth {
            if launch.time.abs_diff(time) < least {
                least = launch.time.abs_diff(time);
                best = Some(launch);
            }
        }
        let (mut frames, mut seen) = (Vec::new(), false);
        for frame in STACKS[stack.stack].split(';') {
            match frame {
                "_start" | "__libc_start_main" => {}
                _ if frame.contains("cudaLaunchKernel") || frame.contains("__device_stub__") => {
                    if !seen {
                        frames.push("cudaLaunchKernel".to_owned());
                    }
                    seen = true;
                }
                _ => frames.push(frame.to_owned()),
            }
        }
        frames.push(
            best.map_or("[GPU_Launch_Pending]".to_owned(), |launch| format!("[GPU_Kernel]k{}", launch.stack)),
        );
        *counts.entry(frames.join(";")).or_default() += 1;
    }
    counts
}

#[test]
fn seed1_compat_reproduces_the_errors_of_the_first_script() {
    let (folder, truth) = setting(1_500, 1);
    for (late, tolerance) in [(700, "10"), (-20_000, "10"), (9_000, "0.005")] {
        write_cpu(&folder.join("cpu.txt"), &truth, late, false, |_| true);
        let lines = merged(&folder, &["--seed1-compat", "-t", tolerance]);
        let nanos = (tolerance.parse::<f64>().unwrap() * 1e6) as u64;
        assert_eq!(lines.0, as_the_script(&truth, late, nanos), "{late} ns late, within {tolerance} ms");
    }
}

#[test]
fn missing_or_wrong_inputs_of_merge_are_reported_and_nothing_is_written() {
    let (folder, truth) = setting(10, 1);
    write_cpu(&folder.join("cpu.txt"), &truth, 0, false, |_| true);
    gpuflame(&folder, ["merge"]).fails(1, &["cpu_results.txt", "no such file"]);
    gpuflame(&folder, ["merge", "-c", "cpu.txt"]).fails(1, &["gpu_results.json", "no such file"]);
    gpuflame(&folder, ["merge", "-c", "gpu.json", "-g", "gpu.json"]).fails(1, &["not CPU stacks"]);
    gpuflame(&folder, ["merge", "-c", "cpu.txt", "-g", "cpu.txt"]).fails(1, &["not a GPU trace"]);
    let event = r#"{"ph": "X", "cat": "cpu_op", "name": "mm", "pid": 1, "tid": 1, "ts": 1, "dur": 2}"#;
    fs::write(folder.join("none.json"), format!("[{event}]")).unwrap();
    gpuflame(&folder, ["merge", "-c", "cpu.txt", "-g", "none.json"])
        .fails(1, &["no launches and no kernels"]);
    assert!(!folder.join("merged_trace.folded").exists());
}

#[test]
fn traces_with_a_base_time_match_the_stacks_and_unrelated_clocks_are_reported() {
    let folder = scratch("merge");
    let base = 1_700_000_000_000_000_000_u64;
    let mut stacks = String::new();
    let mut events = Vec::new();
    for at in 1..=4_u64 {
        stacks += &format!("{} app 1 1 0 main;f{at};cudaLaunchKernel\n", base + 1_000_000 * at);
        let call = 1000 * at + 2;
        events.push(format!(
            "{{\"ph\":\"X\",\"cat\":\"cuda_runtime\",\"name\":\"cudaLaunchKernel\",\"pid\":1,\"tid\":1,\"ts\":{call},\
             \"dur\":2,\"args\":{{\"correlation\":{at}}}}}"
        ));
        events.push(format!(
            "{{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"k\",\"pid\":0,\"tid\":7,\"ts\":{},\"dur\":5,\
             \"args\":{{\"correlation\":{at},\"device\":0,\"stream\":7}}}}",
            call + 10
        ));
    }
    fs::write(folder.join("cpu.txt"), stacks).unwrap();
    let write = |name: &str, base: u64| {
        let text = format!("{{\"baseTimeNanoseconds\":{base},\"traceEvents\":[{}]}}", events.join(","));
        fs::write(folder.join(name), text).unwrap();
    };
    write("based.json", base);
    let merge =
        |gpu: &str| gpuflame(&folder, ["merge", "-c", "cpu.txt", "-g", gpu, "-o", "-", "-t", "0.1"]).ok();
    let found = merge("based.json");
    let expected: String =
        (1..=4).map(|at| format!("main;f{at};cudaLaunchKernel;[GPU_Kernel]k 5000\n")).collect();
    assert_eq!(found.stdout, expected);
    assert!(found.stderr.contains("4 of 4 stacks") && found.stderr.contains("100.0 %"), "{}", found.stderr);
    // If the base time is missing, the offset between the two clocks is unknown, so `merge` uses the offset that fits
    // best.
    write("relative.json", 0);
    let more = fs::read_to_string(folder.join("cpu.txt")).unwrap()
        + &format!("{} app 1 1 0 main;g\n", base + 9_000_000);
    fs::write(folder.join("cpu.txt"), more).unwrap();
    let lost = merge("relative.json");
    assert!(
        lost.stderr.contains("0 of 5 stacks") && lost.stderr.contains("less than half"),
        "{}",
        lost.stderr
    );
    assert!(lost.stderr.contains("--offset -1699999999999998.0"), "{}", lost.stderr);
    gpuflame(&folder, ["merge", "-c", "nowhere.txt", "-g", "based.json"])
        .fails(1, &["CPU stacks (-c)", "nowhere.txt"]);
}

#[test]
fn lines_that_are_not_stacks_are_counted_and_the_first_is_reported() {
    let (folder, truth) = setting(100, 1);
    write_cpu(&folder.join("cpu.txt"), &truth, 700, false, |_| true);
    let mut lines: Vec<String> =
        fs::read_to_string(folder.join("cpu.txt")).unwrap().lines().map(str::to_owned).collect();
    lines.insert(7, "not a stack".to_owned());
    lines.insert(60, "1761680628903821454 python 500".to_owned());
    fs::write(folder.join("cpu.txt"), lines.join("\n")).unwrap();
    let (found, _, said) = merged(&folder, &[]);
    assert_eq!(found, expected(&truth));
    assert!(
        said.contains("skipped 2 of 102 lines (2.0 %)") && said.contains("the first is line 8"),
        "{said}"
    );
    gpuflame(&folder, ["merge", "-c", "nowhere.txt", "-g", "gpu.json"])
        .fails(1, &["CPU stacks (-c)", "nowhere.txt", "no such file"]);
}
