//! Tests launches through functions that are generated at run time, have no unwind information and keep arbitrary
//! values in rbp. Other launches are on stacks whose pages are mapped and unmapped during the run. The exit status must
//! be the same as without gpuflame, and stacks must be complete.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::support::{Done, Run, Way, compile};

const CODE: i32 = 7;
const RUNS: usize = 20;

fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM
        .get_or_init(|| compile("tests/programs/odd_frames.c", &["-O2", "-fomit-frame-pointer", "-pthread"]))
}

/// Runs the program `RUNS` times and asserts that its exit status is the same as without gpuflame.
fn runs(how: &str) -> Vec<Done> {
    assert_eq!(Run::new(program(), Way::None).arg(how).done().code, Some(CODE));
    let run = |_| {
        let done = Run::new(program(), Way::Injected).arg(how).done();
        assert_eq!((done.code, done.signal), (Some(CODE), None), "{how}\n{}", done.stderr);
        let (launches, parts) = done.sum("launches");
        assert_eq!(parts["matched"], launches, "{}", done.stderr);
        done
    };
    (0..RUNS).map(run).collect()
}

/// Returns the GPU time in ns of the stacks that reach `main`, and of all stacks.
fn whole(done: &Done) -> (u64, u64) {
    let stacks = done.folded();
    let is_whole = |frames: &[String]| frames[0] == "main";
    let whole = stacks.iter().filter(|(frames, _)| is_whole(frames)).map(|(_, nanos)| nanos);
    (whole.sum(), stacks.iter().map(|(_, nanos)| nanos).sum())
}

#[test]
fn stacks_reach_main_through_generated_functions_with_a_number_in_rbp() {
    for how in ["number", "thunk"] {
        for done in runs(how) {
            let (whole, all) = whole(&done);
            assert_eq!(whole, all, "{how}\n{}", done.stderr);
        }
    }
}

#[test]
fn stacks_reach_main_through_functions_that_replaced_ones_with_different_frames() {
    for done in runs("replaced") {
        let (whole, all) = whole(&done);
        // If stacks contain a generated function, the first of them may be truncated, until gpuflame has verified the
        // function's unwind rule.
        assert!(whole * 10 >= all * 9, "{whole} of {all} ns\n{}", done.stderr);
    }
}

#[test]
fn pages_protected_by_another_thread_are_not_read() {
    runs("pages");
}
