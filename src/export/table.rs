//! The summary table as CSV: a row for each kernel, copy direction or fill on each device, then rows for
//! what is missing or lost.
//!
//! `kind` says which: `kernel`, `copy`, `set` and `graph` rows add up to everything that ran; a `missing` row says
//! how much of that (or how many launches beside it) is shown for a reason instead of under a stack, or
//! without a time; a `lost` row counts what left no other trace; a `unified` row is what moved in unified
//! memory, beside all of it. There are no comments.

use std::cmp::Reverse;
use std::io::Write;

use super::clean;
use super::compose::work_name;
use crate::error::{Error, ErrorKind, Result};
use crate::profile::views::{GPU, UnifiedSums, unified};
use crate::profile::{Kind, Profile, WorkStats};
use crate::record::Work;

const HEADER: [&str; 14] = [
    "kind",
    "name",
    "device",
    "count",
    "total_ns",
    "avg_ns",
    "min_ns",
    "max_ns",
    "p50_ns",
    "p95_ns",
    "p99_ns",
    "share_percent",
    "bytes",
    "symbol",
];

/// Writes the summary table of `profile`: heaviest first, then by name and device. `share_percent` is of
/// the durations of all activities on all devices; `symbol` is a kernel's name as the tracer gave it,
/// which tells overloads apart.
///
/// # Errors
/// What `out` reports.
pub fn write_csv(profile: &Profile, out: &mut impl Write) -> Result<()> {
    let mut table = csv::Writer::from_writer(out);
    table.write_record(HEADER).map_err(error)?;
    let total = profile.works().iter().fold(0_u64, |sum, work| sum.saturating_add(work.weight.nanos));
    let mut works: Vec<_> =
        profile.works().iter().map(|work| (work_name(profile, work.work), work)).collect();
    works.sort_by(|(a_name, a), (b_name, b)| {
        let key = |work: &WorkStats| (Reverse(work.weight.nanos), work.device);
        (key(a).0, a_name, key(a).1, a.work).cmp(&(key(b).0, b_name, key(b).1, b.work))
    });
    for (name, work) in works {
        table.write_record(work_row(profile, &name, work, total)).map_err(error)?;
    }
    for sums in unified(profile) {
        table.write_record(unified_row(&sums)).map_err(error)?;
    }
    for (missing, [nanos, count, ..]) in profile.missing(&GPU) {
        let row = other_row("missing", missing.label(), count, nanos, total);
        table.write_record(row).map_err(error)?;
    }
    for (loss, count) in profile.lost() {
        table.write_record(other_row("lost", loss.label(), count, 0, total)).map_err(error)?;
    }
    table.flush()?;
    Ok(())
}

fn work_row(profile: &Profile, name: &str, work: &WorkStats, total: u64) -> [String; 14] {
    let weight = work.weight;
    let [p50, p95, p99] = work.percentiles;
    let average = (u128::from(weight.nanos) * 2 / u128::from(weight.count.max(1))).div_ceil(2);
    let symbol = match work.work {
        Work::Kernel(id) => profile.symbol(id).unwrap_or_default(),
        Work::Copy(_) | Work::Set | Work::Graph => "",
    };
    [
        Kind::of(work.work).word().to_owned(),
        clean::text(name),
        work.device.0.to_string(),
        weight.count.to_string(),
        weight.nanos.to_string(),
        average.to_string(),
        work.min.to_string(),
        work.max.to_string(),
        p50.to_string(),
        p95.to_string(),
        p99.to_string(),
        share(weight.nanos, total),
        weight.bytes.to_string(),
        if symbol.is_empty() { String::new() } else { clean::text(symbol) },
    ]
}

fn other_row(kind: &str, name: &str, count: u64, nanos: u64, total: u64) -> [String; 14] {
    let mut row: [String; 14] = Default::default();
    row[0] = kind.to_owned();
    row[1] = name.to_owned();
    row[3] = count.to_string();
    row[4] = nanos.to_string();
    row[11] = share(nanos, total);
    row
}

/// Beside the work: it takes no share of the time. For faults, `bytes` is empty and `count` is how many.
fn unified_row(sample: &UnifiedSums) -> [String; 14] {
    let mut row: [String; 14] = Default::default();
    row[0] = "unified".to_owned();
    row[1] = format!("[GPU_Unified {}]", sample.kind.label());
    row[2] = sample.device.map(|device| device.0.to_string()).unwrap_or_default();
    let is_move = sample.kind.is_move();
    row[3] = if is_move { sample.count } else { sample.value }.to_string();
    if is_move {
        row[4] = sample.nanos.to_string();
        row[12] = sample.value.to_string();
    }
    row
}

fn share(nanos: u64, total: u64) -> String {
    format!("{:.4}", 100.0 * nanos as f64 / total.max(1) as f64)
}

pub(super) fn error(error: csv::Error) -> Error {
    match error.into_kind() {
        csv::ErrorKind::Io(error) => error.into(),
        other => Error::new(ErrorKind::Io, format!("the table could not be written: {other:?}")),
    }
}
