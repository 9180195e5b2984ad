//! The Pythons that are here.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The oldest that anything of ours is for.
pub const OLDEST: (u32, u32) = (3, 9);

/// Pythons that are here and have these modules, by version: the one that is called so, and those of pyenv.
pub fn pythons(modules: &str) -> BTreeMap<(u32, u32), PathBuf> {
    let versions = std::env::var_os("HOME").map(|home| Path::new(&home).join(".pyenv/versions"));
    let folders = versions.and_then(|folder| folder.read_dir().ok()).into_iter().flatten().flatten();
    let others = folders.map(|folder| folder.path().join("bin/python3"));
    let all = others.chain([PathBuf::from("python3")]);
    let known = all.filter_map(|python| Some((version(&python, modules)?, python)));
    known.filter(|(found, _)| *found >= OLDEST).collect()
}

fn version(python: &Path, modules: &str) -> Option<(u32, u32)> {
    let code = format!("import sys, {modules}; print(*sys.version_info[:2])");
    let output = Command::new(python).args(["-c", &code]).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let (major, minor) = text.trim().split_once(' ')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}
