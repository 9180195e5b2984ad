//! Tests the Python package. The package's wheel is installed into empty environments, for the oldest supported and the
//! newest Python of this machine. In these environments, the tests use the package on the simulated CUDA stack.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::support::pythons::{debian_pythons, package_builder, pythons};
use crate::support::{Done, Run, Way, compile, gpuflame, root, scratch, skip};

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (said, failed) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}\n{said}{failed}");
    said.into_owned()
}

/// Builds a Python wheel with the library and the command that the tests built. `kind` is `wheel` or `wheel:editable`.
/// Returns `None` if the tools for building a wheel are missing.
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

/// Creates an environment that contains only the package; the package is installed without network access. Returns the
/// environment's Python.
fn installed(python: &Path, wheel: &Path) -> PathBuf {
    let folder = scratch("venv");
    run(Command::new(python).args(["-m", "venv"]).arg(&folder));
    let inside = folder.join("bin/python");
    let mut pip = Command::new(&inside);
    pip.args(["-m", "pip", "install", "--quiet", "--no-index", "--disable-pip-version-check"]);
    run(pip.arg(wheel).env("PIP_NO_CACHE_DIR", "1"));
    inside
}

/// Returns the wheel for this machine's Python; all tests use the same wheel.
fn shared_wheel() -> Option<&'static Path> {
    static WHEEL: OnceLock<Option<PathBuf>> = OnceLock::new();
    WHEEL.get_or_init(|| wheel("wheel")).as_deref()
}

/// Returns the Python of an environment that all tests use. The environment was made with `python3`.
pub(crate) fn shared() -> Option<&'static Path> {
    static PYTHON: OnceLock<Option<PathBuf>> = OnceLock::new();
    PYTHON.get_or_init(|| Some(installed(Path::new("python3"), shared_wheel()?))).as_deref()
}

pub(crate) fn script(python: &Path, way: Way, path: &str) -> Run {
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

/// The scripts `dist/try` and `tests/pytorch/install` install into such environments.
#[test]
fn environments_work_for_pythons_with_pip_and_for_those_that_a_script_starts() {
    let ours = ((0, 0), PathBuf::from("python3"));
    for (_, python) in [ours].into_iter().chain(debian_pythons().into_iter().next()) {
        let folder = scratch("environment").join("venv");
        run(Command::new(root().join("tests/python/environment")).arg(&python).arg(&folder));
        // Checks that the program runs in the environment, and that the environment's Python is the requested one.
        let code = "import sys; print(sys.prefix != sys.base_prefix, sys.prefix, sys.version)";
        let version = run(Command::new(&python).args(["-c", "import sys; print(sys.version)"]));
        let said = run(Command::new(folder.join("bin/python")).args(["-c", code]));
        assert_eq!(said, format!("True {} {version}", folder.display()));
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
    // If gpuflame is injected, it records from the start. Therefore gpuflame's first window contains the launches
    // before the program's own window.
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
    // The package is installed in another environment of the same Python.
    let packages =
        run(Command::new(python).args(["-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]));
    let mut command = Command::new(arrow);
    command.arg(root().join("tests/python/read.py")).env("PYTHONPATH", packages.trim());
    command.args(["out.gfr", "trace.json", "out.folded"]).arg(large.folder.join("out.gfr"));
    command.current_dir(&recorded.folder);
    let said = run(&mut command);
    assert_eq!(said, format!("{} activities\n", recorded.sum("activities").0));
}
