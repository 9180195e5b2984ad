//! Tests training loops, each with one planted fault. A subcommand of `gpuflame` must name the function and the line of
//! the fault in its first three rows. A comment in `programs/faults.py` marks that line.

use std::fs;

use serde_json::Value;

use crate::installed::{folder, run};
use crate::support::command::gpuflame;
use crate::support::{Done, Way, root, skip};

/// Returns the line of `faults.py` that causes a fault.
fn line_of(fault: &str) -> String {
    let path = root().join("tests/pytorch/programs/faults.py");
    let text = fs::read_to_string(&path).unwrap();
    let at = text.lines().position(|line| line.ends_with(&format!("# {fault}"))).unwrap();
    format!("{}:{}", path.display(), at + 1)
}

/// Runs a loop with samples of CPU time and of waits. Returns `None` if the Linux kernel refuses to sample.
fn sampled(fault: &str) -> Option<Done> {
    let run = run(folder()?, "faults.py", Way::Injected).arg(fault).env("GPUSIM_NDEV", "2");
    let run = run.env("GPUFLAME_CPU_SAMPLES", "99").env("GPUFLAME_OFF_CPU", "1").env("GPUSIM_TRUTH", "");
    let run = run.env("GPUFLAME_FORMATS", "gfr");
    let done = match fault {
        "straggler" => {
            let run = run.env("NVTX_INJECTION64_PATH", crate::support::gpuflame());
            run.env("GPUFLAME_OUTPUT", "rank%r").env("GPUFLAME_STEP_RANGE", "step").ok()
        }
        _ => run.env("GPUFLAME_OUTPUT", "out").ok(),
    };
    for setting in ["GPUFLAME_CPU_SAMPLES: ", "GPUFLAME_OFF_CPU: "] {
        if !done.ledger(setting).is_empty() {
            skip(&format!("the kernel refuses samples: {}", done.stderr));
            return None;
        }
    }
    Some(done)
}

/// Returns the first three rows of each table of `gpuflame top`.
fn top(done: &Done, by: &str) -> Value {
    let ran = gpuflame(&done.folder, ["top", "out.gfr", "--by", by, "-n", "3", "-f", "json"]).ok();
    serde_json::from_str(&ran.stdout).unwrap()
}

fn column<'a>(tables: &'a Value, table: &str, column: &str) -> Vec<&'a str> {
    let rows = tables[table].as_array().unwrap();
    rows.iter().map(|row| row[column].as_str().unwrap_or_default()).collect()
}

/// Asserts that `top --by idle` names `function`. In each step, the GPU must wait until this function returns.
fn assert_idle_in(fault: &str, function: &str) {
    let Some(done) = sampled(fault) else { return };
    let tables = top(&done, "idle");
    let functions = column(&tables, "idle_functions", "function");
    assert!(functions.iter().any(|name| name.starts_with(&format!("{function} (faults.py"))), "{tables:#}");
    assert!(column(&tables, "idle_lines", "line").contains(&&*line_of(fault)), "{tables:#}");
    let stacks = column(&tables, "idle", "stack");
    // While other programs use the processor, this program gets no samples. Idle time without samples may be in the
    // first row.
    assert!(stacks.iter().any(|stack| stack.contains(function)), "{tables:#}");
}

#[test]
fn a_slow_data_loader_is_named() {
    assert_idle_in("loader", "decode");
}

#[test]
#[ignore = "takes a quarter of a minute; .ci/long runs it"]
fn pauses_of_the_garbage_collector_are_named() {
    assert_idle_in("collector", "metrics");
}

#[test]
#[ignore = "takes a quarter of a minute; .ci/long runs it"]
fn a_loop_of_tiny_kernels_is_named_by_its_line() {
    let Some(done) = sampled("tiny") else { return };
    let tables = top(&done, "line");
    let row = tables["line"].as_array().unwrap().iter().find(|row| row["line"] == *line_of("tiny")).unwrap();
    assert_eq!(
        (row["count"].as_u64(), row["function"].as_str().unwrap().split(' ').next()),
        (Some(40 * 400), Some("augment"))
    );
}

