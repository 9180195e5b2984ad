//! Tests a program that does everything that makes unwinding hard, at the same time. The tests check that the program
//! neither crashes nor hangs, that the ledger is exact, and that function names are right or marked as unknown.
//! `GPUFLAME_STRESS=600`, as in `.ci/long`, runs each test for ten minutes.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use crate::support::{Done, Run, Truth, Way, compile, gpuflame, root, scratch};

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
        // The address sanitizer does not know the stacks that the program allocates itself. The sanitizer's SIGSEGV
        // handler would hide a crash of the program.
        "detect_stack_use_after_return=0:detect_leaks=0:handle_segv=0",
    );
    run.arg(seconds()).arg(plugin("red")).arg(plugin("green")).ok()
}

/// Returns the number of times that the program did each action, keyed by the action's name. The program prints these
/// counts at its end.
fn counts(done: &Done) -> BTreeMap<&str, u64> {
    let parts = done.stdout.lines().filter_map(|line| line.split_once(' '));
    parts.map(|(what, count)| (what, count.parse().unwrap())).collect()
}

/// Returns the call site in a stack, and the name of the launched GPU work in the truth file. The search begins at the
/// leaf frame, because some stacks do not reach a root frame: hand-made stacks, and stacks with wrong unwind
/// information. The module of a frame may be unknown only if it is a plugin.
fn site_of(mut frames: Vec<String>, truth: &Truth) -> (String, String) {
    let work = frames.pop().unwrap();
    frames.retain(|frame| frame != "cudaLaunchKernel");
    let is_unknown =
        work.contains("plugin") && frames.iter().any(|frame| frame.starts_with("[unknown module]"));
    let stack = frames.join(";");
    let is_at = |site: &str| is_unknown || stack == site || stack.ends_with(&format!(";{site}"));
    let site = truth.sums.keys().find(|(site, of)| *of == work && is_at(site));
    site.unwrap_or_else(|| panic!("{work} was not launched at {stack}")).clone()
}

fn assert_right(done: &Done) {
    let counts = counts(done);
    let launched: u64 = counts.iter().filter(|(what, _)| what.ends_with("_d1000")).map(|(_, n)| n).sum();
    assert!(counts.len() == 11 && counts.values().all(|count| *count > 20), "{counts:?}");
    let truth = done.truth();
    assert_eq!(truth.count("count"), launched);
    for word in ["launches", "activities"] {
        let (all, parts) = done.sum(word);
        assert_eq!((all, parts["matched"]), (launched, launched), "{}", done.stderr);
    }
    let mut found = BTreeMap::new();
    for (frames, nanos) in done.folded() {
        *found.entry(site_of(frames, &truth)).or_insert(0) += nanos;
    }
    assert_eq!(found, truth.sums, "{}", done.stderr);
}

#[test]
fn a_program_that_does_everything_at_once_is_recorded_exactly() {
    assert_right(&stressed(&["-O2"]));
}

#[test]
fn a_program_that_does_everything_at_once_is_exact_under_the_address_sanitizer() {
    assert_right(&stressed(&["-O1", "-fsanitize=address"]));
}
