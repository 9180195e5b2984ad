//! Tests CUPTI's callbacks about API calls: their order, correlation ids and names, and the calls that a callback may
//! make.

use gpusim_selftest::{Line, Outcome, Run};

const LAUNCHES: &str = "2:211,1:307";

fn callbacks(outcome: &Outcome) -> Vec<&Line> {
    outcome.lines("callback")
}

#[test]
fn a_runtime_launch_surrounds_its_driver_launch_and_shares_its_id() {
    let outcome = Run::new("basic", &[]).client("", LAUNCHES).outcome().expect_success();
    let seen: Vec<String> = callbacks(&outcome)[..4]
        .iter()
        .map(|l| format!("{} {} {}", l.str("domain"), l.str("id"), l.str("site")))
        .collect();
    assert_eq!(seen, ["2 211 enter", "1 307 enter", "1 307 exit", "2 211 exit"]);
    let ids: Vec<u64> = callbacks(&outcome)[..4].iter().map(|l| l.number("corr")).collect();
    assert_eq!(ids, [ids[0]; 4]);
}

#[test]
fn a_nested_driver_call_can_have_its_own_id_which_the_record_carries() {
    let run = Run::new("basic", &[]).client("10", LAUNCHES).env("GPUSIM_CORR", "distinct");
    let outcome = run.outcome().expect_success();
    let runtime = callbacks(&outcome)[0].number("corr");
    let driver = callbacks(&outcome)[1].number("corr");
    assert_eq!(driver, runtime + 1);
    assert_eq!(outcome.records(10)[0].number("corr"), driver);
    let gemm = outcome.truth.iter().find(|t| t["name"] == "_ZN3net4gemmEPfi").unwrap();
    assert_eq!((&gemm["corr"], &gemm["nested_corr"]), (&runtime.into(), &driver.into()));
}

#[test]
fn calls_without_a_subscriber_consume_correlation_ids() {
    let outcome = Run::new("basic", &[]).client("", LAUNCHES).outcome().expect_success();
    // Three calls precede the first launch: cudaMalloc, cudaMallocHost, cudaStreamCreate.
    assert_eq!(callbacks(&outcome)[0].number("corr"), 4);
}

#[test]
fn correlation_ids_wrap_at_32_bits() {
    let run = Run::new("basic", &[]).client("10", LAUNCHES).env("GPUSIM_CORR_START", "4294967292");
    let outcome = run.outcome().expect_success();
    let ids: Vec<u64> = callbacks(&outcome).iter().step_by(4).map(|l| l.number("corr")).collect();
    assert_eq!(ids, [4294967295, 0]);
}

#[test]
fn the_correlation_data_slot_lasts_from_enter_to_exit_of_one_call() {
    let outcome = Run::new("basic", &[]).client("", LAUNCHES).outcome().expect_success();
    for line in callbacks(&outcome) {
        let expected = if line.str("site") == "exit" { 1000 + line.number("corr") } else { 0 };
        assert_eq!(line.number("slot"), expected, "{}", line.text);
    }
}

#[test]
fn launch_callbacks_carry_the_mangled_name_and_exits_carry_the_result() {
    let outcome = Run::new("basic", &[]).client("", LAUNCHES).outcome().expect_success();
    for line in &callbacks(&outcome)[..4] {
        assert_eq!(line.str("symbol"), "_ZN3net4gemmEPfi");
        assert_eq!(line.str("result"), if line.str("site") == "exit" { "0" } else { "-1" });
    }
}

#[test]
fn nested_driver_callbacks_can_be_disabled() {
    let run = Run::new("basic", &[]).client("", LAUNCHES).env("GPUSIM_NESTED", "0");
    let outcome = run.outcome().expect_success();
    assert!(callbacks(&outcome).iter().all(|l| l.str("domain") == "2"));
}

#[test]
fn a_cuda_call_inside_a_callback_aborts_unless_it_synchronises() {
    let inside = |action| Run::new("basic", &[]).client("10", LAUNCHES).env("CLIENT_IN", action).outcome();
    inside("enter:cuda").expect_abort("cudaGetLastError was called inside the client's ApiCallback");
    inside("enter:sync").expect_success();
}

#[test]
fn every_enabled_domain_reports_names_that_match_their_ids() {
    let outcome = Run::new("basic", &[]).client("", "1:0,2:0").outcome().expect_success();
    let known = include_str!("../../core/src/callback_ids.txt");
    for line in callbacks(&outcome) {
        let (domain, id, name) = (line.str("domain"), line.str("id"), line.str("name"));
        let row = known.lines().find(|row| row.starts_with(&format!("{domain} {id} ")));
        let listed = row.unwrap_or_else(|| panic!("no row for {}", line.text)).rsplit(' ').next().unwrap();
        let plain = listed.split("_v").next().unwrap();
        assert_eq!(name.split("_v").next().unwrap(), plain, "{}", line.text);
    }
}

#[test]
fn records_are_flushed_if_the_program_exits_inside_a_callback() {
    let run = Run::new("basic", &[]).client("10", LAUNCHES).env("CLIENT_IN", "exit:exit");
    let outcome = run.outcome();
    assert_eq!(outcome.code, Some(3));
    assert_eq!(outcome.records(10).len(), 1);
}

#[test]
fn a_callback_stack_passes_through_all_three_libraries_to_main() {
    for frames in ["fp", "nofp"] {
        let run =
            Run::new("basic", &[]).client("", "1:307").env("CLIENT_STACK", "1").env("GPUSIM_FRAMES", frames);
        let outcome = run.outcome().expect_success();
        let stack = outcome.lines("stack")[1];
        let mut files: Vec<&str> = stack.str("by_eh_frame").split('>').collect();
        let in_cupti = files.iter().filter(|f| f.starts_with("libcupti")).count();
        assert!(in_cupti >= 4, "{frames}: {}", stack.text);
        files.dedup();
        let expected =
            ["client.so", "libcupti.so.13", "libcuda.so.1", "libcudart.so.13", "basic", "libc.so.6", "basic"];
        assert_eq!(files, expected, "{frames}");
    }
}

#[test]
fn frame_pointers_are_valid_through_cupti_or_end_there_as_configured() {
    let frames = |way| {
        let run =
            Run::new("basic", &[]).client("", "1:307").env("CLIENT_STACK", "1").env("GPUSIM_FRAMES", way);
        run.outcome().expect_success().lines("stack")[1].number("by_pointers")
    };
    // The frame-pointer walk finds the client's own two frames. The next frame has overwritten rbp, so the
    // frame-pointer walk finds at most one more frame.
    assert!(frames("nofp") <= 2);
    // The frame-pointer walk finds the client's two frames and at least two of CUPTI's three frames. The frame-pointer
    // walk may end there, because the rbp of CUPTI's caller has an arbitrary value, which may be 0.
    assert!(frames("fp") >= 4);
}

#[test]
fn the_injection_stack_passes_through_pthread_once() {
    let outcome = Run::new("basic", &[]).client("", "").env("CLIENT_STACK", "1").outcome().expect_success();
    let files =
        outcome.lines("stack")[0].str("by_eh_frame").replace(">libcuda.so.1>libcuda.so.1", ">libcuda.so.1");
    let at = |name: &str| files.find(name).unwrap_or_else(|| panic!("no {name} in {files}"));
    assert!(at("libcuda.so.1") < at("libcudart.so.13") && at("libcudart.so.13") < at("libc.so.6"));
    assert!(files.ends_with("basic"));
}