#[test]
#[ignore = "takes a quarter of a minute; .ci/long runs it"]
fn copies_from_pageable_memory_are_named_by_their_line() {
    let Some(done) = sampled("pageable") else { return };
    let tables = top(&done, "line");
    let row = tables["line"].as_array().unwrap().first().unwrap();
    assert_eq!(row["line"], *line_of("pageable"), "{tables:#}");
    assert!(row["kernels"].to_string().contains("HtoD"), "{tables:#}");
}

#[test]
fn a_straggler_is_named_with_the_line_that_makes_it_late() {
    let Some(done) = sampled("straggler") else { return };
    let merged = gpuflame(&done.folder, ["merge-ranks", "rank0.gfr", "rank1.gfr", "--format", "json"]).ok();
    let merged: Value = serde_json::from_str(&merged.stdout).unwrap();
    let ranks = &merged["ranks"];
    let of_both = |column: &str| [0, 1].map(|rank| ranks[rank][column].as_str().unwrap_or_default());
    assert!(of_both("straggler")[0].is_empty() && !of_both("straggler")[1].is_empty(), "{merged:#}");
    assert_eq!(of_both("host_line")[1], format!("{} (validate)", line_of("straggler")), "{merged:#}");
}

/// Runs `faults.py` with the argument `fault` and without samples, and returns the run with the lines that gpuflame
/// prints at the end.
fn last_lines(fault: &str, environment: &[(&str, &str)]) -> Option<Done> {
    let run = run(folder()?, "faults.py", Way::Injected).arg(fault).env("GPUSIM_NDEV", "2");
    let run = run.env("GPUSIM_TRUTH", "").env("GPUFLAME_OUTPUT", "rank%r");
    Some(environment.iter().fold(run, |run, (name, value)| run.env(name, value)).ok())
}

#[test]
#[ignore = "takes a minute; .ci/long runs it"]
fn the_last_lines_of_a_plain_run_name_the_area_of_each_fault() {
    let library = crate::support::gpuflame();
    let steps: &[(&str, &str)] =
        &[("GPUFLAME_STEP_RANGE", "step"), ("NVTX_INJECTION64_PATH", library.to_str().unwrap())];
    for (fault, environment, words) in [
        ("loader", &[][..], "% host late ("),
        ("loader", &[], " in load_batch (faults.py"),
        ("item", &[], "after the host waited at cudaStreamSynchronize in report (faults.py"),
        ("collector", &[], " between cudaLaunchKernel in train_step (faults.py"),
        ("tiny", &[], "CUDAFunctorOnSelf_add> (16,000 x 6."),
        ("pageable", &[], "% HtoD copies from pageable memory ("),
        ("warmup", steps, "; step 1 took "),
    ] {
        let Some(done) = last_lines(fault, environment) else { return };
        assert!(done.stderr.contains(words), "{fault}: no `{words}` in\n{}", done.stderr);
    }
}

#[test]
#[ignore = "takes half a minute; .ci/long runs it"]
fn the_straggler_is_named_from_what_a_plain_run_leaves() {
    let library = crate::support::gpuflame();
    let steps = [("GPUFLAME_STEP_RANGE", "step"), ("NVTX_INJECTION64_PATH", library.to_str().unwrap())];
    let Some(done) = last_lines("straggler", &steps) else { return };
    let merged = gpuflame(&done.folder, ["merge-ranks", "rank0.gfr", "rank1.gfr", "--format", "json"]).ok();
    let merged: Value = serde_json::from_str(&merged.stdout).unwrap();
    let of = |rank: usize| merged["ranks"][rank]["straggler"].as_str().unwrap_or_default();
    assert!(of(0).is_empty() && of(1).contains("others wait for it in nccl"), "{merged:#}");
}
