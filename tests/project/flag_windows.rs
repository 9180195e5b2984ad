//! Tests recording windows that a flag file opens in worker processes (with `chakra_trace.manager`), without PyTorch.
//! The GPU work of the programs was counted by hand.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::chakra_decoder::{assert_acyclic, decode};
use crate::python::{script, shared};
use crate::support::command::gpuflame;
use crate::support::{Run, Way, root, scratch};

fn events(path: &Path) -> Vec<Value> {
    let trace: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    trace["traceEvents"].as_array().unwrap().clone()
}

/// Returns the files in `folder` whose names begin with `start`, in the order of their windows.
fn files(folder: &Path, start: &str) -> Vec<PathBuf> {
    let all = folder.read_dir().unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<_> =
        all.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with(start)).collect();
    found.sort();
    found
}

/// Returns the number of API calls and the number of fills in each timeline in `folder`.
fn timelines(folder: &Path) -> Vec<(usize, usize)> {
    let counts = files(folder, "kineto_").into_iter().map(|path| {
        let events = events(&path);
        let of = |kind: &str| events.iter().filter(|event| event["cat"] == kind).count();
        (of("cuda_runtime"), of("gpu_memset"))
    });
    counts.collect()
}

/// Returns the total duration, in ns, of the fills in a timeline. Times in the timeline are microseconds with three
/// decimals.
fn gpu_ns(path: &Path) -> u64 {
    let events = events(path).into_iter().filter(|event| event["cat"] == "gpu_memset");
    events.map(|event| (event["dur"].as_f64().unwrap() * 1000.0).round() as u64).sum()
}

/// Returns the sizes of the fills in a timeline, each with the number of fills of this size.
fn fills(path: &Path) -> Vec<(u64, usize)> {
    let mut sizes: Vec<_> = events(path)
        .iter()
        .filter(|event| event["cat"] == "gpu_memset")
        .map(|event| event["args"]["bytes"].as_u64().unwrap())
        .collect();
    sizes.sort_unstable();
    sizes.chunk_by(|one, other| one == other).map(|equal| (equal[0], equal.len())).collect()
}

/// Returns the sizes of the fills that `tests/python/workers.py` makes in a range of steps, each with the number of
/// fills of this size.
fn steps(numbers: std::ops::Range<u64>) -> Vec<(u64, usize)> {
    numbers.map(|step| (1000 + step, 10)).collect()
}

/// The flag file exists during one call of the driver process, or is created again between two calls. A worker is
/// killed while the last window is open.
#[test]
fn workers_record_exactly_the_calls_during_which_the_flag_file_exists() {
    let Some(python) = shared() else { return };
    let folder = scratch("workers");
    let done = script(python, Way::None, "tests/python/workers.py").arg(&folder).ok();
    let pids: Vec<&str> = done.stdout.split_whitespace().collect();
    let [killed, survivor] = pids[..] else { panic!("{}", done.stdout) };
    for (process, windows) in [(killed, 3), (survivor, 4)] {
        let timelines = files(&folder, &format!("kineto_pid{process}_"));
        let found: Vec<_> = timelines.iter().map(|path| fills(path)).collect();
        let all = [5..10, 15..20, 20..25, 30..35].map(steps);
        assert_eq!(found, all[..windows], "{}", done.stderr);
        assert_eq!(files(&folder, &format!("gpuflame_pid{process}")).len(), 1);
    }
    // The recording of the killed worker contains its last window.
    let recording = format!("gpuflame_pid{killed}/workers.gfr");
    gpuflame(&folder, ["convert", "--accept-cut", "--to", "chrome", "-o", "killed.json", &recording]).ok();
    let all: Vec<_> = [5..10, 15..20, 20..25, 30..35].into_iter().flat_map(steps).collect();
    assert_eq!(fills(&folder.join("killed.json")), all);
}

#[test]
fn a_driver_makes_two_workers_record_with_a_flag_file() {
    let Some(python) = shared() else { return };
    let folder = scratch("flag");
    script(python, Way::None, "examples/vllm_window.py").arg(&folder).ok();
    // Each of the two workers has two windows of three steps, with ten fills per step.
    assert_eq!(timelines(&folder), [(30, 30); 4]);
}

