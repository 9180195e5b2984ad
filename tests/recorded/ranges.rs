//! Tests NVTX ranges and gpuflame's user ranges as frames between the CPU stack and the kernel. The reference is the
//! list of open ranges that the program itself keeps for each launch.

use std::collections::BTreeMap;

use crate::support::{Done, Run, Way, command, compile, gpuflame};
use serde_json::Value;

/// GPU time in ns, keyed by stack. The stacks contain neither the API call nor the kernel.
type Sums = BTreeMap<String, u64>;

fn found(done: &Done) -> Sums {
    let mut sums = Sums::new();
    for (frames, weight) in done.folded() {
        let kept = frames[..frames.len() - 1].iter().filter(|frame| !frame.starts_with("cuda"));
        *sums.entry(kept.map(String::as_str).collect::<Vec<_>>().join(";")).or_default() += weight;
    }
    sums
}

/// Returns the GPU time of the work that ran, keyed by the call site that the program set. For a graph node, the key is
/// the launch site followed by the creation site.
fn truth(done: &Done) -> Sums {
    let mut sums = Sums::new();
    for line in done.file("truth.json").lines() {
        let row: Value = serde_json::from_str(line).unwrap();
        if let Some(site) = row["site"].as_str() {
            let created =
                row["created"].as_str().and_then(|created| created.strip_prefix("main;with_a_graph;"));
            let site = created.map_or(site.to_owned(), |created| format!("{site};[graph];{created}"));
            *sums.entry(site).or_default() += row["total_ns"].as_u64().unwrap();
        }
    }
    sums
}

/// Returns the number of ranges that are not shown exactly, from the ledger.
fn dropped(done: &Done) -> u64 {
    let lost = done.ledger("lost:");
    let (_, rest) = lost[0].split_once("ranges_dropped ").unwrap();
    rest.split(',').next().unwrap().parse().unwrap()
}

fn ranges(flags: &[&str]) -> Run {
    let program = compile("tests/programs/ranges.c", &[&["-O2"], flags].concat());
    Run::new(&program, Way::Injected).env("NVTX_INJECTION64_PATH", gpuflame())
}

#[test]
fn each_launch_appears_under_the_open_ranges_of_its_thread() {
    let done = ranges(&[]).args(["--steps", "50"]).ok();
    assert_eq!(found(&done), truth(&done), "{}", done.stderr);
    assert!(found(&done).contains_key("main;in_domains;[range]inside;[range net]gather； all"));
    let stack =
        done.folded().into_iter().find(|(frames, _)| frames.iter().any(|f| f == "[range]layer-0")).unwrap().0;
    let expected =
        ["main", "pushed", "cudaLaunchKernel", "[range]step", "[range]layer-0", "[GPU_Kernel]work_d1000"];
    assert_eq!(stack, expected);
}

#[test]
fn user_ranges_and_nvtx_ranges_share_one_stack() {
    let done = ranges(&["-DLINKED"]).ok();
    assert_eq!(found(&done), truth(&done), "{}", done.stderr);
}

#[test]
fn preloading_is_enough_for_both_injections() {
    let program = compile("tests/programs/ranges.c", &["-O2"]);
    let done = Run::new(&program, Way::Preloaded).args(["--tracked", "1"]).ok();
    assert_eq!(found(&done), truth(&done), "{}", done.stderr);
}

#[test]
fn ranges_can_be_disabled_entirely_or_by_domain() {
    let without = |sums: Sums, is_out: &dyn Fn(&str) -> bool| {
        let mut left = Sums::new();
        for (site, weight) in sums {
            let frames: Vec<_> = site.split(';').filter(|frame| !is_out(frame)).collect();
            *left.entry(frames.join(";")).or_default() += weight;
        }
        left
    };
    let done = ranges(&[]).args(["--tracked", "0"]).env("GPUFLAME_NVTX", "0").ok();
    assert_eq!(found(&done), without(truth(&done), &|frame| frame.starts_with("[range")));
    let done = ranges(&[]).env("GPUFLAME_NVTX", "-noise").ok();
    assert_eq!(found(&done), without(truth(&done), &|frame| frame == "[range noise]noise"));
}

#[test]
fn ranges_nested_too_deeply_are_counted_and_outer_ranges_stay_balanced() {
    let done = ranges(&[]).args(["--deep", "200"]).ok();
    let stack = |range: usize| format!("main;deep{}", ";[range]deeper".repeat(range));
    let found = found(&done);
    assert_eq!(found.get(&stack(128)), Some(&1000), "{found:#?}");
    assert_eq!(found.get(&stack(0)), Some(&1000));
    assert_eq!(dropped(&done), 72, "{}", done.stderr);
}

#[test]
fn range_names_above_the_maximum_share_one_label() {
    let done = ranges(&[]).args(["--names", "70000"]).ok();
    let found = found(&done);
    assert_eq!(found.get("main;named;[range]item-1"), Some(&1000));
    // Other functions of the program use some of the 65,536 possible range names before this function runs. Therefore
    // fewer than 65,536 names are left for this function.
    let others = found["main;named;[range](one of too many names)"];
    let named = found.keys().filter(|site| site.starts_with("main;named;[range]item")).count() as u64;
    assert_eq!((named + others / 1000, others % 1000), (70_000, 0));
    assert!(named > 65_000 && others > 4_000_000, "{named} {others}");
    assert_eq!(dropped(&done), others / 1000, "{}", done.stderr);
}

#[test]
fn a_recording_keeps_the_ranges_for_the_flamegraph_command() {
    let done = ranges(&[]).env("GPUFLAME_FORMATS", "folded,gfr").ok();
    let again = command::gpuflame(&done.folder, ["flamegraph", "out.gfr", "--format", "folded"]).ok();
    assert_eq!(again.stdout, done.file("out.folded"));
}
