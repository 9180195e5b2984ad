//! Tests programs that call gpuflame through its C interface. Some of these programs are linked to the library, and
//! some use only the header.

use std::collections::BTreeMap;

use crate::support::command::gpuflame;
use crate::support::{Done, Run, Way, compile};

/// Returns the values that the program got from gpuflame and printed. Each value is keyed by `WHEN.NAME`: the moment at
/// which the program read it, and its name.
fn told(done: &Done) -> BTreeMap<&str, u64> {
    done.stdout
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(name, n)| (name, n.parse().unwrap()))
        .collect()
}

#[test]
fn results_queried_mid_run_cover_completed_work_and_add_up() {
    let program = compile("tests/programs/embedded.c", &["-O2", "-DLINKED"]);
    // The last kernel runs for ten minutes, so it has not completed when the program exits, and gpuflame does not wait
    // for it.
    let run = Run::new(&program, Way::None).env("GPUSIM_CLOCK", "real").env("GPUFLAME_FORMATS", "folded,gfr");
    let done = run.ok();
    let told = told(&done);
    let at = |name: &str| *told.get(name).unwrap_or_else(|| panic!("no {name} in {}", done.stdout));
    for (when, matched, pending, outside) in [("done", 25, 0, 0), ("held", 25, 1, 0), ("left", 25, 1, 4)] {
        let now = |name: &str| at(&format!("{when}.{name}"));
        assert_eq!((now("matched"), now("pending"), now("outside")), (matched, pending, outside), "{when}");
        assert_eq!(now("launches"), matched + pending + outside + now("dropped"), "{when}");
        // CUPTI does not deliver the records that follow an incomplete record in the same buffer. Therefore some
        // activities of kernels outside the window may be missing.
        assert!((matched..=matched + outside).contains(&now("activities")), "{when}");
        assert_eq!((now("windows"), now("steps"), now("gpus"), now("kernels")), (1, 5, 1, 2), "{when}");
        // As in the truth file, the kernels on one stream run one after another. Kernels that were launched outside the
        // window are on another stream.
        assert_eq!((now("large_d5000"), now("small_d1000")), (10 * 5000, 15 * 1000), "{when}");
        assert_eq!(now("window_ns"), now("busy_ns") + now("idle_ns"), "{when}");
        let causes = ["host_late", "launch_latency", "dependency", "unknown", "opening", "closing"];
        let causes: u64 = causes.iter().map(|cause| now(&format!("idle_{cause}_ns"))).sum();
        assert_eq!(now("idle_ns"), causes, "{when}");
    }
    let truth = done.truth();
    let inside: u64 =
        truth.sums.iter().filter(|((site, _), _)| site == "main;inside").map(|(_, nanos)| nanos).sum();
    assert_eq!((inside, at("done.busy_ns")), (65_000, 65_000), "{:?}", truth.sums);
    // All output files, including the recording, are at the path that the program set last, not at a path that it set
    // earlier. At the paths that were set earlier, there is no file.
    let found = done.folded_file("second/prefix.folded");
    let nanos: u64 = found.iter().filter(|(frames, _)| frames[1] == "inside").map(|(_, nanos)| nanos).sum();
    assert_eq!(nanos, 65_000, "{found:?}");
    assert!(done.folder.join("second/prefix.gfr").exists(), "{}", done.stderr);
    assert!(!done.folder.join("mid").exists() && !done.folder.join("out.folded").exists());
    assert_eq!(done.folder.join("first").read_dir().map_or(0, Iterator::count), 0, "{}", done.stderr);
    // Marks that the program made inside the window are on the window's timeline, in order.
    let trace = gpuflame(&done.folder, ["convert", "second/prefix.gfr", "--to", "chrome"]).ok();
    let trace: serde_json::Value = serde_json::from_str(&trace.stdout).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let marks: Vec<_> = events.iter().filter(|event| event["ph"] == "i").collect();
    let names: Vec<_> = marks.iter().map(|mark| mark["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["step 0", "step 1", "step 2", "step 3", "step 4"]);
    let first_call = events.iter().find(|event| event["ph"] == "X").unwrap();
    assert!(marks.iter().all(|mark| mark["tid"] == first_call["tid"]), "{marks:?}");
    assert!(marks[0]["ts"].as_f64() <= first_call["ts"].as_f64(), "{first_call}");
}

#[test]
fn a_header_only_program_runs_without_the_library() {
    let program = compile("tests/programs/header_only.c", &["-O2"]);
    for when in ["early", "late"] {
        let done = Run::new(&program, Way::None).args([when, "alone"]).ok();
        assert_eq!((done.stdout.as_str(), done.stderr.as_str()), ("", ""));
        assert_eq!(done.truth().count("count"), 1);
    }
}

#[test]
fn a_header_only_program_finds_a_library_loaded_early_or_late() {
    let program = compile("tests/programs/header_only.c", &["-O2"]);
    for (way, when, name) in [
        (Way::Injected, "early", "found"),
        (Way::Injected, "late", "at once"),
        (Way::Preloaded, "late", "at once"),
    ] {
        let done = Run::new(&program, way).args([when]).ok();
        let expected: Vec<_> =
            ["main", "launch", "cudaLaunchKernel", &format!("[range]{name}"), "[GPU_Kernel]work_d1000"]
                .map(str::to_owned)
                .to_vec();
        assert_eq!(done.folded(), [(expected, 1000)], "{when}\n{}", done.stderr);
    }
}
