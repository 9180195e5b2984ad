//! The Python package: its wheel is installed into an empty environment, with the oldest supported Python and the newest on
//! this machine, and used in that environment on the simulated stack.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::support::pythons::{package_builder, pythons};
use crate::support::{Done, Run, Way, compile, gpuflame, root, scratch, skip};

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (said, failed) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}\n{said}{failed}");
    said.into_owned()
}

/// A wheel of the tests' library and command: `wheel`, or `wheel:editable`. `None` if there is nothing to build it with.
fn wheel(kind: &str) -> Option<PathBuf> {
    let python = package_builder()?;
    let (built, out) = (scratch("built"), scratch("wheel"));
    for (name, path) in [("libgpuflame.so", gpuflame()), ("gpuflame", env!("CARGO_BIN_EXE_gpuflame").into())]
    {
        run(Command::new("strip").args(["--strip-unneeded", "-o"]).arg(built.join(name)).arg(path));
    }
    let mut build = Command::new(python);
    build.args(["-m", "hatchling", "build", "-t", kind, "-d"]).arg(&out).current_dir(root());
    run(build.env("PREBUILT_GPUFLAME", &built));
    fs::remove_dir_all(built).unwrap();
    let built = out.read_dir().unwrap().map(|entry| entry.unwrap().path()).next();
    Some(built.expect("one wheel"))
}

/// An environment that contains only the package, installed without a network. Returns its Python.
fn installed(python: &Path, wheel: &Path) -> PathBuf {
    let folder = scratch("venv");
    run(Command::new(python).args(["-m", "venv"]).arg(&folder));
    let inside = folder.join("bin/python");
    let mut pip = Command::new(&inside);
    pip.args(["-m", "pip", "install", "--quiet", "--no-index", "--disable-pip-version-check"]);
    run(pip.arg(wheel).env("PIP_NO_CACHE_DIR", "1"));
    inside
}

/// The wheel of this machine, which the tests share.
fn shared_wheel() -> Option<&'static Path> {
    static WHEEL: OnceLock<Option<PathBuf>> = OnceLock::new();
    WHEEL.get_or_init(|| wheel("wheel")).as_deref()
}

/// Python of an environment that the tests share, made with `python3`.
fn shared() -> Option<&'static Path> {
    static PYTHON: OnceLock<Option<PathBuf>> = OnceLock::new();
    PYTHON.get_or_init(|| Some(installed(Path::new("python3"), shared_wheel()?))).as_deref()
}

fn script(python: &Path, way: Way, path: &str) -> Run {
    Run::new(python, way).arg(root().join(path))
}

fn assert_the_middle_hundred(done: &Done) {
    let (launches, parts) = done.sum("launches");
    assert_eq!((launches, parts["matched"], parts["outside"]), (200, 100, 100), "{}", done.stderr);
    let mut by_range = BTreeMap::new();
    for (frames, nanos) in done.folded() {
        let range = frames[frames.len() - 2].clone();
        *by_range.entry(range).or_insert(0) += nanos;
    }
    let ranges: Vec<_> = by_range.keys().map(String::as_str).collect();
    assert_eq!(ranges, ["[range]first half", "[range]second half"]);
    let busy: u64 = by_range.values().sum();
    assert!(done.stdout.starts_with(&format!("100 launches, {busy} ns busy and ")), "{}", done.stdout);
    assert!(done.stdout.ends_with(" ns idle, 1 step\n"), "{}", done.stdout);
}

#[test]
fn the_installed_package_records_a_window_on_the_oldest_and_newest_python() {
    let Some(wheel) = shared_wheel() else { return };
    let all = pythons("venv, ensurepip");
    let ends = [all.first_key_value(), all.last_key_value()];
    let mut ends: Vec<_> = ends.into_iter().flatten().collect();
    ends.dedup();
    assert!(!ends.is_empty(), "the tests need Python");
    for (_, python) in ends {
        let python = installed(python, wheel);
        let done = script(&python, Way::None, "examples/embed.py").ok();
        assert_the_middle_hundred(&done);
    }
}

#[test]
fn the_wheel_is_for_this_machine_and_contains_header_and_command() {
    let Some(python) = shared() else { return };
    let code = "import importlib.metadata as m, sysconfig; d = m.distribution('gpuflame')\n\
                print(d.version, 'py3-none-' + sysconfig.get_platform().replace('-', '_') in d.read_text('WHEEL'))\n\
                import gpuflame, os; print(os.path.exists(gpuflame.get_include() + '/gpuflame.h'))";
    let said = run(Command::new(python).args(["-c", code]));
    assert_eq!(said, concat!(env!("CARGO_PKG_VERSION"), " True\nTrue\n"));
    let command = python.with_file_name("gpuflame");
    assert_eq!(
        run(Command::new(command).arg("--version")),
        concat!("gpuflame ", env!("CARGO_PKG_VERSION"), "\n")
    );
}

#[test]
fn an_editable_install_uses_the_files_of_the_clone() {
    let Some(wheel) = wheel("wheel:editable") else { return };
    let python = installed(Path::new("python3"), &wheel);
    let code = "import gpuflame, chakra_trace.manager; print(gpuflame.__file__)";
    let said = run(Command::new(python).args(["-c", code]));
    assert_eq!(Path::new(said.trim()), root().join("capi/python/src/gpuflame/__init__.py"));
}

