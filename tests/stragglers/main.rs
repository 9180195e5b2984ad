//! Tests `gpuflame stragglers` on published data with published results, on the ranks of a real job, and on small jobs
//! whose results are computed by hand.

mod pipeline_files;
mod published;
mod ranks;

#[allow(unreachable_pub)] // Other test binaries use this module, too.
#[path = "../support/command.rs"]
mod command;
#[path = "../support/rank_traces.rs"]
mod rank_traces;
#[path = "../support/skip.rs"]
mod skip;

use std::path::{Path, PathBuf};

use serde_json::Value;

/// Returns the output of `gpuflame stragglers ARGS --format json`.
fn stragglers(folder: &Path, args: &[&str]) -> Value {
    let args = [&["stragglers"], args, &["--format", "json"]].concat();
    serde_json::from_str(&command::gpuflame(folder, args).ok().stdout).unwrap()
}

/// Returns a file or folder of real traces. If there is no such file or folder, prints why the test is skipped and
/// returns `None`.
fn real(name: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("GPUFLAME_TRACES").map(PathBuf::from);
    let path = folder.map(|folder| folder.join(name)).filter(|path| path.exists());
    if path.is_none() {
        skip::skip("there is no folder of real traces (GPUFLAME_TRACES names one)");
    }
    path
}

/// Creates an empty folder for a test.
fn scratch(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("gpuflame-stragglers-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn number(row: &Value, key: &str) -> f64 {
    row[key].as_f64().unwrap_or_else(|| panic!("no {key} in {row}"))
}

fn assert_near(what: &str, found: f64, expected: f64, within: f64) {
    assert!((found - expected).abs() <= within, "{what}: {found} is not {expected} within {within}");
}

/// Returns the only row of a table with this value in a column.
fn row<'a>(output: &'a Value, table: &str, column: &str, value: &str) -> &'a Value {
    let rows = output[table].as_array().unwrap_or_else(|| panic!("no {table} in {output}"));
    let mut rows = rows.iter().filter(|row| row[column] == value);
    rows.next().unwrap_or_else(|| panic!("no {value} in {table}: {}", output[table]))
}
