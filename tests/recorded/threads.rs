//! Many threads at once, and many one after the other.

use crate::support::{Run, Way, compile};

#[test]
fn six_hundred_threads_at_once_lose_nothing() {
    let program = compile("tests/programs/threads.c", &["-O2"]);
    let done = Run::new(&program, Way::Injected).args(["600", "1"]).ok();
    done.assert_exact();
    assert_eq!(done.truth().count("count"), 1200);
}

#[test]
fn threads_that_come_and_go_share_their_stacks() {
    let program = compile("tests/programs/threads.c", &["-O2"]);
    let done = Run::new(&program, Way::Injected).args(["4", "1000"]).ok();
    done.assert_exact();
    assert_eq!(done.truth().count("count"), 8000);
    assert_eq!(done.ledger("stacks "), ["2 distinct"], "two call sites, 4,000 threads");
}
