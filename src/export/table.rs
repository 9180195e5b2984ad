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
    works.sort_unstable_by(|(a_name, a), (b_name, b)| {
        let key = |work: &WorkStats| (Reverse(work.weight.nanos), work.device);
        (key(a).0, a_name, key(a).1, a.work).cmp(&(key(b).0, b_name, key(b).1, b.work))
    });
    for (name, work) in works {
        write_work(&mut table, profile, &name, work, total)?;
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

fn write_work(
    table: &mut csv::Writer<&mut impl Write>,
    profile: &Profile,
    name: &str,
    work: &WorkStats,
    total: u64,
) -> Result<()> {
    let &WorkStats { work, device, weight, min, max, percentiles, .. } = work;
    let average = (u128::from(weight.nanos) * 2 / u128::from(weight.count.max(1))).div_ceil(2);
    let symbol = match work {
        Work::Kernel(id) => profile.symbol(id).unwrap_or_default(),
        Work::Copy(_) | Work::Set | Work::Graph => "",
    };
    let symbol = if symbol.is_empty() { symbol.into() } else { clean::cell(symbol) };
    let times = (weight.nanos, average as u64, min, max, percentiles);
    let share = share(weight.nanos, total);
    let row = (
        Kind::of(work).word(),
        clean::cell(name),
        device.0,
        weight.count,
        times,
        share,
        weight.bytes,
        symbol,
    );
    table.serialize(row).map_err(error)
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

/// Percent, to four places.
fn share(nanos: u64, total: u64) -> String {
    let (nanos, total) = (u128::from(nanos), u128::from(total.max(1)));
    let share = (nanos * 2_000_000 + total) / (total * 2);
    format!("{}.{:04}", share / 10_000, share % 10_000)
}

pub(super) fn error(error: csv::Error) -> Error {
    match error.into_kind() {
        csv::ErrorKind::Io(error) => error.into(),
        other => Error::new(ErrorKind::Io, format!("the table could not be written: {other:?}")),
    }
}
