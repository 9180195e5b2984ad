//! Reports of verbs as tables: aligned text for people, and CSV and JSON (nanoseconds, not rounded) for programs. A
//! verb builds its tables once; all three formats show the same data.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::Write;

use clap::{Args, ValueEnum};
use serde_json::{Map, Value};

use super::console::Console;
use super::output::Target;
use gpuflame_export::{clean_line, guarded, short_kernels};
use gpuflame_model::error::{Error, ErrorKind, Result};
use gpuflame_model::profile::format_nanos;

/// Output options of all verbs that print tables.
#[derive(Debug, Args)]
pub(super) struct ReportFlags {
    /// Output format.
    #[arg(short, long, default_value = "text")]
    pub(super) format: ReportFormat,
    /// Output file (`-`: standard output).
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    pub(super) output: Target,
}

impl ReportFlags {
    pub(super) fn write(&self, console: Console, tables: &[Table]) -> Result<()> {
        self.output.write(console, |out| write_tables(tables, self.format, out))
    }
}

/// Format of a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum ReportFormat {
    /// Aligned columns. Template kernels have short names, and long names are shortened where they do not
    /// differ.
    #[default]
    Text,
    /// All tables, with empty lines between them.
    Csv,
    /// Object with one entry per table, each a list of rows.
    Json,
}

/// A value of a table.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Cell {
    Text(String),
    /// Names of kernels or of other work.
    Kernels(Vec<String>),
    Count(u64),
    /// A time span in nanoseconds.
    Nanos(u64),
    /// A difference of time spans in nanoseconds.
    Change(i64),
    /// A share in percent.
    Share(f64),
    Nothing,
}

/// A table: rows, and names of columns. Programs see these names, and people see them without the unit (`total_ns` as
/// `total`).
#[derive(Clone, Debug)]
pub(super) struct Table {
    name: &'static str,
    columns: &'static [&'static str],
    rows: Vec<Vec<Cell>>,
}

impl Table {
    pub(super) fn new(name: &'static str, columns: &'static [&'static str]) -> Self {
        Self { name, columns, rows: Vec::new() }
    }

    pub(super) fn add_row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        self.rows.push(cells.into_iter().map(Cell::cleaned).collect());
        debug_assert_eq!(self.rows.last().map(Vec::len), Some(self.columns.len()), "{}", self.name);
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl Cell {
    /// Returns a cell with the share of `part` in `whole`.
    pub(super) fn share(part: u64, whole: u64) -> Self {
        if whole == 0 { Self::Nothing } else { Self::Share(100.0 * part as f64 / whole as f64) }
    }

    /// Returns the cell without line breaks and terminal controls, which names from untrusted files may contain.
    fn cleaned(self) -> Self {
        match self {
            Self::Text(text) => Self::Text(clean_line(&text).into_owned()),
            Self::Kernels(names) => {
                Self::Kernels(names.iter().map(|name| clean_line(name).into_owned()).collect())
            }
            other => other,
        }
    }

    /// Returns the text of the cell for people. Kernels with a short name are shown by it. No text is truncated here.
    fn for_people(&self, short: &HashMap<&str, String>) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Kernels(names) => {
                let names = names.iter().map(|name| short.get(name.as_str()).unwrap_or(name).as_str());
                names.collect::<Vec<_>>().join(", ")
            }
            Self::Count(count) => group_digits(*count),
            Self::Nanos(nanos) => format_nanos(*nanos),
            Self::Change(nanos) => {
                format!("{}{}", if *nanos < 0 { "-" } else { "+" }, format_nanos(nanos.unsigned_abs()))
            }
            Self::Share(percent) => format!("{percent:.1} %"),
            Self::Nothing => "-".to_owned(),
        }
    }

    /// Returns the text of the cell for CSV. Spreadsheets never take it for a formula.
    fn for_csv(&self) -> String {
        match self {
            Self::Text(text) => guarded(text).into_owned(),
            Self::Kernels(names) => guarded(&names.join(", ")).into_owned(),
            Self::Count(number) | Self::Nanos(number) => number.to_string(),
            Self::Change(nanos) => nanos.to_string(),
            Self::Share(percent) => format!("{percent:.4}"),
            Self::Nothing => String::new(),
        }
    }