/// Runs `tests/python/manager.py`, whose four windows have 3, 4, 5 and 6 fills. Returns the folder that contains the
/// program's files, and the lines that it printed to stderr.
fn manager(python: &Path, args: &[&str], auto_convert: &str) -> (PathBuf, Vec<String>) {
    let folder = scratch("manager");
    let run = script(python, Way::None, "tests/python/manager.py").arg(&folder).args(args.iter().copied());
    let run = run.env("PYTHONDONTWRITEBYTECODE", "1");
    let done = run.env("VLLM_CHAKRA_AUTO_CONVERT", auto_convert).ok();
    assert_eq!(done.stdout, "3 windows, and one is open\n", "{}", done.stderr);
    assert_eq!(timelines(&folder), [(3, 3), (4, 4), (5, 5), (6, 6)], "{}", done.stderr);
    (folder, done.stderr.lines().map(str::to_owned).collect())
}

#[test]
fn the_manager_writes_the_same_windows_with_and_without_torch() {
    let Some(python) = shared() else { return };
    let (folder, lines) = manager(python, &["--with-torch"], "0");
    assert_eq!(lines, [""; 0]);
    assert_eq!(files(&folder, "pytorch_et_").len(), 4);
    assert_eq!(files(&folder, "pytorch_et_plus_").len() + files(&folder, "chakra_trace_").len(), 0);
    let (_, lines) = manager(python, &[], "1");
    let [missing, not_linked] = &lines[..] else { panic!("{lines:?}") };
    assert!(missing.contains("PyTorch is not installed"), "{missing}");
    assert!(not_linked.contains("AUTO_CONVERT: needs both"), "{not_linked}");
}

#[test]
fn auto_convert_links_the_two_files_of_each_window() {
    let Some(python) = shared() else { return };
    let (folder, lines) = manager(python, &["--with-torch"], "1");
    assert_eq!(lines, [""; 0]);
    let linked = files(&folder, "chakra_trace_pid");
    assert_eq!((linked.len(), files(&folder, "pytorch_et_plus_pid").len()), (4, 4));
    let timelines = files(&folder, "kineto_");
    for ((path, timeline), fills) in linked.iter().zip(&timelines).zip(3..) {
        let (_, nodes) = decode(&fs::read(path).unwrap());
        assert_acyclic(&nodes);
        let operator = nodes.iter().find(|node| node.name == "op").unwrap().id;
        let work: Vec<_> = nodes.iter().filter(|node| node.is_gpu()).collect();
        assert_eq!(work.len(), fills, "{}", path.display());
        assert!(work.iter().all(|node| node.ctrl_deps == [operator]), "{work:?}");
        let total: u64 = work.iter().map(|node| node.number("duration_ns").unwrap()).sum();
        assert_eq!(total, gpu_ns(timeline), "{}", path.display());
    }
}

#[test]
fn auto_convert_prints_a_line_for_each_window_that_cannot_be_linked() {
    let Some(python) = shared() else { return };
    let (folder, lines) = manager(python, &["--with-torch", "--foreign"], "1");
    assert_eq!(lines.len(), 4, "{lines:?}");
    for line in lines {
        assert!(line.contains("AUTO_CONVERT: `gpuflame link-et` failed: "), "{line}");
        assert!(line.contains("no rf_id of the execution trace is a Record function id"), "{line}");
    }
    assert_eq!(files(&folder, "pytorch_et_plus_").len() + files(&folder, "chakra_trace_").len(), 0);
    assert_eq!(files(&folder, "pytorch_et_pid").len(), 4);
}

#[test]
fn a_disabled_manager_records_and_prints_nothing() {
    let Some(python) = shared() else { return };
    let code = "import os\nfrom chakra_trace.manager import get_global_manager\nmanager = get_global_manager()\n\
                open('flag', 'w').close()\nfor _ in range(3):\n    manager.tick_by_flag()\n\
                manager.start()\nmanager.step()\nmanager.stop()\nprint(manager.active, manager.written, sorted(os.listdir()))\n";
    let run = Run::new(python, Way::None).args(["-c", code]).env("VLLM_CHAKRA_FLAG", "flag");
    let done = run.env("VLLM_CHAKRA_TRACE", "0").env("VLLM_CHAKRA_RECORD_SHAPES", "1").ok();
    assert_eq!((done.stdout.as_str(), done.stderr.as_str()), ("False [] ['flag']\n", ""));
}

