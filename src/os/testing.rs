//! Creates and lists folders for the unit tests of modules that create files.

use std::fs;
use std::path::{Path, PathBuf};

/// Creates an empty folder for this process. No other test may use the same `name`.
pub fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("gpuflame-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// Returns the names of the files in a folder, in alphabetical order.
pub fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
