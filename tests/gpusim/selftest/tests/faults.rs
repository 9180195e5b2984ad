//! Tests GPUSIM_FAULTS: each injected fault is visible in the activity records, is counted in the truth file, and has
//! no further effect.

use gpusim_selftest::{Line, Outcome, Run};

/// Makes 100 launches, and every tenth launch has a fault.
fn with(fault: &str) -> Outcome {
    let run = Run::new("launches", &["1", "100"]).client("10", "2:211,6:1").env("GPUSIM_FAULTS", fault);
    run.outcome().expect_success()
}

fn count(outcome: &Outcome, which: impl Fn(&Line) -> bool) -> usize {
    outcome.lines("record").into_iter().filter(|r| which(r)).count()
}

#[test]
fn timestamps_can_be_zero_reversed_or_before_the_call() {
    let zero = with("zero_ts:every=10");
    assert_eq!(count(&zero, |r| r.number("start") == 0 && r.number("end") == 0), 10);
    let reversed = with("reversed:every=10");
    assert_eq!(count(&reversed, |r| r.number("start") > r.number("end")), 10);

    let early = with("early_start:every=10");
    let before_enter = |r: &Line| {
        let truth = early.truth.iter().find(|t| t["corr"] == r.number("corr")).unwrap();
        r.number("start") < truth["enter"].as_u64().unwrap()
    };
    assert_eq!(count(&early, before_enter), 10);
    for outcome in [zero, reversed, early] {
        assert_eq!(outcome.total("total_ns"), 50 * 100 + 50 * 250, "the truth stays true");
    }
}

#[test]
fn records_can_be_unknown_unmatched_or_duplicate() {
    let unknown = with("unknown_kind:every=10");
    assert_eq!(count(&unknown, |r| r.number("kind") == 199), 10);
    assert_eq!(unknown.records(10).len(), 100, "the walk steps over what it does not know");

    let unmatched = with("unmatched_corr:every=10");
    assert_eq!(count(&unmatched, |r| r.number("corr") >= 0x8000_0000), 10);
    assert_eq!(unmatched.records(10).len(), 110);

    let mut ids: Vec<u64> = with("dup_corr:every=10").records(10).iter().map(|r| r.number("corr")).collect();
    assert_eq!(ids.len(), 110);
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 100);
}

#[test]
fn names_can_be_null_broken_or_long() {
    let outcome = with("name_null:every=10,name_bad_utf8:every=7,name_4k:every=9");
    assert_eq!(count(&outcome, |r| r.str("name") == "NULL"), 10);
    // Each launch has at most one fault: the first fault if it is a 10th launch, otherwise the second fault if it is a
    // 7th launch, otherwise the third fault if it is a 9th launch. Therefore launch 70 does not have the second fault,
    // and launches 63 and 90 do not have the third fault.
    assert_eq!(count(&outcome, |r| r.str("name").contains('\u{fffd}')), 13);
    assert_eq!(count(&outcome, |r| r.str("name").len() == 4096), 9);
    assert_eq!(outcome.totals()["faults"]["name_null"], 10);
}

#[test]
fn a_failed_launch_has_callbacks_but_no_record() {
    let outcome = with("launch_fail:every=10");
    assert_eq!(outcome.records(10).len(), 90);
    let exits = outcome.lines("callback").into_iter().filter(|l| l.str("site") == "exit");
    assert_eq!(exits.filter(|l| l.str("result") == "701").count(), 10);
    assert_eq!((outcome.total("launch_calls"), outcome.total("failed_launches")), (100, 10));
}

#[test]
fn enabling_a_kind_can_fail() {
    let outcome = with("enable:10=35");
    assert_eq!(outcome.lines("ActivityEnable")[0].text, "ActivityEnable 35");
    assert_eq!(outcome.total("untraced"), 100);
}

