//! Defines the tables that verbs print: rows of cells, and the text of each cell for people, for CSV and for JSON.

use std::collections::HashMap;

use serde_json::Value;

use super::page::Page;
use gpuflame_export::{clean_line, guarded, short_kernels};
use gpuflame_model::profile::format_nanos;
use gpuflame_os::date;

/// A value in a table.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Cell {
    Text(String),
    /// Names of kernels or of other GPU work.
    Kernels(Vec<String>),
    /// A stack, and the stack's innermost frame of the user's own code, if that frame is known.
    Stack(String, Option<String>),
    Count(u64),
    /// A number that identifies something, such as a rank.
    Id(u64),
    /// Index of a GPU. Text for people shows the number as `GPU 0`.
    Gpu(u32),
    Bytes(u64),
    /// A time in nanoseconds since 1970. A terminal shows the time as a date.
    Time(u64),
    /// A time span in nanoseconds.
    Nanos(u64),
    /// A difference of time spans in nanoseconds.
    Change(i64),
    /// A moment in nanoseconds since the start of the window; negative before the window.
    Moment(i64),
    /// A share in percent.
    Share(f64),
    /// A bandwidth in GB/s. One GB is 1,000,000,000 bytes.
    Bandwidth(f64),
    /// A number without a unit.
    Number(f64),
    /// The value is unknown or not applicable.
    Nothing,
    /// Empty cell in the row of totals, for a column without a total.
    Blank,
}

/// A table with rows and named columns. Output for programs has the complete names of columns. Output for people has
/// the names of columns without the unit (`total` for `total_ns`).
#[derive(Clone, Debug)]
pub(super) struct Table {
    name: &'static str,
    columns: &'static [&'static str],
    rows: Vec<Vec<Cell>>,
    /// Totals over all rows, including rows that were left out. The row of totals is shown only on terminals.
    total: Option<Vec<Cell>>,
    /// Number of rows that were left out because the table has a maximum number of rows.
    left_out: u64,
}

impl Table {
    pub(super) fn new(name: &'static str, columns: &'static [&'static str]) -> Self {
        Self { name, columns, rows: Vec::new(), total: None, left_out: 0 }
    }

    /// Sets the totals over all rows, which a terminal shows under the rows.
    pub(super) fn set_total(&mut self, cells: impl IntoIterator<Item = Cell>) {
        let cells: Vec<Cell> = cells.into_iter().collect();
        debug_assert_eq!(cells.len(), self.columns.len(), "{}", self.name);
        self.total = Some(cells);
    }

    /// Sets the number of rows that exist in the data. The table may contain only the first few of the existing rows.
    pub(super) fn set_all_rows(&mut self, all: usize) {
        self.left_out = all.saturating_sub(self.rows.len()) as u64;
    }

    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    pub(super) fn columns(&self) -> &'static [&'static str] {
        self.columns
    }

    pub(super) fn rows(&self) -> &[Vec<Cell>] {
        &self.rows
    }

    /// Returns the totals. Returns `None` for a table with one row, because such a table needs no totals.
    pub(super) fn total(&self) -> Option<&[Cell]> {
        self.total.as_deref().filter(|_| self.rows.len() > 1 || self.left_out > 0)
    }

    pub(super) fn rows_left_out(&self) -> u64 {
        self.left_out
    }

    /// Returns the short name of each kernel that has one.
    pub(super) fn short_names(&self) -> HashMap<&str, String> {
        let cells = self.rows.iter().flatten();
        let kernels =
            cells.filter_map(|cell| if let Cell::Kernels(names) = cell { Some(names) } else { None });
        short_kernels(kernels.flatten().map(String::as_str))
    }

    pub(super) fn add_row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        self.rows.push(cells.into_iter().map(Cell::cleaned).collect());
        debug_assert_eq!(self.rows.last().map(Vec::len), Some(self.columns.len()), "{}", self.name);
    }
}

