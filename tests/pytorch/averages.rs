//! Compares PyTorch's own table `key_averages()` with `gpuflame top` on the trace of the same run.

use std::collections::BTreeMap;
use std::path::Path;

use crate::installed::{folder, run};
use crate::support::command::gpuflame;
use crate::support::{Way, scratch};
use serde_json::Value;

/// Operators of `train.py` that call an operator with the same name as their own. PyTorch counts the time of the inner
/// call of such an operator twice.
const RECURSIVE: [&str; 2] = ["aten::linear", "aten::nll_loss"];

/// Returns the sum in ns for each name in a table of `gpuflame top`.
fn sums(folder: &Path, args: &[&str], columns: [&str; 3]) -> BTreeMap<String, u64> {
    let [table, name, nanos] = columns;
    let args = ["top", "trace.json", "--keep-numbers", "-n", "0", "--format", "json", "--by", table]
        .into_iter()
        .chain(args.iter().copied());
    let tables: Value = serde_json::from_str(&gpuflame(folder, args).ok().stdout).unwrap();
    let rows = tables[table].as_array().unwrap();
    rows.iter().map(|row| (row[name].as_str().unwrap().to_owned(), row[nanos].as_u64().unwrap())).collect()
}

/// A row of `key_averages()`.
struct Average {
    name: String,
    on_gpu: bool,
    is_annotation: bool,
    self_ns: u64,
    total_ns: u64,
}

fn averages(file: &Path) -> Vec<Average> {
    let rows: Vec<Value> = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    let nanos = |row: &Value, column: &str| (row[column].as_f64().unwrap() * 1_000.0).round() as u64;
    rows.iter()
        .map(|row| Average {
            name: row["name"].as_str().unwrap().to_owned(),
            on_gpu: row["on_gpu"] == true,
            is_annotation: row["is_annotation"] == true,
            self_ns: nanos(row, "self_us"),
            total_ns: nanos(row, "total_us"),
        })
        .collect()
}

#[test]
fn figures_equal_those_of_key_averages() {
    let Some(python) = folder() else { return };
    let folder = scratch("averages");
    let [trace, table] = ["trace.json", "table.json"].map(|name| folder.join(name));
    run(python, "averages.py", Way::None)
        .args([trace.to_str().unwrap(), table.to_str().unwrap(), "train.py"])
        .env("GPUSIM_CLOCK", "real")
        .ok();
    let averages = averages(&table);
    let kernels = sums(&folder, &[], ["kernels", "name", "total_ns"]);
    // Copies and fills have different names in the two tables, so the test compares only kernels. Annotations are spans
    // of GPU time that contain no GPU work of their own.
    let is_kernel = |row: &&Average| row.on_gpu && !row.is_annotation && !row.name.starts_with("Mem");
    let theirs: BTreeMap<_, _> =
        averages.iter().filter(is_kernel).map(|row| (row.name.clone(), row.self_ns)).collect();
    let is_kernel =
        |name: &str| theirs.contains_key(name) || !["HtoD", "DtoH", "DtoD", "memset"].contains(&name);
    let ours: BTreeMap<_, _> = kernels.into_iter().filter(|(name, _)| is_kernel(name)).collect();
    assert!(theirs.len() > 40, "{} kernels", theirs.len());
    assert_eq!(ours, theirs);

    let innermost = sums(&folder, &["--self"], ["function", "function", "gpu_ns"]);
    let all = sums(&folder, &[], ["function", "function", "gpu_ns"]);
    let mut compared = 0;
    // PyTorch's table also has rows for CUDA calls. The time in such a row does not include the GPU work that the call
    // launches.
    for row in averages.iter().filter(|row| !row.on_gpu && !row.name.starts_with("cuda")) {
        let of = |sums: &BTreeMap<String, u64>| sums.get(&row.name).copied().unwrap_or(0);
        assert_eq!(of(&innermost), row.self_ns, "{}", row.name);
        match RECURSIVE.contains(&&*row.name) {
            true => assert!(of(&all) > 0 && of(&all) < row.total_ns, "{}", row.name),
            false => assert_eq!(of(&all), row.total_ns, "{}", row.name),
        }
        compared += usize::from(row.total_ns > 0);
    }
    assert!(compared > 80, "{compared} operators");
}