    fn for_json(&self) -> Value {
        match self {
            Self::Text(text) => Value::from(text.as_str()),
            Self::Kernels(names) => Value::from(names.join(", ")),
            Self::Count(number) | Self::Nanos(number) => Value::from(*number),
            Self::Change(nanos) => Value::from(*nanos),
            Self::Share(percent) => Value::from((percent * 1e4).round() / 1e4),
            Self::Nothing => Value::Null,
        }
    }
}

/// Writes `tables` to `out` in the given format.
pub(super) fn write_tables(tables: &[Table], format: ReportFormat, out: &mut dyn Write) -> Result<()> {
    match format {
        ReportFormat::Text => write_text(tables, out),
        ReportFormat::Csv => write_csv(tables, out),
        ReportFormat::Json => write_json(tables, out),
    }
}

fn write_text(tables: &[Table], out: &mut dyn Write) -> Result<()> {
    for (at, table) in tables.iter().enumerate() {
        if at > 0 {
            writeln!(out)?;
        }
        let heads = table.columns.iter().map(|column| column_title(column).to_owned()).collect();
        let mut lines: Vec<Vec<String>> = vec![heads];
        let cells = table.rows.iter().flatten();
        let kernels =
            cells.filter_map(|cell| if let Cell::Kernels(names) = cell { Some(names) } else { None });
        let short = short_kernels(kernels.flatten().map(String::as_str));
        lines.extend(table.rows.iter().map(|row| row.iter().map(|cell| cell.for_people(&short)).collect()));
        shorten_distinctly(&mut lines);
        let widths: Vec<usize> = (0..table.columns.len())
            .map(|column| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0))
            .collect();
        // Columns of text are aligned left, columns of numbers right.
        let is_text = |column: usize| {
            table.rows.iter().any(|row| matches!(row[column], Cell::Text(_) | Cell::Kernels(_)))
        };
        for line in &lines {
            let fields = line.iter().enumerate().map(|(column, field)| match is_text(column) {
                true => format!("{field:<width$}", width = widths[column]),
                false => format!("{field:>width$}", width = widths[column]),
            });
            writeln!(out, "{}", fields.collect::<Vec<_>>().join("  ").trim_end())?;
        }
    }
    Ok(())
}

/// Maximum number of characters of a name shown to people. Some C++ template names would fill a screen.
const MAX_NAME_CHARS: usize = 110;

/// Truncates long texts, but never to the same result. If truncation would make texts equal, they keep the part in
/// which they first differ. If that does not distinguish them either, they are not truncated.
fn shorten_distinctly(lines: &mut [Vec<String>]) {
    let mut alike: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for text in lines.iter().flatten().filter(|text| text.chars().count() > MAX_NAME_CHARS) {
        alike.entry(shorten(text)).or_default().insert(text);
    }
    let mut cuts = HashMap::new();
    for (at_the_ends, texts) in alike {
        let place = common_prefix_chars(&texts);
        let apart: Vec<_> = texts.iter().map(|text| shorten_around(text, place)).collect();
        let are_apart = apart.iter().collect::<BTreeSet<_>>().len() == texts.len();
        for (text, apart) in texts.iter().zip(apart) {
            let cut = match texts.len() {
                1 => at_the_ends.clone(),
                _ if are_apart => apart,
                _ => (*text).to_owned(),
            };
            cuts.insert((*text).to_owned(), cut);
        }
    }
    for text in lines.iter_mut().flatten() {
        if let Some(cut) = cuts.get(text.as_str()) {
            text.clone_from(cut);
        }
    }
}

/// Omits the middle of the text. Kernel names are most informative at the beginning, and stacks at the end.
fn shorten(text: &str) -> String {
    let tail = MAX_NAME_CHARS - MAX_NAME_CHARS / 2 - GAP.len();
    format!(
        "{}{GAP}{}",
        substring(text, 0, MAX_NAME_CHARS / 2),
        substring(text, text.chars().count() - tail, tail)
    )
}

/// Returns both ends of the text, and a third piece around the position `place`.
fn shorten_around(text: &str, place: usize) -> String {
    let piece = (MAX_NAME_CHARS - 2 * GAP.len()) / 3;
    // The middle piece begins before the difference, which gives context.
    let middle = substring(text, place.saturating_sub(piece / 3), piece);
    let tail = substring(text, text.chars().count() - piece, piece);
    format!("{}{GAP}{middle}{GAP}{tail}", substring(text, 0, piece))
}

const GAP: &str = "...";

fn substring(text: &str, start: usize, count: usize) -> String {
    text.chars().skip(start).take(count).collect()
}