#[test]
fn the_manager_prints_the_missing_parts_if_it_cannot_record() {
    let Some(python) = shared() else { return };
    let code = "import os, sys\nsys.modules['torch'] = None\n\
                from chakra_trace.manager import get_global_manager\n\
                manager = get_global_manager()\nopen('flag', 'w').close()\n\
                for _ in range(3):\n    manager.tick_by_flag()\nos.remove('flag')\nmanager.tick_by_flag()\nprint(manager.written)\n";
    let run = Run::new(python, Way::None).args(["-c", code]).with_libraries(Path::new("/nowhere"));
    let done = run.env("VLLM_CHAKRA_FLAG", "flag").env("VLLM_CHAKRA_TRACE_MAX_STEPS", "many").ok();
    assert_eq!(done.stdout, "[]\n", "{}", done.stderr);
    for word in ["have no calls", "no execution trace", "traces go to", "is not a number"] {
        assert_eq!(done.stderr.matches(word).count(), 1, "{word}\n{}", done.stderr);
    }
}

#[test]
fn without_cuda_the_timeline_has_operators_alone_and_one_line_reports_it() {
    let Some(python) = shared() else { return };
    let code = "import os, sys\nsys.path.insert(0, os.environ['STUBS'])\nimport stub_torch\nstub_torch.install()\n\
                from chakra_trace.manager import get_global_manager\n\
                manager = get_global_manager()\nopen('flag', 'w').close()\n\
                for _ in range(3):\n    manager.tick_by_flag()\nos.remove('flag')\nmanager.tick_by_flag()\n";
    let run = Run::new(python, Way::None).args(["-c", code]).with_libraries(Path::new("/nowhere"));
    let run = run.env("STUBS", root().join("tests/python")).env("PYTHONDONTWRITEBYTECODE", "1");
    let done = run.env("VLLM_CHAKRA_FLAG", "flag").env("VLLM_CHAKRA_TRACE_DIR", ".").ok();
    assert_eq!(done.stderr.lines().count(), 1, "{}", done.stderr);
    assert!(done.stderr.contains("have no calls and no GPU work"), "{}", done.stderr);
    let [timeline] = &files(&done.folder, "kineto_")[..] else { panic!("{}", done.stderr) };
    let events = events(timeline);
    assert!(events.len() == 1 && events[0]["name"] == "op", "{events:?}");
    assert_eq!(files(&done.folder, "pytorch_et_pid").len(), 1);
}

/// The defaults are those of the chakra_trace library. Only the default folder is different from that library's,
/// because that library uses its author's home folder.
#[test]
fn variables_that_are_not_set_have_the_defaults_of_the_library() {
    let Some(python) = shared() else { return };
    let code = "from chakra_trace.manager import Settings\n\
                for text in ('', 'YES', 'off'):\n    \
                names = ('TRACE', 'RECORD_SHAPES', 'WITH_STACK', 'AUTO_CONVERT', 'SYNC_CUDA', 'DEBUG')\n    \
                one = Settings({'VLLM_CHAKRA_' + name: text for name in names} if text else {})\n    \
                print(one.enabled, one.record_shapes, one.with_stack, one.auto_convert, one.synchronize, one.debug, one.most_steps, one.flag)\n";
    let done = Run::new(python, Way::None).args(["-c", code]).ok();
    let flag = "0 /tmp/vllm_chakra_trace_on";
    let expected = [
        "True True False False False False",
        "True True True True True True",
        "False False False False False False",
    ];
    let expected: Vec<_> = expected.iter().map(|values| format!("{values} {flag}")).collect();
    assert_eq!(done.stdout.lines().collect::<Vec<_>>(), expected, "{}", done.stderr);
}
