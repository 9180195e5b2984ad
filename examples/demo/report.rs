//! Prints the work with the most GPU time, from the CSV that gpuflame wrote.

use crate::Result;
use csv::{Reader, StringRecord};
use std::path::Path;

/// A row of the CSV: a kernel, a copy direction, or memset.
struct Work {
    kind: String,
    name: String,
    count: String,
    total_ns: u64,
    average_ns: u64,
    share: String,
}

/// Prints the five rows with the most GPU time.
pub(crate) fn top_five(table: &Path) -> Result<()> {
    let mut works = read(table).map_err(|e| format!("{}: {e}", table.display()))?;
    works.sort_by_key(|work| std::cmp::Reverse(work.total_ns));
    say!();
    say!("{:>7}  {:>10}  {:>7}  {:>10}  {:<6}  name", "share", "total", "count", "average", "kind");
    for work in works.iter().take(5) {
        say!(
            "{:>6.1}%  {:>10}  {:>7}  {:>10}  {:<6}  {}",
            work.share.parse::<f64>().unwrap_or_default(),
            duration(work.total_ns),
            work.count,
            duration(work.average_ns),
            work.kind,
            work.name
        );
    }
    Ok(())
}

/// Returns the rows about GPU work that ran. The remaining rows of the CSV are about missing GPU work.
fn read(table: &Path) -> Result<Vec<Work>> {
    let mut reader = Reader::from_path(table).map_err(|e| e.to_string())?;
    let header = reader.headers().map_err(|e| e.to_string())?.clone();
    let mut works = Vec::new();
    for row in reader.records() {
        let row = row.map_err(|e| e.to_string())?;
        if ["kernel", "copy", "set"].contains(&cell(&header, &row, "kind")?) {
            works.push(work(&header, &row)?);
        }
    }
    Ok(works)
}

fn work(header: &StringRecord, row: &StringRecord) -> Result<Work> {
    let text = |column| cell(header, row, column).map(str::to_owned);
    let number = |column| {
        let text = cell(header, row, column)?;
        text.parse().map_err(|_| format!("{column} is {text:?}, not a number"))
    };
    Ok(Work {
        kind: text("kind")?,
        name: text("name")?,
        count: text("count")?,
        total_ns: number("total_ns")?,
        average_ns: number("avg_ns")?,
        share: text("share_percent")?,
    })
}

/// Returns the cell in the column named `column`. Columns are found by name, because later versions may add columns.
fn cell<'r>(header: &StringRecord, row: &'r StringRecord, column: &str) -> Result<&'r str> {
    let at = header.iter().position(|name| name == column);
    at.and_then(|at| row.get(at)).ok_or_else(|| format!("there is no column {column}"))
}

fn duration(nanos: u64) -> String {
    let nanos = nanos as f64;
    match nanos {
        0.0..1e3 => format!("{nanos:.0} ns"),
        1e3..1e6 => format!("{:.1} us", nanos / 1e3),
        1e6..1e9 => format!("{:.1} ms", nanos / 1e6),
        _ => format!("{:.1} s", nanos / 1e9),
    }
}
