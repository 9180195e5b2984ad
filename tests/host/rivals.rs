//! Another client of CUPTI in the same process: it has its records, the program lives, and what is missing is said.

use crate::support::{Done, Run, Way, compile};

/// What stands under stacks that end so; `None` if there are none.
fn nanos_under(done: &Done, tip: &str) -> Option<u64> {
    let folded = done.folded();
    let under = folded.iter().filter(|(frames, _)| frames.last().is_some_and(|frame| frame.starts_with(tip)));
    under.map(|(_, nanos)| *nanos).reduce(|a, b| a + b)
}

/// It frees what it is handed, and some of that is ours.
#[test]
fn a_client_that_takes_the_records_over_may_free_them_and_it_is_said_at_the_end() {
    let program = compile("tests/programs/rival.c", &["-O2"]);
    for way in [Way::Injected, Way::Preloaded] {
        let done = Run::new(&program, way).arg("100").ok();
        assert_eq!(done.stdout, "handed\n", "{}", done.stderr);
        assert_eq!(done.ledger("another client of CUPTI").len(), 2, "{}", done.stderr);
        assert_eq!(nanos_under(&done, "[GPU_Kernel]taken"), None);
        assert_eq!(nanos_under(&done, "[GPU_Launch_Pending]"), Some(0));
    }
}

#[test]
fn that_the_records_are_gone_is_said_when_it_happens() {
    let program = compile("tests/programs/rival.c", &["-O2"]);
    let done = Run::new(&program, Way::Injected).arg("5500").ok();
    let said = done.stderr.find("has taken the records over: launches are seen").expect(&done.stderr);
    let ended = done.stderr.find("launches").unwrap();
    assert!(said < done.stderr.find("own cost").unwrap() && ended > 0);
}

#[test]
fn a_window_that_opens_anew_has_the_records_again() {
    let program = compile("tests/programs/rival.c", &["-O2"]);
    let done = Run::new(&program, Way::Injected).args(["5500", "returns"]).ok();
    assert_eq!(done.stdout, "handed\n", "{}", done.stderr);
    assert_eq!(done.ledger("records come again").len(), 1, "{}", done.stderr);
    assert_eq!(nanos_under(&done, "[GPU_Kernel]after"), Some(70 * 1000), "{}", done.stderr);
}
