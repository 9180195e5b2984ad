//! Tests `GPUFLAME_VERIFY`. With this setting, gpuflame unwinds each stack again in other ways and compares the
//! results; the ledger reports the differences.
#![cfg(target_arch = "x86_64")]

use crate::support::{Run, Way, compile};

#[test]
fn every_second_stack_is_captured_again_and_matches() {
    let program = compile("tests/programs/load.c", &["-O2"]);
    let args = ["--threads", "4", "--launches", "20000"];
    let done = Run::new(&program, Way::Injected).args(args).env("GPUFLAME_VERIFY", "2").ok();
    done.assert_exact();
    let taken = done.truth().count("count") / 2;
    let [line] = done.ledger("verified: ")[..] else { panic!("{}", done.stderr) };
    let (stacks, rest) = line.split_once(' ').unwrap();
    // Each thread counts its stacks separately and unwinds every second stack again. Therefore the total may differ by
    // one per thread.
    assert!(stacks.parse::<u64>().unwrap().abs_diff(taken) <= 4, "{line}, of {taken}");
    assert_eq!(
        rest,
        "stacks captured again, 0 differ from a walk of every frame, 0 differ from libgcc's walk"
    );
}

#[test]
fn stacks_of_short_lived_fibers_match_libgccs_walk() {
    let program = compile("tests/programs/fibers.c", &["-O2"]);
    // The program runs 4 threads at the same time, and after these another 4 threads. Each thread has 60 fibers, and
    // each fiber makes 8 rounds of 20 launches.
    let done = Run::new(&program, Way::Injected).args(["2", "60", "8"]).env("GPUFLAME_VERIFY", "2").ok();
    let launches = 2 * 4 * 60 * 8 * 20;
    assert_eq!(done.sum("launches").1["matched"], launches);
    let [line] = done.ledger("verified: ")[..] else { panic!("{}", done.stderr) };
    assert_eq!(
        line,
        format!(
            "{} stacks captured again, 0 differ from a walk of every frame, 0 differ from libgcc's walk",
            launches / 2
        )
    );
    // Each stack ends at the frame that created the fiber's context, so no stack counts as guessed or cut.
    assert!(done.ledger("lost: ")[0].contains(" stacks_guessed 0, stacks_cut 0, "), "{}", done.stderr);
}

#[test]
fn a_stack_that_differs_from_libgccs_walk_is_counted() {
    let program = compile("tests/programs/registered.c", &["-O2"]);
    let verified = |through_it: &str| {
        let run = Run::new(&program, Way::Injected).args([through_it]).env("GPUFLAME_VERIFY", "1");
        run.ok().ledger("verified: ").join("\n")
    };
    let line = |stacks: u32| {
        // The 11 stacks are those of ten launches and that of a wait.
        format!(
            "11 stacks captured again, 0 differ from a walk of every frame, {stacks} differ from libgcc's \
             walk"
        )
    };
    assert_eq!(verified("0"), line(0));
    assert_eq!(verified("1"), line(10));
}

#[test]
fn nothing_is_printed_about_verification_unless_requested() {
    let program = compile("tests/programs/registered.c", &["-O2"]);
    let done = Run::new(&program, Way::Injected).args(["0"]).ok();
    assert_eq!(done.ledger("verified: "), Vec::<&str>::new());
}
