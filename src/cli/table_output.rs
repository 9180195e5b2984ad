//! Writes the tables of verbs: as aligned text for people, and as CSV and JSON (exact nanoseconds) for programs. A verb
//! builds its tables once, and all formats show the same data.

use std::io::Write;

use clap::{Args, ValueEnum};
use serde_json::{Map, Value};

use super::console::Console;
use super::layout;
use super::output::Target;
use super::page::Page;
pub(super) use super::table::{Cell, Table, column_title, group_digits};
use gpuflame_export::{clean_line, guarded};
use gpuflame_model::error::{Error, ErrorKind, Result};

/// Output options that all verbs with tables share.
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
    /// Writes the tables in the chosen format. On a terminal, `heading` is written above the tables.
    pub(super) fn write(&self, console: Console, heading: &[String], tables: &[Table]) -> Result<()> {
        let page = Page::of(&self.output, console);
        self.output.write(console, |out| write_tables(heading, tables, self.format, page, out))
    }
}

/// Format of a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum ReportFormat {
    /// Aligned columns. Template kernels have short names. On a terminal, the columns fit the width of the terminal (or
    /// COLUMNS), and long names are shortened where they do not differ. A pipe gets every column.
    #[default]
    Text,
    /// All tables as CSV, with empty lines between them.
    Csv,
    /// A JSON object with one entry per table. Each entry is a list of rows, as docs/schema.md describes.
    Json,
    /// Tables for a pull request or another page in Markdown.
    Markdown,
}

/// Writes `tables` to `out` in the given format. `page` and `heading` apply to the text format only.
pub(super) fn write_tables(
    heading: &[String],
    tables: &[Table],
    format: ReportFormat,
    page: Page,
    out: &mut dyn Write,
) -> Result<()> {
    match format {
        ReportFormat::Text => layout::write(heading, tables, page, out),
        ReportFormat::Csv => write_csv(tables, out),
        ReportFormat::Json => write_json(tables, out),
        ReportFormat::Markdown => write_markdown(tables, out),
    }
}

/// Writes tables in GitHub's Markdown syntax. If there are several tables, the name of each table is above the table.
/// Numbers have units, as in text output.
fn write_markdown(tables: &[Table], out: &mut dyn Write) -> Result<()> {
    for (at, table) in tables.iter().enumerate() {
        if at > 0 {
            writeln!(out)?;
        }
        if tables.len() > 1 {
            writeln!(out, "**{}**\n", table.name().replace('_', " "))?;
        }
        let short = table.short_names();
        let is_text =
            |column: usize| table.rows().iter().any(|row| row.get(column).is_some_and(Cell::is_text));
        let line = |cells: Vec<String>| format!("| {} |", cells.join(" | "));
        let titles = table.columns().iter().map(|column| column_title(column).replace('_', " "));
        writeln!(out, "{}", line(titles.collect()))?;
        let rules = (0..table.columns().len()).map(|column| if is_text(column) { "---" } else { "---:" });
        writeln!(out, "{}", line(rules.map(str::to_owned).collect()))?;
        for row in table.rows() {
            let texts = row.iter().map(|cell| markdown_text(&cell.for_people(&short, false)));
            writeln!(out, "{}", line(texts.collect()))?;
        }
    }
    Ok(())
}

/// Escapes a text for Markdown, including Markdown tables. If a text contains characters that have a meaning in
/// Markdown, the text becomes inline code.
pub(super) fn markdown_text(text: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || " .,;:%+-/()=".contains(c);
    if text.chars().all(is_plain) && !text.contains("://") {
        return text.to_owned();
    }
    // Inline code ends at a sequence of exactly as many backticks as the sequence at its beginning.
    let runs = text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(runs + 1);
    let blank = if text.starts_with('`') || text.ends_with('`') { " " } else { "" };
    // In a table, a vertical bar ends the cell even inside inline code.
    format!("{fence}{blank}{}{blank}{fence}", text.replace('|', "\\|"))
}

/// Returns a function that prepares names for output that does not use [`Table`]. The returned function makes names
/// safe for terminals and spreadsheets. If `compat` is set, the returned function leaves names unchanged, because the
/// output of another tool must be reproduced exactly.
pub(super) fn name_writer(compat: bool) -> fn(&str) -> String {
    if compat { str::to_owned } else { |name| guarded(&clean_line(name)).into_owned() }
}

