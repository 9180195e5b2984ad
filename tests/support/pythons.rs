//! Finds the Python interpreters on this machine.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Oldest Python version that gpuflame supports.
pub const OLDEST: (u32, u32) = (3, 9);

/// Paths of the Python interpreters that have these modules, keyed by version: `python3`, and the interpreters that
/// pyenv installed.
pub fn pythons(modules: &str) -> BTreeMap<(u32, u32), PathBuf> {
    let versions = std::env::var_os("HOME").map(|home| Path::new(&home).join(".pyenv/versions"));
    let folders = versions.and_then(|folder| folder.read_dir().ok()).into_iter().flatten().flatten();
    let others = folders.map(|folder| folder.path().join("bin/python3"));
    let all = others.chain([PathBuf::from("python3")]);
    let known = all.filter_map(|python| Some((version(&python, modules)?, python)));
    known.filter(|(found, _)| *found >= OLDEST).collect()
}

/// Returns the path of a Python that can build gpuflame's Python package; `tests/python/install` installs this Python.
/// If no such Python is installed, the function skips the test.
#[allow(dead_code)] // Test binaries that build no package do not use this function.
pub fn package_builder() -> Option<PathBuf> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let python = target.join("python/arrow/bin/python");
    let found = version(&python, "hatchling").map(|_| python);
    if found.is_none() {
        super::skip(
            "hatchling, which builds the Python package, is not installed; run `tests/python/install`",
        );
    }
    found
}

/// Exit code with which a script reports that this machine cannot run it.
const UNAVAILABLE_EXIT_CODE: i32 = 75;

/// Python interpreters that `tests/python/interpreters` has unpacked, sorted by version and then by name: `python3.14d`
/// is a debug build of 3.14. In CI these interpreters must exist, unless Debian no longer has their packages: its
/// newest release changes every day.
pub fn debian_pythons() -> Vec<((u32, u32), PathBuf)> {
    let script = super::root().join("tests/python/interpreters");
    let output = Command::new(script).args((!super::is_ci()).then_some("--found")).output().unwrap();
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(UNAVAILABLE_EXIT_CODE), "{said}");
        super::skip(&format!("Debian's Pythons are not available: {said}"));
        return Vec::new();
    }
    let folder = PathBuf::from(String::from_utf8(output.stdout).unwrap().trim_end()).join("bin");
    let all = folder.read_dir().unwrap().map(|entry| entry.unwrap().path());
    let mut all: Vec<_> = all.filter_map(|python| Some((version(&python, "ctypes")?, python))).collect();
    all.sort();
    all
}

fn version(python: &Path, modules: &str) -> Option<(u32, u32)> {
    let code = format!("import sys, {modules}; print(*sys.version_info[:2])");
    let output = Command::new(python).args(["-c", &code]).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let (major, minor) = text.trim().split_once(' ')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}
