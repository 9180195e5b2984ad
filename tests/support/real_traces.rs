//! Finds traces that other tools recorded. Tests check properties that all these traces must have.
#![allow(dead_code, unreachable_pub)] // Some test binaries use only a part of this module.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

#[path = "skip.rs"]
pub mod skip;

/// Parts of the error messages with which the command refuses files without GPU work.
const REFUSALS: [&str; 4] =
    ["contains no GPU work", "is a PyTorch execution trace", "not a trace", "no trace"];

/// Returns the paths of all traces in the folder that `GPUFLAME_TRACES` names, without the operation files of straggler
/// studies. Archives are unpacked into the build folder's subfolder `name`. If the variable is not set, the function
/// prints the reason for skipping the test, and returns `None`.
pub fn real_traces(name: &str) -> Option<Vec<PathBuf>> {
    let Some(folder) = std::env::var_os("GPUFLAME_TRACES").map(PathBuf::from) else {
        skip::skip("there is no folder of real traces (GPUFLAME_TRACES names one)");
        return None;
    };
    let mut all = files(&folder);
    let unpacked = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&unpacked).unwrap();
    for archive in all.iter().filter(|file| file.to_string_lossy().ends_with(".tar.gz")) {
        let status = Command::new("tar").arg("-xzf").arg(archive).arg("-C").arg(&unpacked).status();
        assert!(status.unwrap().success(), "{}", archive.display());
    }
    all.extend(files(&unpacked));
    let is_trace = |file: &PathBuf| {
        let path = file.to_string_lossy();
        [".json", ".json.gz", ".sqlite"].iter().any(|ending| path.ends_with(ending))
            && !path.contains("/stragglers/")
    };
    all.retain(is_trace);
    all.sort();
    Some(all)
}

/// Paths of the files in a folder and its subfolders.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = folder.read_dir().unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// Runs the gpuflame command `program`, and returns the tables that it prints. Returns `None` if the file contains no
/// GPU work.
pub fn tables(program: &str, args: &[&str]) -> Option<Value> {
    let output = Command::new(program).arg("-q").args(args).args(["--format", "json"]).output().unwrap();
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(REFUSALS.iter().any(|reason| text.contains(reason)), "{args:?}: {text}");
        return None;
    }
    Some(serde_json::from_slice(&output.stdout).unwrap())
}
