//! Tests the ways in which programs end, and the CUPTI functions that still work while a program ends.

use gpusim_selftest::Run;
use std::time::Duration;

fn exits(way: &str) -> Run {
    Run::new("exits", &[way]).client("10", "2:211")
}

#[test]
fn the_clients_exit_handler_runs_while_the_driver_still_answers() {
    let outcome = exits("return").outcome().expect_success();
    assert_eq!(outcome.lines("FlushAll")[0].text, "FlushAll 0");
    assert_eq!((outcome.total("delivered"), outcome.total("pending")), (1, 0));
}

#[test]
fn every_launch_is_accounted_for_if_another_thread_exits_during_launches() {
    let outcome = exits("thread").env("CLIENT_CALLBACKS", "").env("CLIENT_FLUSH", "always").outcome();
    let outcome = outcome.expect_success();
    let fates = ["delivered", "dropped", "untraced", "pending"].map(|fate| outcome.total(fate));
    assert_eq!(fates.iter().sum::<u64>(), outcome.total("count"));
    assert_eq!(outcome.records(10).len() as u64, outcome.total("delivered"));
    assert!(outcome.total("delivered") > 0);
}

#[test]
fn an_immediate_exit_writes_nothing_and_does_not_hang() {
    let outcome = exits("_exit").outcome();
    assert_eq!(outcome.code, Some(5));
    assert!(outcome.summary.is_empty());
    let flushed = exits("flushed _exit").outcome();
    assert_eq!((flushed.code, flushed.total("count")), (Some(5), 1));
}

#[test]
fn a_device_reset_creates_a_new_context() {
    let outcome = exits("reset").outcome().expect_success();
    let contexts: Vec<u64> = outcome.records(10).iter().map(|r| r.number("context")).collect();
    assert_eq!(contexts, [1, 2]);
}

#[test]
fn flushing_without_any_cuda_call_hangs() {
    let hang = exits("nothing").env("CLIENT_FLUSH", "always");
    assert!(hang.hangs_for(Duration::from_secs(1)));
    exits("nothing").outcome().expect_success();
}

#[test]
fn exit_handlers_registered_before_cu_init_run_after_driver_shutdown() {
    let outcome = exits("handlers").outcome().expect_success();
    assert_eq!(outcome.stdout, "late 0\nearly 4\n");
    assert_eq!(outcome.records(10).len(), 2, "the later handler runs before the client's");
}

#[test]
fn destructors_run_after_driver_shutdown() {
    assert_eq!(exits("destructor").outcome().expect_success().stdout, "destructor 4\n");
}

#[test]
fn a_running_kernel_does_not_delay_the_exit() {
    let run = Run::new("real", &["leave"]).client("10", "2:211").env("GPUSIM_CLOCK", "real");
    let outcome = run.env("GPUSIM_KERNELS", "long_one_d100000000=20000ms").outcome().expect_success();
    assert_eq!(outcome.total("count"), 2);
    assert!(outcome.total("pending") >= 1);
}
