//! Tests that cuInit loads and calls the injected library as the real drivers 535 and 550 do.

use gpusim_selftest::{Outcome, Run, folder, program};

fn init(way: &str) -> Run {
    Run::new("init", &[way]).client("10", "2:211")
}

fn injections(outcome: &Outcome) -> usize {
    outcome.lines("injected").len()
}

#[test]
fn injection_happens_once_in_cu_init_on_the_calling_thread() {
    let outcome = init("twice").outcome().expect_success();
    assert_eq!(outcome.stdout, "cuInit 0\ncuInit 0\n");
    assert_eq!(injections(&outcome), 1);
    let line = outcome.lines("injected")[0];
    assert_eq!(line.number("tid"), line.number("pid"));
}

#[test]
fn four_threads_racing_in_cu_init_cause_one_injection() {
    let outcome = init("race").outcome().expect_success();
    assert_eq!(outcome.stdout, "cuInit 0\n".repeat(4));
    assert_eq!(injections(&outcome), 1);
}

#[test]
fn version_count_and_invalid_flags_do_not_inject() {
    let outcome = init("version").outcome().expect_success();
    assert_eq!(outcome.stdout, "version 0 13000\ncount 3\ncuInit(1) 1\n");
    assert_eq!(injections(&outcome), 0);
}

#[test]
fn the_runtimes_first_call_injects() {
    let outcome = init("runtime").outcome().expect_success();
    assert_eq!(outcome.stdout, "count 0 1\nerror cudaSuccess\n");
    assert_eq!(injections(&outcome), 1);
}

#[test]
fn an_injection_that_returns_0_is_unloaded_and_repeated_by_the_next_cu_init() {
    // The client enables nothing, because a client that has registered callbacks must not be unloaded.
    let outcome = Run::new("init", &["twice"])
        .client("", "")
        .env("CLIENT_RETURN", "0")
        .env("GPUSIM_OTHER_SUBSCRIBER", "1");
    let outcome = outcome.outcome().expect_success();
    let story: Vec<&str> = outcome.log.iter().map(|l| l.what.as_str()).filter(|w| *w != "symbol").collect();
    let once = ["injected", "version", "soname", "Subscribe", "destructor"];
    assert_eq!(story, [once, once].concat());
}

#[test]
fn unloadable_injection_libraries_are_silently_ignored() {
    let (client, missing) = (program("client.so"), "/nowhere/libnothing.so");
    let list = format!("{0}:{0}", client.display());
    let no_entry = folder().join("libcuda.so.1");
    for path in [missing, &list, no_entry.to_str().unwrap()] {
        let outcome = init("init").env("CUDA_INJECTION64_PATH", path).outcome().expect_success();
        assert_eq!((outcome.stdout.as_str(), outcome.stderr.as_str()), ("cuInit 0\n", ""), "{path}");
        assert_eq!(injections(&outcome), 0);
    }
}

#[test]
fn a_bare_name_is_found_through_the_library_path() {
    program("client.so");
    let outcome = init("init").env("CUDA_INJECTION64_PATH", "client.so").outcome().expect_success();
    assert_eq!(injections(&outcome), 1);
}

#[test]
fn without_a_device_injection_happens_and_subscribing_fails_with_the_versions_code() {
    for (version, code) in [("11.8", 15), ("12.9", 15), ("13.0", 999), ("13.4", 999)] {
        let outcome = init("init").env("GPUSIM_NDEV", "0").env("GPUSIM_CUPTI_VERSION", version).outcome();
        let outcome = outcome.expect_success();
        assert_eq!(outcome.stdout, "cuInit 100\n");
        assert_eq!(outcome.lines("Subscribe")[0].text, format!("Subscribe {code}"));
    }
}

#[test]
fn a_driver_older_than_the_runtime_fails_with_35_before_any_injection() {
    let outcome = init("runtime").env("GPUSIM_DRIVER", "12040").outcome().expect_success();
    assert_eq!(outcome.stdout, "count 35 -1\nerror cudaErrorInsufficientDriver\n");
    assert_eq!(injections(&outcome), 0);
}

#[test]
fn subscribing_to_a_cupti_newer_than_the_driver_fails() {
    let old = || init("init").env("GPUSIM_DRIVER", "12040");
    let outcome = old().outcome().expect_success();
    assert_eq!(outcome.lines("Subscribe")[0].text, "Subscribe 999");
    let outcome = old().env("GPUSIM_CUPTI_VERSION", "12.0").outcome().expect_success();
    assert_eq!(outcome.lines("Subscribe")[0].text, "Subscribe 0");
}

#[test]
fn subscribing_next_to_another_subscriber_fails_with_39() {
    let outcome = init("init").env("GPUSIM_OTHER_SUBSCRIBER", "1").outcome().expect_success();
    assert_eq!(outcome.lines("Subscribe")[0].text, "Subscribe 39");
}

#[test]
fn a_cupti_call_after_a_failed_subscribe_aborts() {
    let run = init("init").env("GPUSIM_OTHER_SUBSCRIBER", "1").env("CLIENT_INSIST", "1");
    run.outcome().expect_abort("a CUPTI call after cuptiSubscribe failed");
}

#[test]
fn parent_and_child_are_both_injected_after_a_fork_before_cu_init() {
    let outcome = init("fork-before").outcome().expect_success();
    assert_eq!(outcome.stdout, "cuInit 0\nchild count 0\nstatus 0\ncuInit 0\n");
    assert_eq!(injections(&outcome), 2);
}

#[test]
fn a_child_forked_after_cu_init_gets_304_and_no_injection() {
    let outcome = init("fork-after").outcome().expect_success();
    assert_eq!(outcome.stdout, "cuInit 0\ncuInit 304\nchild count 3\nstatus 0\ncuInit 0\n");
    assert_eq!(injections(&outcome), 1);
}

#[test]
fn driver_535_injects_again_into_a_forked_child_and_cupti_calls_there_abort() {
    let outcome = init("fork-after").env("GPUSIM_FORK", "inject").outcome().expect_success();
    assert!(outcome.stderr.contains("a CUPTI call in a forked child"), "{}", outcome.stderr);
    assert_eq!(injections(&outcome), 2);
}
