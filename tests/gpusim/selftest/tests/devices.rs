//! Several devices, contexts and streams.

use gpusim_selftest::{Line, Outcome, Run};

fn devices() -> Run {
    Run::new("devices", &[]).client("10,1,2,22", "2:211,2:214,3:1").env("GPUSIM_NDEV", "2")
}

fn at_site<'a>(outcome: &'a Outcome, site: &str) -> Vec<&'a Line> {
    let of_site = outcome.truth.iter().filter(|t| t["site"] == site).map(|t| t["corr"].to_string());
    of_site.map(|corr| outcome.lines("record").into_iter().find(|r| r.str("corr") == corr).unwrap()).collect()
}

#[test]
fn each_device_has_a_context_and_default_stream_7() {
    let outcome = devices().outcome().expect_success();
    let one = at_site(&outcome, "device 1")[0];
    assert_eq!((one.number("device"), one.number("context"), one.number("stream")), (1, 1, 7));
    let zero = at_site(&outcome, "device 0")[0];
    assert_eq!((zero.number("device"), zero.number("context")), (0, 2));
    assert_eq!(outcome.lines("resource").len(), 2);
}

#[test]
fn kernels_on_different_streams_overlap() {
    let outcome = devices().outcome().expect_success();
    let pair = at_site(&outcome, "device 0");
    assert_ne!(pair[0].number("stream"), pair[1].number("stream"));
    let overlap =
        |a: &Line, b: &Line| a.number("start") < b.number("end") && b.number("start") < a.number("end");
    assert!(overlap(pair[0], pair[1]));
}

#[test]
fn a_copy_between_devices_is_kind_22_with_both_ends() {
    let outcome = devices().outcome().expect_success();
    let peer = outcome.records(22)[0];
    assert_eq!((peer.number("copy"), peer.str("peers"), peer.number("bytes")), (10, "0:1", 5000));
    let kernel = at_site(&outcome, "device 0")[0];
    assert!(peer.number("start") >= kernel.number("end"), "it waits for its stream");
}

#[test]
fn threads_have_default_streams_of_their_own() {
    let outcome = devices().outcome().expect_success();
    let streams: Vec<u64> = at_site(&outcome, "thread").iter().map(|r| r.number("stream")).collect();
    assert_eq!(streams.len(), 2);
    assert!(streams[0] != streams[1] && !streams.contains(&7));
    assert_eq!(outcome.lines("callback").iter().filter(|l| l.number("id") == 214).count(), 4);
}

#[test]
fn a_launch_can_take_as_long_as_a_drivers() {
    let outcome = devices().env("GPUSIM_LAUNCH_NS", "300000").outcome().expect_success();
    let mut enters: Vec<u64> = outcome.truth.iter().map(|t| t["enter"].as_u64().unwrap()).collect();
    enters.sort();
    // The program's threads take turns.
    assert!(enters.len() > 4);
    assert!(enters.windows(2).all(|two| two[1] - two[0] >= 300_000), "{enters:?}");
}

#[test]
fn a_device_can_have_a_skewed_clock() {
    let outcome = devices().env("GPUSIM_SKEW_NS", "-50000000").outcome().expect_success();
    let before_enter = |t: &serde_json::Value| t["start"].as_u64().unwrap() < t["enter"].as_u64().unwrap();
    let skewed = outcome.truth.iter().filter(|t| before_enter(t));
    assert!(skewed.clone().count() > 0 && skewed.clone().all(|t| t["device"] == 1));
}

#[test]
fn a_device_that_is_not_there_is_refused() {
    assert_eq!(devices().env("GPUSIM_NDEV", "1").outcome().code, Some(2));
}

#[test]
fn pools_and_memory_are_shared_and_code_is_linked() {
    let outcome = Run::new("shared", &[]).outcome().expect_success();
    // Each process sets 3,000 bytes: 1 us and 3 ns; the truth is the parent's, which ends last.
    assert_eq!((outcome.total("count"), outcome.total("total_ns")), (1, 1_003));
}