/// Returns the number of characters with which all texts begin alike.
fn common_prefix_chars(texts: &BTreeSet<&str>) -> usize {
    // In sorted order, the first and the last text have the same common prefix as all texts.
    let (first, last) = (texts.first().copied().unwrap_or(""), texts.last().copied().unwrap_or(""));
    first.chars().zip(last.chars()).take_while(|(a, b)| a == b).count()
}

/// Returns the function that prepares names for tables other than reports. It makes names safe for terminals and
/// spreadsheets. If `compat`, it returns names unchanged, because the output of another tool must be reproduced
/// exactly.
pub(super) fn name_writer(compat: bool) -> fn(&str) -> String {
    if compat { str::to_owned } else { |name| guarded(&clean_line(name)).into_owned() }
}

/// Returns the name of a column without its unit. People see the unit at each value instead.
fn column_title(column: &str) -> &str {
    column.strip_suffix("_ns").or_else(|| column.strip_suffix("_percent")).unwrap_or(column)
}

fn write_csv(tables: &[Table], out: &mut dyn Write) -> Result<()> {
    for (at, table) in tables.iter().enumerate() {
        if at > 0 {
            writeln!(out)?;
        }
        let mut writer = csv::Writer::from_writer(&mut *out);
        let failed = |error: csv::Error| Error::new(ErrorKind::Io, error.to_string());
        writer.write_record(table.columns).map_err(failed)?;
        for row in &table.rows {
            writer.write_record(row.iter().map(Cell::for_csv)).map_err(failed)?;
        }
        writer.flush()?;
    }
    Ok(())
}

