//! Tests that the GPU time of every activity is under the stack of its call site, exact to the nanosecond, and that the
//! counts in the ledger add up. The reference is the truth file that the simulated CUDA stack writes.

use crate::support::{Run, Way, compile};

fn load() -> Run {
    Run::new(&program(), Way::Injected)
}

fn program() -> std::path::PathBuf {
    static PROGRAM: std::sync::OnceLock<std::path::PathBuf> = std::sync::OnceLock::new();
    PROGRAM.get_or_init(|| compile("tests/programs/load.c", &["-O2"])).clone()
}

#[test]
fn a_million_launches_from_eight_threads_are_recorded_exactly() {
    let done = load().args(["--threads", "8", "--launches", "1000000"]).ok();
    done.assert_exact();
    assert!(done.truth().count("launch_calls") >= 1_000_000);
}

#[test]
fn every_version_of_cupti_gives_the_same_result() {
    for version in ["11.8", "12.0", "12.9", "13.0", "13.4"] {
        for ids in ["shared", "distinct"] {
            let run = load().env("GPUSIM_CUPTI_VERSION", version).env("GPUSIM_CORR", ids);
            let done = run.args(["--threads", "4", "--launches", "20000"]).ok();
            done.assert_exact();
        }
    }
}

#[test]
fn preloading_is_as_exact_as_injecting() {
    for ids in ["shared", "distinct"] {
        let run = Run::new(&program(), Way::Preloaded).env("GPUSIM_CORR", ids);
        run.args(["--launches", "20000"]).ok().assert_exact();
    }
}

#[test]
fn results_do_not_depend_on_the_delivery_order() {
    for (name, value) in [
        ("GPUSIM_EARLY", "1"),
        ("GPUSIM_SHUFFLE", "7"),
        ("GPUSIM_EMPTY_BUFFERS", "1"),
        ("GPUSIM_ODD_SIZE", "1"),
        ("GPUSIM_NESTED", "0"),
        ("GPUSIM_FRAMES", "fp"),
        ("GPUSIM_CORR_START", "4294960000"),
    ] {
        // If the driver makes no callbacks, a CUPTI client cannot learn the correlation ids of driver calls that are
        // nested in runtime calls.
        let hypotheses = if name == "GPUSIM_NESTED" { &["shared"][..] } else { &["shared", "distinct"] };
        for ids in hypotheses {
            let run = load().env(name, value).env("GPUSIM_CORR", ids);
            run.args(["--threads", "4", "--launches", "30000"]).ok().assert_exact();
        }
    }
}

#[test]
fn stacks_do_not_depend_on_how_the_program_was_compiled() {
    for flags in [
        &["-O2", "-fno-omit-frame-pointer"][..],
        &["-O2", "-fomit-frame-pointer"],
        &["-O0"],
        &["-O3", "-fno-plt", "-fcf-protection=full"],
        &["-O2", "-static-libgcc", "-no-pie"],
    ] {
        let program = compile("tests/programs/load.c", flags);
        Run::new(&program, Way::Injected).args(["--threads", "2", "--launches", "4000"]).ok().assert_exact();
    }
}