impl Page {
    /// Returns a cell with the name of a kernel. On a terminal, the kernel's name is shortened. In pipes and files, the
    /// cell contains the full name, because tables that use this function have always had full names in pipes and
    /// files.
    pub(super) fn kernel_cell(self, name: String) -> Cell {
        if self.columns.is_some() { Cell::Kernels(vec![name]) } else { Cell::Text(name) }
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl Cell {
    /// Returns a cell with the share of `part` in `whole`, in percent.
    pub(super) fn share(part: u64, whole: u64) -> Self {
        if whole == 0 { Self::Nothing } else { Self::Share(100.0 * part as f64 / whole as f64) }
    }

    /// Removes line breaks and terminal controls from the cell, because names from untrusted files may contain them.
    fn cleaned(self) -> Self {
        match self {
            Self::Text(text) => Self::Text(clean_line(&text).into_owned()),
            Self::Kernels(names) => {
                Self::Kernels(names.iter().map(|name| clean_line(name).into_owned()).collect())
            }
            Self::Stack(stack, own) => {
                Self::Stack(clean_line(&stack).into_owned(), own.map(|frame| clean_line(&frame).into_owned()))
            }
            other => other,
        }
    }

    /// Whether the cell contains words, which are aligned left.
    pub(super) fn is_text(&self) -> bool {
        matches!(self, Self::Text(_) | Self::Kernels(_) | Self::Stack(..) | Self::Gpu(_))
    }

    /// Returns the innermost frame of the user's own code, if the cell is a stack.
    pub(super) fn own_frame(&self) -> Option<&str> {
        if let Self::Stack(_, own) = self { own.as_deref() } else { None }
    }

    /// Returns the text of the cell for people. A kernel that has a short name is shown with this short name. This
    /// function does not cut texts. In output to a pipe, numbers of bytes are exact.
    pub(super) fn for_people(&self, short: &HashMap<&str, String>, is_terminal: bool) -> String {
        match self {
            Self::Text(text) | Self::Stack(text, _) => text.clone(),
            Self::Kernels(names) => {
                let names = names.iter().map(|name| short.get(name.as_str()).unwrap_or(name).as_str());
                names.collect::<Vec<_>>().join(", ")
            }
            Self::Count(count) => group_digits(*count),
            Self::Id(number) => number.to_string(),
            Self::Gpu(number) => format!("GPU {number}"),
            Self::Bytes(0) if is_terminal => "-".to_owned(),
            Self::Bytes(bytes) if is_terminal => format_bytes(*bytes),
            Self::Bytes(bytes) => group_digits(*bytes),
            Self::Time(time) if is_terminal => {
                let (seconds, micros) = (time / 1_000_000_000, time % 1_000_000_000 / 1000);
                format!("{}.{micros:06}Z", date::iso_8601(seconds).trim_end_matches('Z'))
            }
            Self::Time(time) => seconds_since_1970(*time),
            Self::Nanos(nanos) => format_nanos(*nanos),
            Self::Change(nanos) => {
                format!("{}{}", if *nanos < 0 { "-" } else { "+" }, format_nanos(nanos.unsigned_abs()))
            }
            Self::Moment(nanos) if *nanos < 0 => format!("-{}", format_nanos(nanos.unsigned_abs())),
            Self::Moment(nanos) => format_nanos(nanos.unsigned_abs()),
            Self::Share(percent) => format!("{percent:.1} %"),
            Self::Bandwidth(rate) => format_bandwidth(*rate),
            Self::Number(number) => format!("{}", (number * 1e3).round() / 1e3),
            Self::Nothing => "-".to_owned(),
            Self::Blank => String::new(),
        }
    }

    /// Returns the text of the cell for CSV, in a form that spreadsheets do not interpret as a formula.
    pub(super) fn for_csv(&self) -> String {
        match self {
            Self::Text(text) | Self::Stack(text, _) => guarded(text).into_owned(),
            Self::Kernels(names) => guarded(&names.join(", ")).into_owned(),
            Self::Count(number) | Self::Id(number) | Self::Bytes(number) | Self::Nanos(number) => {
                number.to_string()
            }
            Self::Gpu(number) => format!("GPU {number}"),
            Self::Time(time) => seconds_since_1970(*time),
            Self::Change(nanos) | Self::Moment(nanos) => nanos.to_string(),
            Self::Share(percent) => format!("{percent:.4}"),
            Self::Bandwidth(rate) => format!("{rate:.6}"),
            Self::Number(number) => number.to_string(),
            Self::Nothing | Self::Blank => String::new(),
        }
    }

    pub(super) fn for_json(&self) -> Value {
        match self {
            Self::Text(text) | Self::Stack(text, _) => Value::from(text.as_str()),
            Self::Kernels(names) => Value::from(names.join(", ")),
            Self::Count(number) | Self::Id(number) | Self::Bytes(number) | Self::Nanos(number) => {
                Value::from(*number)
            }
            Self::Gpu(number) => Value::from(*number),
            Self::Time(time) => Value::from(seconds_since_1970(*time)),
            Self::Change(nanos) | Self::Moment(nanos) => Value::from(*nanos),
            Self::Share(percent) => Value::from((percent * 1e4).round() / 1e4),
            Self::Bandwidth(rate) => Value::from((rate * 1e6).round() / 1e6),
            Self::Number(number) => Value::from(*number),
            Self::Nothing | Self::Blank => Value::Null,
        }
    }
}

/// Returns the name of a column without its unit, because people see the unit next to each value instead.
pub(super) fn column_title(column: &str) -> &str {
    let units = ["_ns", "_percent", "_gb_per_s"];
    units.iter().find_map(|unit| column.strip_suffix(unit)).unwrap_or(column)
}

fn seconds_since_1970(time: u64) -> String {
    format!("{}.{:09} s since 1970", time / 1_000_000_000, time % 1_000_000_000)
}

/// Formats a number of bytes: `4.10 KB`. One KB is 1,000 bytes.
fn format_bytes(bytes: u64) -> String {
    let (unit, name) = match bytes {
        0..1_000 => return format!("{bytes} B"),
        1_000..1_000_000 => (1e3, "KB"),
        1_000_000..1_000_000_000 => (1e6, "MB"),
        1_000_000_000..1_000_000_000_000 => (1e9, "GB"),
        _ => (1e12, "TB"),
    };
    format!("{:.2} {name}", bytes as f64 / unit)
}

/// Formats a bandwidth with three digits, and at most six decimals: `24.3 GB/s`.
fn format_bandwidth(rate: f64) -> String {
    let digits_before = if rate >= 1e-6 { rate.log10().floor() } else { -6.0 };
    let decimals = (2.0 - digits_before).clamp(0.0, 6.0) as usize;
    format!("{rate:.decimals$} GB/s")
}

/// Formats a number with separators: `1,588,124`.
pub(super) fn group_digits(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bandwidths_have_three_digits() {
        let all = [3350.0, 204.86, 24.26, 1.5, 0.0027, 0.0].map(format_bandwidth);
        assert_eq!(all, ["3350 GB/s", "205 GB/s", "24.3 GB/s", "1.50 GB/s", "0.00270 GB/s", "0.000000 GB/s"]);
    }

    #[test]
    fn digits_are_grouped_by_three() {
        let all = [0, 999, 1000, 1_588_124].map(group_digits);
        assert_eq!(all, ["0", "999", "1,000", "1,588,124"]);
    }
}