/// Writes tables as CSV, separated by empty lines.
pub(super) fn write_csv(tables: &[Table], out: &mut dyn Write) -> Result<()> {
    for (at, table) in tables.iter().enumerate() {
        if at > 0 {
            writeln!(out)?;
        }
        let mut writer = csv::Writer::from_writer(&mut *out);
        let failed = |error: csv::Error| Error::new(ErrorKind::Io, error.to_string());
        writer.write_record(table.columns()).map_err(failed)?;
        for row in table.rows() {
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
                table.columns().iter().zip(row).map(|(name, cell)| ((*name).to_owned(), cell.for_json()));
            fields.collect::<Map<_, _>>().into()
        };
        table.rows().iter().map(object).collect()
    };
    let schema = std::iter::once(("schema".to_owned(), Value::from(SCHEMA)));
    let all: Map<_, _> =
        schema.chain(tables.iter().map(|table| (table.name().to_owned(), rows(table)))).collect();
    serde_json::to_writer_pretty(&mut *out, &all).map_err(std::io::Error::from)?;
    Ok(writeln!(out)?)
}

/// Version of the JSON output that docs/schema.md describes. New keys do not change the version. The version changes if
/// a key is removed, or if the meaning of a key changes.
pub(super) const SCHEMA: u32 = 1;

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
        as_written(&[kernels, losses], format, Page::UNBOUNDED)
    }

    fn as_written(tables: &[Table], format: ReportFormat, page: Page) -> String {
        let mut out = Vec::new();
        write_tables(&[], tables, format, page, &mut out).unwrap();
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
        assert_eq!(json["schema"], 1);
        assert_eq!(json["kernels"][0]["total_ns"], 3_099_632);
        assert_eq!(json["kernels"][1]["share_percent"], Value::Null);
        assert_eq!(json["losses"][0]["count"], 15);
    }

    #[test]
    fn names_that_look_like_formulas_are_quoted_in_csv_only() {
        let mut table = Table::new("kernels", &["name", "change_ns"]);
        table.add_row([Cell::from("=cmd|'/C calc'!A0"), Cell::Change(-5)]);
        let as_written = |format| as_written(std::slice::from_ref(&table), format, Page::UNBOUNDED);
        assert_eq!(as_written(ReportFormat::Csv), "name,change_ns\n'=cmd|'/C calc'!A0,-5\n");
        assert!(as_written(ReportFormat::Text).contains("\n=cmd|'/C calc'!A0"));
        assert!(as_written(ReportFormat::Json).contains("\"=cmd|'/C calc'!A0\""));
    }

    #[test]
    fn long_names_are_cut_on_terminals_only() {
        let name = format!("kernel<{}>(float*)", "float, ".repeat(40));
        let mut table = Table::new("kernels", &["name"]);
        table.add_row([Cell::from(name.as_str())]);
        let terminal = Page { columns: Some(110), has_colors: false };
        let shown = as_written(&[table.clone()], ReportFormat::Text, terminal);
        let line = shown.lines().nth(1).unwrap();
        assert!(
            line.len() == 110 && line.starts_with("kernel<float") && line.ends_with(">(float*)"),
            "{line}"
        );
        for format in [ReportFormat::Text, ReportFormat::Csv, ReportFormat::Json] {
            assert!(as_written(&[table.clone()], format, Page::UNBOUNDED).contains(&name));
        }
        assert!(as_written(&[table], ReportFormat::Csv, terminal).contains(&name));
    }

    #[test]
    fn terminals_show_totals_and_the_number_of_rows_left_out() {
        let mut table = Table::new("kernels", &["total_ns", "bytes", "name"]);
        table.add_row([Cell::Nanos(5), Cell::Bytes(4096), "gemm".into()]);
        table.set_total([Cell::Nanos(7), Cell::Blank, "total".into()]);
        table.set_all_rows(3);
        let terminal = Page { columns: Some(80), has_colors: false };
        let expected = "total    bytes  name\n \
                         5 ns  4.10 KB  gemm\n \
                         7 ns           total\n\
                        2 more rows; -n 0 shows all\n";
        assert_eq!(as_written(&[table.clone()], ReportFormat::Text, terminal), expected);
        let piped = as_written(&[table.clone()], ReportFormat::Text, Page::UNBOUNDED);
        assert_eq!(piped, "total  bytes  name\n 5 ns  4,096  gemm\n");
        assert_eq!(as_written(&[table], ReportFormat::Csv, terminal), "total_ns,bytes,name\n5,4096,gemm\n");
    }

    #[test]
    fn kernel_names_are_shortened_in_text_output_unless_two_rows_would_match() {
        let mut table = Table::new("kernels", &["count", "name"]);
        let names = ["lib::gemm<float>", "lib::gemm<half>", "lib::add<int, 4>(int*)"];
        names
            .iter()
            .for_each(|name| table.add_row([Cell::Count(1), Cell::Kernels(vec![(*name).to_owned()])]));
        table.add_row([Cell::Count(1), Cell::Kernels(vec![names[2].to_owned(), "2 more".to_owned()])]);
        let written = |format| as_written(std::slice::from_ref(&table), format, Page::UNBOUNDED);
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
}
