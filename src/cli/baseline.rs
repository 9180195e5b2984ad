//! A baseline file stores the values of runs before a change. Later runs can then be compared with the stored values
//! even if the recordings no longer exist.
//!
//! A baseline file contains a JSON object. The first key of the file is `gpuflame_baseline`, whose value is the version
//! of the format. The value of `runs` is a list with one object per run. Each object in `runs` contains the totals of
//! one run. The values of `kernels` and `stacks` are objects that map each name to an array with one duration in ns per
//! run.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::path::Path;

use serde_json::{Value, json};

use super::console::Console;
use super::input::Source;
use super::output::Target;
use super::run_values::{RunValues, Sums};
use gpuflame_export::NameFolding;
use gpuflame_model::error::{Error, ErrorKind, Result};
use gpuflame_offline::analysis::MIN_RUNS;

/// Version of the baseline file's format.
const VERSION: u64 = 1;
/// First key of a baseline file, by which the file is recognized.
const KEY: &str = "\"gpuflame_baseline\"";
/// Maximum number of kernels, and of stacks, in a baseline. The kernels and stacks with the longest durations are
/// stored.
const MAX_NAMES: usize = 1000;
/// Maximum size in bytes of a baseline file that is read.
const MAX_BYTES: u64 = 256 << 20;

/// Writes the values of `runs` to `file`. Each run and each name has its own line, so that line-based tools such as
/// `git diff` can compare two versions of the file.
pub(super) fn save(file: &Path, runs: &[RunValues], names: NameFolding, console: Console) -> Result<()> {
    if runs.len() < MIN_RUNS {
        console.remark(format!("a baseline of fewer than {MIN_RUNS} runs gives no verdict; 7 are better"));
    }
    let totals: Vec<String> = runs.iter().map(|run| run.to_json().to_string()).collect();
    let lines = |sums: BTreeMap<String, Vec<u64>>| {
        let lines = sums.into_iter().map(|(name, values)| format!("{}: {}", json!(name), json!(values)));
        lines.collect::<Vec<_>>().join(",\n")
    };
    let kernels = lines(by_name(runs, |run| &run.kernels));
    let stacks = lines(by_name(runs, |run| &run.stacks));
    Target::File(file.to_owned()).write(console, |out| {
        writeln!(
            out,
            "{{\n{KEY}: {VERSION},\n\"names\": \"{names:?}\",\n\"runs\": [\n{}\n],",
            totals.join(",\n")
        )?;
        Ok(writeln!(out, "\"kernels\": {{\n{kernels}\n}},\n\"stacks\": {{\n{stacks}\n}}\n}}")?)
    })
}

/// Returns a map from each name to one value per run, in the order of the runs.
fn by_name(runs: &[RunValues], sums: impl Fn(&RunValues) -> &Sums) -> BTreeMap<String, Vec<u64>> {
    let names: BTreeSet<&String> = runs.iter().flat_map(|run| sums(run).keys()).collect();
    let values = |name: &String| -> Vec<u64> {
        runs.iter().map(|run| sums(run).get(name).copied().unwrap_or(0)).collect()
    };
    let mut rows: Vec<(&String, Vec<u64>)> = names.into_iter().map(|name| (name, values(name))).collect();
    rows.sort_by_cached_key(|(_, values)| {
        std::cmp::Reverse(values.iter().map(|nanos| u128::from(*nanos)).sum::<u128>())
    });
    rows.into_iter().take(MAX_NAMES).map(|(name, values)| (name.clone(), values)).collect()
}

/// Reads the values of a baseline file. Returns `None` if `source` is another kind of file, such as a recording.
///
/// # Errors
/// Returns `Format` if the baseline is damaged, is from a newer version, or was written with options for names that
/// differ from `names`.
pub(super) fn read(source: &Source, names: NameFolding) -> Result<Option<Vec<RunValues>>> {
    let Source::File(path) = source else { return Ok(None) };
    if !is_baseline(path) {
        return Ok(None);
    }
    let refuse = |what: String| Error::new(ErrorKind::Format, format!("{source}: {what}"));
    let again = "write it again with `gpuflame diff BASE... --save-baseline FILE`";
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(|error| Error::from(error).within(source))?;
    file.take(MAX_BYTES).read_to_string(&mut text).map_err(|error| Error::from(error).within(source))?;
    let body: Value = serde_json::from_str(&text)
        .map_err(|error| refuse(format!("the baseline is damaged ({error}); {again}")))?;
    match body.get("gpuflame_baseline").and_then(Value::as_u64) {
        Some(VERSION) => {}
        Some(version) if version > VERSION => {
            let what = format!("a baseline of version {version}, and this gpuflame reads version {VERSION}");
            return Err(refuse(format!("{what}; update gpuflame, or {again}")));
        }
        _ => return Err(refuse(format!("the baseline has no valid version; {again}"))),
    }
    let own = format!("{names:?}");
    if body.get("names").and_then(Value::as_str) != Some(own.as_str()) {
        let what = "the baseline was written with other values of --keep-numbers or --fold";
        return Err(refuse(format!("{what}; use the same options, or {again}")));
    }
    let runs = runs(&body)
        .ok_or_else(|| refuse(format!("the baseline lacks values or has wrong types; {again}")))?;
    Ok(Some(runs))
}

/// Whether a file begins with the baseline's first key. Returns false for files that cannot be read.
fn is_baseline(path: &Path) -> bool {
    // A pipe can be read only once: bytes that this check reads would be missing when the input is read as a recording.
    if !path.is_file() {
        return false;
    }
    let mut start = Vec::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(256).read_to_end(&mut start));
    let start = String::from_utf8_lossy(&start);
    let after_brace = start.trim_start().strip_prefix('{');
    read.is_ok() && after_brace.is_some_and(|rest| rest.trim_start().starts_with(KEY))
}

fn runs(body: &Value) -> Option<Vec<RunValues>> {
    let runs = body.get("runs")?.as_array()?.iter();
    let mut runs: Vec<RunValues> = runs.map(RunValues::from_json).collect::<Option<_>>()?;
    if runs.is_empty() {
        return None;
    }
    for (key, is_kernel) in [("kernels", true), ("stacks", false)] {
        for (name, values) in body.get(key)?.as_object()? {
            let values = values.as_array().filter(|values| values.len() == runs.len())?;
            for (run, value) in runs.iter_mut().zip(values) {
                let sums: &mut BTreeMap<String, u64> =
                    if is_kernel { &mut run.kernels } else { &mut run.stacks };
                sums.insert(name.clone(), value.as_u64()?);
            }
        }
    }
    Some(runs)
}