fn write_json(tables: &[Table], out: &mut dyn Write) -> Result<()> {
    let rows = |table: &Table| -> Value {
        let object = |row: &Vec<Cell>| -> Value {
            let fields =
                table.columns.iter().zip(row).map(|(name, cell)| ((*name).to_owned(), cell.for_json()));
            fields.collect::<Map<_, _>>().into()
        };
        table.rows.iter().map(object).collect()
    };
    let all: Map<_, _> = tables.iter().map(|table| (table.name.to_owned(), rows(table))).collect();
    serde_json::to_writer_pretty(&mut *out, &all).map_err(std::io::Error::from)?;
    Ok(writeln!(out)?)
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

    fn written(format: ReportFormat) -> String {
        let mut kernels = Table::new("kernels", &["name", "count", "total_ns", "share_percent"]);
        kernels.add_row([
            Cell::from("gemm, \"fast\""),
            Cell::Count(1234),
            Cell::Nanos(3_099_632),
            Cell::share(3, 4),
        ]);
        kernels.add_row([Cell::from("add"), Cell::Count(1), Cell::Nanos(7), Cell::Nothing]);
        let mut losses = Table::new("losses", &["what", "count"]);
        losses.add_row([Cell::from("x"), Cell::Count(15)]);
        let mut out = Vec::new();
        write_tables(&[kernels, losses], format, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn text_output_has_aligned_columns() {
        let expected = "name          count     total   share\n\
                        gemm, \"fast\"  1,234  3.100 ms  75.0 %\n\
                        add               1      7 ns       -\n\
                        \n\
                        what  count\n\
                        x        15\n";
        assert_eq!(written(ReportFormat::Text), expected);
    }

    #[test]
    fn csv_and_json_contain_nanoseconds_with_the_unit_in_the_column_name() {
        let expected = "name,count,total_ns,share_percent\n\
                        \"gemm, \"\"fast\"\"\",1234,3099632,75.0000\n\
                        add,1,7,\n\
                        \n\
                        what,count\n\
                        x,15\n";
        assert_eq!(written(ReportFormat::Csv), expected);
        let json: Value = serde_json::from_str(&written(ReportFormat::Json)).unwrap();
        assert_eq!(json["kernels"][0]["total_ns"], 3_099_632);
        assert_eq!(json["kernels"][1]["share_percent"], Value::Null);
        assert_eq!(json["losses"][0]["count"], 15);
    }

    #[test]
    fn names_that_look_like_formulas_are_quoted_in_csv_only() {
        let mut table = Table::new("kernels", &["name", "change_ns"]);
        table.add_row([Cell::from("=cmd|'/C calc'!A0"), Cell::Change(-5)]);
        let as_written = |format| {
            let mut out = Vec::new();
            write_tables(std::slice::from_ref(&table), format, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(as_written(ReportFormat::Csv), "name,change_ns\n'=cmd|'/C calc'!A0,-5\n");
        assert!(as_written(ReportFormat::Text).contains("\n=cmd|'/C calc'!A0"));
        assert!(as_written(ReportFormat::Json).contains("\"=cmd|'/C calc'!A0\""));
    }

    #[test]
    fn long_names_are_shortened_in_the_middle_in_text_output_only() {
        let name = format!("kernel<{}>(float*)", "float, ".repeat(40));
        let mut table = Table::new("kernels", &["name"]);
        table.add_row([Cell::from(name.as_str())]);
        let mut out = Vec::new();
        write_tables(std::slice::from_ref(&table), ReportFormat::Text, &mut out).unwrap();
        let line = String::from_utf8(out).unwrap().lines().nth(1).unwrap().to_owned();
        assert!(
            line.len() == MAX_NAME_CHARS && line.starts_with("kernel<float") && line.ends_with(">(float*)"),
            "{line}"
        );
        let mut out = Vec::new();
        write_tables(&[table], ReportFormat::Csv, &mut out).unwrap();
        assert!(String::from_utf8(out).unwrap().contains(&name));
    }

    #[test]
    fn shortened_names_still_show_the_middle_in_which_they_differ() {
        let rows = |names: &[String]| {
            let mut table = Table::new("kernels", &["name", "count"]);
            names.iter().for_each(|name| table.add_row([Cell::from(name.as_str()), Cell::Count(1)]));
            let mut out = Vec::new();
            write_tables(&[table], ReportFormat::Text, &mut out).unwrap();
            let text = String::from_utf8(out).unwrap();
            text.lines()
                .skip(1)
                .map(|line| line.strip_suffix("1").unwrap().trim_end().to_owned())
                .collect::<Vec<_>>()
        };
        let (begin, end) = ("b".repeat(90), "e".repeat(90));
        let of = |middle: &str| format!("{begin}{middle}{end}");
        // The two gaps take 6 of 110 characters, so each of the three pieces has 34. Both names have `<` as character
        // 91, and eleven characters before the difference are shown.
        let cut = |middle: &str| {
            let around = format!("{}{middle}{}", "b".repeat(10), "e".repeat(24 - middle.len()));
            format!("{}...{around}...{}", "b".repeat(34), "e".repeat(34))
        };
        let shown = rows(&[of("<float>"), of("<half>"), of("<float>"), "short".to_owned()]);
        assert_eq!(shown, [cut("<float>"), cut("<half>"), cut("<float>"), "short".to_owned()]);
        // If no other name is similar, a name keeps longer parts of both ends.
        assert_eq!(rows(&[of("<float>")]), [format!("{}...{}", "b".repeat(55), "e".repeat(52))]);
        // Three names differ at two positions. They are too far apart to show both, so the names are shown in full.
        let far = |one: &str, other: &str| of(&format!("{one}{}{other}", "m".repeat(60)));
        let three = [far("1", "1"), far("1", "2"), far("2", "1")];
        assert_eq!(rows(&three), three);
    }

    #[test]
    fn kernel_names_are_shortened_in_text_output_unless_two_rows_would_match() {
        let mut table = Table::new("kernels", &["count", "name"]);
        let names = ["lib::gemm<float>", "lib::gemm<half>", "lib::add<int, 4>(int*)"];
        names
            .iter()
            .for_each(|name| table.add_row([Cell::Count(1), Cell::Kernels(vec![(*name).to_owned()])]));
        table.add_row([Cell::Count(1), Cell::Kernels(vec![names[2].to_owned(), "2 more".to_owned()])]);
        let written = |format| {
            let mut out = Vec::new();
            write_tables(std::slice::from_ref(&table), format, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        let people =
            "count  name\n    1  lib::gemm<float>\n    1  lib::gemm<half>\n    1  add\n    1  add, 2 more\n";
        assert_eq!(written(ReportFormat::Text), people);
        let csv = written(ReportFormat::Csv);
        assert_eq!(
            csv.lines().skip(3).collect::<Vec<_>>(),
            ["1,\"lib::add<int, 4>(int*)\"", "1,\"lib::add<int, 4>(int*), 2 more\"",]
        );
        assert!(written(ReportFormat::Json).contains("lib::add<int, 4>(int*), 2 more"));
    }

    #[test]
    fn digits_are_grouped_by_three() {
        let all = [0, 999, 1000, 1_588_124].map(group_digits);
        assert_eq!(all, ["0", "999", "1,000", "1,588,124"]);
    }
}