#[test]
fn a_fatal_error_is_reported_once_and_stops_callbacks_and_records() {
    let outcome = with("fatal:after=40");
    assert_eq!(outcome.lines("state").len(), 1);
    assert_eq!(outcome.lines("state")[0].number("result"), 999);
    let enters = outcome.lines("callback").into_iter().filter(|l| l.str("site") == "enter").count();
    assert_eq!(enters, 40);
    assert_eq!(outcome.records(10).len(), 0);
    assert_eq!((outcome.total("pending"), outcome.total("untraced")), (39, 61));
    assert!(outcome.lines("FlushAll")[0].text.ends_with("999"));
}

#[test]
fn callbacks_can_be_repeated_without_data() {
    let run = Run::new("launches", &["1", "100"])
        .client("10", "2:211,3:1")
        .env("GPUSIM_FAULTS", "null_data:every=10");
    let outcome = run.outcome().expect_success();
    // Each launch has an ENTER and an EXIT callback. The fault counts API callbacks and resource callbacks separately.
    let of_calls = |l: &&Line| l.str("domain") == "2" && l.str("id") == "211";
    assert_eq!(outcome.lines("callback").len(), 200);
    assert_eq!(outcome.lines("null").iter().filter(|l| of_calls(l)).count(), 20);
    assert_eq!(outcome.lines("null").len(), 20);
    assert_eq!(outcome.totals()["faults"]["null_data"], 20);
    assert_eq!((outcome.total("delivered"), outcome.total("delivered_ns")), (100, 50 * 100 + 50 * 250));

    let run = Run::new("launches", &["1", "1"]).client("10", "3:1").env("GPUSIM_FAULTS", "null_data:every=1");
    let outcome = run.outcome().expect_success();
    assert_eq!((outcome.lines("resource").len(), outcome.lines("null").len()), (1, 1));
    assert_eq!(outcome.lines("null")[0].text, "null domain=3 id=1");
    assert_eq!(outcome.totals()["faults"]["null_data"], 1);
}

#[test]
fn a_buffer_can_be_delivered_twice() {
    for (every, threads) in [(1, "1"), (3, "1"), (2, "4")] {
        let fault = format!("buffer_twice:every={every}");
        let run =
            Run::new("launches", &[threads, "2000"]).client("10", "2:211").env("CLIENT_BUFFER", "21600");
        let outcome = run.env("GPUSIM_FAULTS", fault).outcome().expect_success();
        let (buffers, twice) = (outcome.lines("buffer").len(), outcome.lines("twice").len());
        assert_eq!(twice, buffers / (every + 1), "{buffers} buffers");
        assert_eq!(outcome.totals()["faults"]["buffer_twice"], twice);
        let launches = 2000 * threads.parse::<usize>().unwrap();
        assert_eq!(outcome.records(10).len(), launches, "each record once");
        assert_eq!(outcome.total("delivered") as usize, launches);
    }
}

#[test]
fn no_buffer_is_requested_between_two_deliveries_of_one_buffer() {
    let run = Run::new("launches", &["4", "1000"]).client("10", "2:211").env("CLIENT_BUFFER", "21600");
    let run = run.env("CLIENT_IN", "completed:pause").env("GPUSIM_FAULTS", "buffer_twice:every=1");
    let outcome = run.outcome().expect_success();
    let moves = outcome.log.iter().map(|l| l.what.as_str());
    let moves: Vec<_> = moves.filter(|what| ["requested", "buffer", "twice"].contains(what)).collect();
    assert!(moves.len() > 100);
    let rest = moves.join(" ").replace("buffer buffer twice", "requested");
    assert!(rest.split(' ').all(|what| what == "requested"), "{rest}");
}

#[test]
fn an_unknown_fault_is_rejected() {
    let run = Run::new("launches", &["1", "1"]).env("GPUSIM_FAULTS", "zero_tss");
    run.outcome().expect_abort("`zero_tss`: no fault of this name");
}
