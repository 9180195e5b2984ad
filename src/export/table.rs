//! Writes the summary table as CSV: a row for each kernel, copy direction and fill on each device, followed by rows for
//! missing and lost work.
//!
//! The column `kind` states what kind of data a row contains. The rows of the kinds `kernel`, `copy`, `set` and `graph`
//! together contain all work that ran. A `missing` row counts a part of the work that ran: work whose time is missing,
//! or work whose stack is missing for a stated reason. The `missing` row for launches without an activity is an
//! exception, because these launches are not work that ran. A `lost` row counts lost data that no other row counts. A
//! `unified` row is unified-memory traffic, which is in no other row. The CSV file contains no comments.

use std::cmp::Reverse;
use std::io::Write;

use super::clean;
use super::compose::work_name;
use super::order;
use gpuflame_model::error::{Error, ErrorKind, Result};
use gpuflame_model::profile::views::{GPU, UnifiedSums, unified};
use gpuflame_model::profile::{Profile, ShownFrameKind, WorkStats};
use gpuflame_model::record::Work;
use gpuflame_model::sorting;

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

/// Writes the summary table of `profile`, sorted by time (largest first), then name and device. The column
/// `share_percent` is the row's share of the total duration of all activities on all devices. The column `symbol` is
/// the kernel's name as CUPTI reported it. The name in the column `symbol` distinguishes overloads.
///
/// # Errors
/// Errors of `out`.
pub fn write_csv(profile: &Profile, out: &mut impl Write) -> Result<()> {
    let mut table = csv::Writer::from_writer(out);
    table.write_record(HEADER).map_err(error)?;
    let total = profile.works().iter().fold(0_u64, |sum, work| sum.saturating_add(work.weight.nanos));
    let mut works: Vec<_> = profile.works().iter().collect();
    sorting::sort_by_key(&mut works, |work| (Reverse(work.weight.nanos), work.device, work.work));
    let names: Vec<_> = works.iter().map(|work| work_name(profile, work.work)).collect();
    let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
    let mut row = TableRow::default();
    let equal = order::find_runs(&works, |a, b| a.weight.nanos == b.weight.nanos);
    for at in order::sort_within(equal, &names) {
        let (work, name) = (works[at as usize], names[at as usize]);
        table.write_byte_record(row.fill(profile, name, work, total)).map_err(error)?;
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

/// Buffers for the texts of a table row about GPU work. The buffers are reused for all rows, because a table may have a
/// hundred thousand rows.
#[derive(Default)]
struct TableRow {
    fields: csv::ByteRecord,
    digits: itoa::Buffer,
    percent: String,
}

impl TableRow {
    fn fill(&mut self, profile: &Profile, name: &str, work: &WorkStats, total: u64) -> &csv::ByteRecord {
        let &WorkStats { work, device, weight, min, max, percentiles, .. } = work;
        let average = (u128::from(weight.nanos) * 2 / u128::from(weight.count.max(1))).div_ceil(2);
        let symbol = match work {
            Work::Kernel(id) => profile.symbol(id).unwrap_or_default(),
            Work::Copy(_) | Work::Set | Work::Graph => "",
        };
        self.fields.clear();
        self.text(ShownFrameKind::for_work(work).word());
        self.text(&clean::cell(name));
        self.number(device.0.into());
        self.number(weight.count);
        [weight.nanos, average as u64, min, max]
            .into_iter()
            .chain(percentiles)
            .for_each(|it| self.number(it));
        self.percent.clear();
        push_share(&mut self.percent, weight.nanos, total);
        self.fields.push_field(self.percent.as_bytes());
        self.number(weight.bytes);
        self.text(&if symbol.is_empty() { symbol.into() } else { clean::cell(symbol) });
        &self.fields
    }

    fn text(&mut self, text: &str) {
        self.fields.push_field(text.as_bytes());
    }

    fn number(&mut self, number: u64) {
        self.fields.push_field(self.digits.format(number).as_bytes());
    }
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

/// Returns a row about unified memory. The column `share_percent` of a row about unified memory is empty. For page
/// faults, `bytes` is empty and `count` is the number of faults.
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

/// Returns the share of `nanos` in `total`, as a percentage with four decimal places.
fn share(nanos: u64, total: u64) -> String {
    let mut text = String::new();
    push_share(&mut text, nanos, total);
    text
}

fn push_share(text: &mut String, nanos: u64, total: u64) {
    let (nanos, total) = (u128::from(nanos), u128::from(total.max(1)));
    // The share is converted to 64 bits, because formatting a 128-bit number takes four times as long.
    let share = u64::try_from((nanos * 2_000_000 + total) / (total * 2)).unwrap_or(u64::MAX);
    let mut digits = itoa::Buffer::new();
    text.push_str(digits.format(share / 10_000));
    text.push('.');
    // Adding 10,000 puts an additional digit in front of the four decimals, so that their leading zeros are kept. The
    // additional digit in front is removed from the formatted text.
    text.push_str(&digits.format(10_000 + share % 10_000)[1..]);
}

pub(super) fn error(error: csv::Error) -> Error {
    match error.into_kind() {
        csv::ErrorKind::Io(error) => error.into(),
        other => Error::new(ErrorKind::Io, format!("cannot write the table: {other:?}")),
    }
}
