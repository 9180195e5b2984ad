//! Tests stacks that are incomplete: gpuflame counts each incomplete stack, and no GPU time disappears.
#![cfg(target_arch = "x86_64")]

use std::collections::BTreeMap;

use crate::support::command::gpuflame;
use crate::support::{Done, Run, Way, compile};

/// Runs a program that launches from a given number of stacks of each of five kinds: `[whole, guessed, cut, both,
/// deep]`.
fn run(stacks: [u32; 5]) -> Done {
    let program = compile("tests/programs/stacks.c", &["-O2", "-fomit-frame-pointer"]);
    let args = stacks.map(|count| count.to_string());
    let run = Run::new(&program, Way::Injected).args(args.iter().map(String::as_str));
    run.env("GPUFLAME_VERIFY", "1").ok()
}

/// Returns the ledger's counts of incomplete stacks, by kind.
fn lost(done: &Done) -> BTreeMap<&str, u64> {
    let [line] = done.ledger("lost: ")[..] else { panic!("{}", done.stderr) };
    let counts = line.split(", ").map(|part| part.rsplit_once(' ').unwrap());
    counts
        .filter(|(what, count)| what.starts_with("stacks_") && *count != "0")
        .map(|(what, count)| (what, count.parse().unwrap()))
        .collect()
}

#[test]
fn complete_stacks_are_not_counted_as_incomplete() {
    let done = run([5, 0, 0, 0, 0]);
    assert_eq!(lost(&done), BTreeMap::new(), "{}", done.stderr);
    assert_eq!(
        done.ledger("stacks "),
        ["6 distinct"],
        "the stacks of five launches and of the wait at the end"
    );
}

#[test]
fn guessed_cut_and_truncated_stacks_are_counted_once_per_stack() {
    let done = run([1, 2, 3, 4, 5]);
    // If a stack is deeper than 1,024 frames, gpuflame keeps only the 1,024 innermost frames. The 1,024 innermost
    // frames are the same for all deep stacks.
    assert_eq!(
        done.ledger("stacks "),
        ["12 distinct"],
        "1 + 2 + 3 + 4, one stack for all five deep ones, and a wait"
    );
    let expected = [("stacks_guessed", 2 + 4), ("stacks_cut", 3 + 4), ("stacks_truncated", 1)];
    assert_eq!(lost(&done), BTreeMap::from(expected), "{}", done.stderr);
    let (launches, parts) = done.sum("launches");
    assert_eq!((launches, parts["matched"]), (150, 150), "10 launches from each of 15 stacks");
    let nanos: u64 = done.folded().iter().map(|(_, nanos)| nanos).sum();
    assert_eq!(nanos, done.truth().sums.values().sum::<u64>(), "the time of all work is under some stack");
    // The count of stacks includes the stack of the call that waits for the GPU.
    let verified = "151 stacks captured again, 0 differ from a walk of every frame, 0 differ from libgcc's \
                    walk";
    assert_eq!(done.ledger("verified: "), [verified]);
}

#[test]
fn check_names_the_totals_of_incomplete_stacks_and_of_their_activities() {
    let done = run([1, 2, 3, 4, 5]);
    let checked = gpuflame(&done.folder, ["check", "out.gfr", "--format", "csv"]).ok().stdout;
    let line = checked.lines().find(|line| line.contains(",stacks_incomplete,")).unwrap();
    // 10 stacks are incomplete: 2 + 3 + 4 stacks of three kinds, and one stack for all five deep ones. The program
    // makes 10 launches from each of 15 stacks, of which 14 are incomplete.
    let expected = "note,stacks truncated or guessed,10,83.3333,of 12 distinct stacks; 140 of 150 activities (93.3 %) came from \
                    them: their GPU time may be under the wrong root,stacks_incomplete,,";
    assert_eq!(line, expected);
}
