//! Everything at once that programs do to an unwinder, for a while: nothing crashes or hangs, the ledger is exact, and
//! names are right or said to be unknown. With `GPUFLAME_STRESS=600`, as `.ci/long` does it, for ten minutes each.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use crate::support::{Done, Run, Way, compile, gpuflame, root, scratch};

/// The function that launches each kernel.
const PLACES: [(&str, &str); 5] = [
    ("fiber_d1000", "on_a_fiber"),
    ("range_d1000", "in_ranges"),
    ("wrong_d1000", "under_wrong"),
    ("plugin0_d1000", "inner_red"),
    ("plugin1_d1000", "inner_green"),
];

fn plugin(name: &str) -> PathBuf {
    let library = scratch("plugin").join(format!("{name}.so"));
    let mut command = Command::new("gcc");
    command.args(["-g", "-O2", "-shared", "-fPIC", "-fomit-frame-pointer"]).arg(format!("-DNAME={name}"));
    command.arg("-I").arg(root().join("tests/gpusim/include"));
    command.arg(root().join("tests/programs/plugin.c")).arg("-o").arg(&library);
    assert!(command.status().unwrap().success());
    library
}

fn seconds() -> String {
    std::env::var("GPUFLAME_STRESS").unwrap_or_else(|_| "8".to_owned())
}

fn stressed(flags: &[&str]) -> Done {
    let program = compile("tests/programs/stress.c", flags);
    let run = Run::new(&program, Way::Injected).env("NVTX_INJECTION64_PATH", gpuflame()).env(
        "ASAN_OPTIONS",
        // Stacks made by hand are none that it knows; and a crash is to look like one.
        "detect_stack_use_after_return=0:detect_leaks=0:handle_segv=0",
    );
    run.arg(seconds()).arg(plugin("red")).arg(plugin("green")).ok()
}

fn assert_right(done: &Done) {
    let launched: BTreeMap<&str, u64> = done
        .stdout
        .lines()
        .map(|line| line.split_once(' ').unwrap())
        .map(|(kernel, count)| (kernel, count.parse().unwrap()))
        .collect();
    let all: u64 = launched.values().sum();
    assert!(launched.len() == 5 && launched.values().all(|count| *count > 100), "{launched:?}");
    let (launches, parts) = done.sum("launches");
    assert_eq!((launches, parts["matched"], parts["dropped"]), (all, all, 0), "{}", done.stderr);
    let (activities, parts) = done.sum("activities");
    assert_eq!((activities, parts["matched"]), (all, all), "{}", done.stderr);
    let mut nanos = BTreeMap::new();
    for (frames, weight) in done.folded() {
        let kernel = frames.last().unwrap().strip_prefix("[GPU_Kernel]").unwrap();
        *nanos.entry(kernel.to_owned()).or_insert(0) += weight;
        for (of, place) in PLACES {
            let is_there = frames.iter().any(|frame| frame == place);
            assert!(of == kernel || !is_there, "{kernel} was not launched by {place}: {frames:?}");
            // The program's own code is always known; a plugin's may not be.
            assert!(of != kernel || is_there || of.starts_with("plugin"), "{kernel}: {frames:?}");
        }
    }
    let expected = launched.iter().map(|(kernel, count)| ((*kernel).to_owned(), count * 1000)).collect();
    assert_eq!(nanos, expected, "{}", done.stderr);
}

#[test]
fn a_program_that_does_everything_at_once_is_recorded_to_the_nanosecond() {
    assert_right(&stressed(&["-O2"]));
}

#[test]
fn and_so_it_is_with_the_address_sanitizer() {
    assert_right(&stressed(&["-O1", "-fsanitize=address"]));
}