#[test]
fn the_python_module_runs_and_records_a_script() {
    let Some(python) = shared() else { return };
    let run = Run::new(python, Way::None).args(["-m", "gpuflame", "run"]);
    let done = run.arg(root().join("examples/embed.py")).ok();
    // If gpuflame is injected, it runs from the start: the first window holds the launches before the program's own
    // window.
    let (launches, parts) = done.sum("launches");
    assert_eq!((launches, parts["matched"], parts["outside"]), (300, 200, 100), "{}", done.stderr);
    assert!(done.stderr.contains("300 launches"), "{}", done.stderr);
    let failed = Run::new(python, Way::None).args(["-m", "gpuflame", "run", "--", "false"]).done();
    assert_eq!(failed.code, Some(1), "{}", failed.stderr);
}

#[test]
fn a_window_without_cuda_warns_once_and_the_program_continues() {
    let Some(python) = shared() else { return };
    let code = "import gpuflame\n\
                for _ in range(3):\n    with gpuflame.window('w'), gpuflame.range('r'):\n        gpuflame.mark('m')\n\
                gpuflame.step()\n\
                try:\n    gpuflame.start()\nexcept gpuflame.Error as error:\n    print(error.code)\n\
                print(gpuflame.is_active())\n\
                for prefix in (None, 'a\\0b'):\n    try:\n        gpuflame.set_output(prefix)\n    except (TypeError, ValueError) as error:\n        print(type(error).__name__)\n\
                gpuflame.set_output('out/')\n";
    let run = Run::new(python, Way::None).args(["-c", code]).with_libraries(Path::new("/nowhere"));
    let done = run.ok();
    assert_eq!(done.stdout, "-1\nFalse\nTypeError\nValueError\n", "{}", done.stderr);
    assert_eq!(done.stderr.matches("gpuflame does not record").count(), 1, "{}", done.stderr);
}

#[test]
fn range_rejects_coroutine_and_generator_functions() {
    let Some(python) = shared() else { return };
    let code = "import gpuflame\n\
                async def wait(): pass\n\
                def give(): yield\n\
                for function in (wait, give):\n    try:\n        gpuflame.range('x')(function)\n    except TypeError as error:\n        print(error)\n";
    let said = run(Command::new(python).args(["-c", code]));
    assert_eq!(said.matches("use `with`").count(), 2, "{said}");
}

#[test]
fn arrow_tables_of_recordings_and_traces_have_the_sums_of_the_stacks() {
    let Some(python) = shared() else { return };
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let arrow = target.join("python/arrow/bin/python");
    if !arrow.exists() {
        return skip("Arrow is not installed; run `tests/python/install`");
    }
    let program = compile("tests/programs/ranges.c", &["-O2", "-DLINKED"]);
    let recorded = Run::new(&program, Way::Injected).env("GPUFLAME_FORMATS", "folded,gfr").ok();
    let large = compile("examples/llm_inference.c", &["-O2"]);
    let large =
        Run::new(&large, Way::Injected).env("GPUFLAME_FORMATS", "gfr").args(["--tokens", "1900"]).ok();
    let trace = recorded.folder.join("trace.json");
    let events = r#"{"traceEvents": [
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": 5, "dur": 2, "args": {"correlation": 7}},
        {"ph": "X", "cat": "kernel", "name": "softmax", "pid": 0, "tid": 7, "ts": 9, "dur": 30, "args": {"correlation": 7, "device": 0, "stream": 7}}
    ]}"#;
    fs::write(&trace, events).unwrap();
    // The package is in a different environment of the same Python.
    let packages =
        run(Command::new(python).args(["-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]));
    let mut command = Command::new(arrow);
    command.arg(root().join("tests/python/read.py")).env("PYTHONPATH", packages.trim());
    command.args(["out.gfr", "trace.json", "out.folded"]).arg(large.folder.join("out.gfr"));
    command.current_dir(&recorded.folder);
    let said = run(&mut command);
    assert_eq!(said, format!("{} activities\n", recorded.sum("activities").0));
}

/// Number of calls and fills in each timeline in `folder`.
fn timelines(folder: &Path) -> Vec<(usize, usize)> {
    let files = folder.read_dir().unwrap().map(|entry| entry.unwrap().path());
    let files = files.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("kineto_"));
    let counts = files.map(|path| {
        let text = fs::read_to_string(path).unwrap();
        let trace: serde_json::Value = serde_json::from_str(&text).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        let of = |kind: &str| events.iter().filter(|event| event["cat"] == kind).count();
        (of("cuda_runtime"), of("gpu_memset"))
    });
    counts.collect()
}

#[test]
fn a_driver_makes_two_workers_record_with_a_flag_file() {
    let Some(python) = shared() else { return };
    let folder = scratch("flag");
    script(python, Way::None, "examples/vllm_window.py").arg(&folder).ok();
    // Each of two workers has two windows. A window opens at the first tick that sees the flag file, and closes at the
    // first tick that does not see it. Between these ticks are two steps with the file and one without, of ten fills
    // each.
    assert_eq!(timelines(&folder), [(30, 30); 4]);
}

#[test]
fn the_manager_writes_the_same_windows_with_and_without_torch() {
    let Some(python) = shared() else { return };
    for torch in [true, false] {
        let folder = scratch("manager");
        let run = script(python, Way::None, "tests/python/manager.py").arg(&folder);
        let done = if torch { run.arg("--with-torch") } else { run }.ok();
        assert_eq!(done.stdout, "3 windows, and one is open\n", "{}", done.stderr);
        let mut windows = timelines(&folder);
        windows.sort_unstable();
        assert_eq!(windows, [(3, 3), (4, 4), (5, 5), (6, 6)], "{}", done.stderr);
        let told = done.stderr.lines().filter(|line| line.contains("PyTorch is not installed")).count();
        assert_eq!(
            (told, done.stderr.lines().count()),
            (usize::from(!torch), usize::from(!torch)),
            "{}",
            done.stderr
        );
    }
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
