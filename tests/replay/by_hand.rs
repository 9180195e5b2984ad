//! Tests the example in docs/what-if.md, and further changes of the program in this example. The expected times are
//! computed by hand.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

#[path = "../support/small_trace.rs"]
mod small_trace;
pub(super) use small_trace::Trace;

/// Returns a trace in which the kernel `gemm` runs for 60 us, and after it the kernel `relu` for 40 us. A launch takes
/// 15 us to reach the GPU, the gap between the kernels is 5 us, and the wait returns 10 us after `relu` ends.
fn two_kernels(name: &str) -> PathBuf {
    let trace = Trace::default()
        .call("cudaLaunchKernel", 1, 5, (0, 10))
        .kernel("gemm", 1, 7, (15, 75))
        .call("cudaLaunchKernel", 2, 5, (20, 30))
        .kernel("relu", 2, 7, (80, 120))
        .call("cudaStreamSynchronize", 3, 5, (35, 130))
        .sync(3, 7, (36, 120));
    trace.write(name)
}

pub(super) fn gpuflame(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gpuflame")).arg("-q").args(args).stdin(Stdio::null()).output().unwrap()
}

pub(super) fn tables(args: &[&str]) -> Value {
    let output = gpuflame(&[args, &["--format", "json"]].concat());
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Returns the total time of the program after the changes, in us.
fn length(options: &[&str]) -> u64 {
    let file = two_kernels(&format!("what-if-{}", options.join("-").replace(['=', '*', '|', ':'], "_")));
    let said = tables(&[&["what-if", file.to_str().unwrap()], options].concat());
    assert_eq!(said["total"][0]["before_ns"], 130_000);
    said["total"][0]["after_ns"].as_u64().unwrap() / 1_000
}

#[test]
fn the_example_of_the_documentation() {
    // `gemm` ends at 45 us, and `relu` runs from 50 to 90 us.
    assert_eq!(length(&["--scale", "gemm=0.5"]), 100);
    // With this change, `gemm` ends at 21 us. `relu` begins when its launch arrives, at 35 us, and ends at 75 us.
    assert_eq!(length(&["--scale", "gemm=0.1"]), 85);
}

#[test]
fn each_change_has_the_length_that_a_person_computes() {
    // `relu` runs from 80 to 160 us.
    assert_eq!(length(&["--scale", "relu=2"]), 170);
    // `gemm` runs from 15 to 45 us, and `relu` from 50 to 70 us.
    assert_eq!(length(&["--gpu-speed", "2"]), 80);
    // The second launch begins at 10 us, so `relu` runs from 25 to 65 us.
    assert_eq!(length(&["--remove", "gemm"]), 75);
    // With either change, the total time depends on `gemm`, which begins 15 us after its call even if the call is
    // shorter.
    assert_eq!(length(&["--launch-ns", "2000"]), 130);
    assert_eq!(length(&["--graphs"]), 130);
    // The second call begins at 12 us, and `relu` at 27 us. At that time `gemm` has already ended.
    assert_eq!(length(&["--launch-ns", "2000", "--scale", "gemm=0.1"]), 77);
    // Both kernels are launched at 0 us, so `relu` begins at 26 us, which is 5 us after the end of `gemm`.
    assert_eq!(length(&["--graphs", "--scale", "gemm=0.1"]), 76);
    // If the wait is removed, the run ends with `relu`.
    assert_eq!(length(&["--no-sync"]), 120);
    // `relu` begins at 35 us. The kernel that ends last is `gemm`, at 75 us.
    assert_eq!(length(&["--streams", "+1"]), 85);
    assert_eq!(length(&["--streams", "+1:relu"]), 85);
    // The host waits for `gemm`, which ends at 135 us.
    assert_eq!(length(&["--streams", "+1", "--scale", "gemm=2"]), 145);
    // With both changes, `relu` begins at 35 us, because its launch arrives then.
    assert_eq!(length(&["--streams", "+1:relu", "--scale", "relu=2"]), 125);
}

#[test]
fn a_faster_kernel_counts_as_far_as_nothing_else_decides() {
    let file = two_kernels("causal");
    let said = tables(&["causal", file.to_str().unwrap()]);
    let rows = said["causal"].as_array().unwrap();
    let row = |name: &str| {
        rows.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("no {name}: {said}"))
    };
    // By default, the change is 10 % of the kernel's 60 us. A change of `gemm` can save at most 45 us, because `relu`
    // cannot begin before 35 us.
    assert_eq!(row("gemm")["saved_ns"], 6_000);
    assert_eq!(row("gemm")["holds_to_percent"], 70);
    assert_eq!(row("relu")["saved_ns"], 4_000);
    assert_eq!(row("relu")["holds_to_percent"], 100);
    assert_eq!(rows[0]["name"], "gemm");
}

#[test]
fn a_replay_of_a_part_is_as_recorded() {
    let file = two_kernels("replay-part");
    let file = file.to_str().unwrap();
    for part in [&["--from", "20us"][..], &["--to", "80us"], &["--ops", "1..1"], &["--stream", "0:7"]] {
        let said = tables(&[&["replay", file, "--check"], part].concat());
        assert_eq!(said["replay"][0]["difference_ns"], 0, "{part:?}: {said}");
    }
}

#[test]
fn wrong_command_lines_get_one_line() {
    let file = two_kernels("what-if-errors");
    let file = file.to_str().unwrap();
    let cases: [(&[&str], i32, &str); 11] = [
        (&["what-if", file], 2, "no change is named"),
        (&["what-if", file, "--scale", "gemm"], 2, "want a name and a factor"),
        (&["what-if", file, "--scale", "gemm=0"], 2, "want a number above 0"),
        (&["what-if", file, "--scale", "(=2"], 2, "not a regular expression: unclosed group"),
        (
            &["what-if", file, "--scale", "nothing=2"],
            1,
            "no work has a name that matches `nothing`; there are `gemm`, `relu`",
        ),
        (&["what-if", file, "--streams", "1"], 2, "want the number of further streams"),
        (&["what-if", file, "--overlap-comm"], 1, "it has no kernel that communicates"),
        (&["what-if", file, "--no-sync=train"], 1, "none of the 1 calls that wait"),
        (&["replay", file, "--stream", "0:9"], 1, "no work is on this stream; there are 0:7"),
        (&["replay", file, "--model"], 1, "too few"),
        (&["replay", file, "--schedule", "out.json"], 2, "cannot write the schedule as .json"),
    ];
    for (args, code, text) in cases {
        let output = gpuflame(args);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {errors}");
        assert!(errors.contains(text), "{args:?}: {errors}");
        assert!(output.stdout.is_empty(), "{args:?}");
        // The parser of the command line adds a line about `--help`.
        let lines = errors.lines().filter(|line| !line.is_empty() && !line.starts_with("For more")).count();
        assert_eq!(lines, 1, "{args:?}: {errors}");
    }
}
