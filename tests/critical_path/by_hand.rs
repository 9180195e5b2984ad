//! The example of docs/critical-path.md, whose path a person can check, and other small programs.

use super::output::{Trace, gpuflame, min_slacks, parts, spans, tables};

pub(super) fn two_kernels() -> Trace {
    Trace::default()
        .call("cudaLaunchKernel", 1, 5, (0, 10))
        .kernel("gemm", 1, 7, (15, 75))
        .call("cudaLaunchKernel", 2, 5, (20, 30))
        .kernel("relu", 2, 7, (80, 120))
        .call("cudaStreamSynchronize", 3, 5, (35, 130))
        .sync(3, 7, (36, 120))
}

#[test]
fn the_example_of_the_documentation() {
    let tables = tables(two_kernels(), "by-hand", &[]);
    assert_eq!(
        parts(&tables),
        [
            (0, 10, "call", 10, "cudaLaunchKernel"),
            (10, 5, "launch", 5, "gemm"),
            (15, 60, "kernel", 45, "gemm"),
            (75, 5, "gap", 5, "relu"),
            (80, 40, "kernel", 40, "relu"),
            (120, 10, "return", 10, "cudaStreamSynchronize"),
        ]
    );
    assert_eq!(min_slacks(&tables, ["gemm", "relu"]), [0, 0]);
}

#[test]
fn a_part_of_the_path_is_cut_at_its_edges() {
    let tables = tables(two_kernels(), "by-hand-part", &["--from", "70us", "--to", "100us"]);
    let spans: Vec<_> = parts(&tables).into_iter().map(|part| (part.0, part.1, part.2)).collect();
    assert_eq!(spans, [(70, 5, "kernel"), (75, 5, "gap"), (80, 20, "kernel")]);
}

/// The second kernel begins before the end of the first one. It may need this end for its remaining 45 us, and the later of
/// two dependencies decides. So the first kernel is on the path to its end, and has no slack.
#[test]
fn overlapping_kernels_follow_each_other_on_the_path_and_the_first_has_no_slack() {
    let trace = Trace::default()
        .call("cudaLaunchKernel", 1, 5, (0, 10))
        .kernel("first", 1, 7, (15, 75))
        .call("cudaLaunchKernelExC", 2, 5, (20, 30))
        .kernel("second", 2, 7, (60, 120))
        .call("cudaStreamSynchronize", 3, 5, (35, 130))
        .sync(3, 7, (36, 120));
    let tables = tables(trace, "by-hand-overlap", &[]);
    assert_eq!(
        spans(&tables),
        [
            (0, 10, "call", "cudaLaunchKernel"),
            (10, 5, "launch", "first"),
            (15, 60, "kernel", "first"),
            (75, 45, "kernel", "second"),
            (120, 10, "return", "cudaStreamSynchronize"),
        ]
    );
    let rows = tables["slack"].as_array().unwrap();
    assert!(rows.iter().all(|row| row["min_slack_ns"] == 0), "{rows:?}");
}

/// The second thread launches while the first one makes no call, as PyTorch's thread for the backward pass does.
#[test]
fn a_thread_that_works_during_the_pause_of_another_hands_off_to_it() {
    let trace = Trace::default()
        .call("cudaLaunchKernel", 1, 5, (0, 10))
        .kernel("forward", 1, 7, (12, 13))
        .call("cudaLaunchKernel", 2, 6, (20, 30))
        .kernel("backward", 2, 7, (32, 33))
        .call("cudaLaunchKernel", 3, 6, (80, 90))
        .kernel("backward", 3, 7, (92, 93))
        .call("cudaLaunchKernel", 4, 5, (100, 110))
        .kernel("optimizer", 4, 7, (112, 152));
    let tables = tables(trace, "by-hand-threads", &[]);
    let classes: Vec<_> = parts(&tables).into_iter().map(|part| (part.0, part.2)).collect();
    assert_eq!(
        classes,
        [
            (0, "call"),
            (10, "hand_off"),
            (20, "call"),
            (30, "host"),
            (80, "call"),
            (90, "hand_off"),
            (100, "call"),
            (110, "launch"),
            (112, "kernel"),
        ]
    );
}

/// A thread that makes one short call in the pause of another is not its reason.
#[test]
fn a_short_call_of_another_thread_does_not_explain_a_pause() {
    let trace = Trace::default()
        .call("cudaLaunchKernel", 1, 5, (0, 10))
        .kernel("one", 1, 7, (12, 13))
        .call("cudaLaunchKernel", 2, 6, (2, 4))
        .kernel("other", 2, 8, (14, 15))
        .call("cudaLaunchKernel", 3, 6, (80, 90))
        .kernel("other", 3, 8, (92, 93))
        .call("cudaLaunchKernel", 4, 5, (100, 110))
        .kernel("two", 4, 7, (112, 152));
    let tables = tables(trace, "by-hand-pause", &[]);
    let classes: Vec<_> = parts(&tables).into_iter().map(|part| (part.0, part.1, part.2)).collect();
    assert_eq!(
        classes,
        [(0, 10, "call"), (10, 90, "host"), (100, 10, "call"), (110, 2, "launch"), (112, 40, "kernel")]
    );
}

#[test]
fn records_that_contradict_each_other_are_named_and_have_no_path() {
    // Both kernels of a stream run at the same time for 1 ms, and no launch was programmatic.
    let trace = Trace::default()
        .call("cudaMemcpyAsync", 1, 5, (0, 10))
        .call("cudaLaunchKernel", 2, 5, (20, 30))
        .kernel("late", 1, 7, (5_000, 6_000))
        .kernel("early", 2, 7, (100, 400));
    let file = trace.write("by-hand-contradiction");
    let output = gpuflame(&["critical-path", file.to_str().unwrap()]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    for word in ["contradict", "early", "late", "correlation id 1", "correlation id 2"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    assert_eq!(text.lines().count(), 1, "{text}");
}
