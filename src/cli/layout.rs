//! Lays out tables as text. In a pipe or a file, a table has every column and complete names. On a terminal, a table is
//! fitted to the width of the terminal. The least useful columns are left out first, and then names are cut. The last
//! line below the tables lists the columns that were left out.

use std::io::Write;

use comfy_table::{CellAlignment, ContentArrangement, Table as Columns, TableComponent, presets};
use unicode_width::UnicodeWidthStr;

use super::page::{Page, Style};
use super::shorten::{Text, TextKind, fit_all, wrap};
use super::table::{Cell, Table, column_title, group_digits};
use gpuflame_export::clean_line;
use gpuflame_model::error::Result;

/// Columns that a narrow table leaves out, least useful first, for each table name. Columns that are not listed are
/// always shown.
const LEAST_USEFUL: &[(&str, &[&str])] = &[
    ("kernels", &["min_ns", "p50_ns", "max_ns", "p95_ns", "avg_ns", "count"]),
    ("stacks", &["count", "ranks"]),
    ("line", &["kernels", "count", "function"]),
    ("function", &["waiting_ns", "cpu_ns"]),
    ("stats", &["min_ns", "max_ns", "avg_ns", "count"]),
    ("copies", &["share_percent", "count", "bandwidth_gb_per_s", "bytes", "direction"]),
    ("delay", &["before_launch", "p50_ns", "max_ns", "count", "p95_ns"]),
    ("comm", &["overlap_percent", "overlapped_ns", "compute_ns", "comm_ns"]),
    ("comm_stacks", &["count", "total_ns"]),
    ("idle_causes", &["gaps"]),
    ("idle_calls", &["gaps"]),
    ("idle_functions", &["gaps"]),
    ("idle_lines", &["gaps"]),
    ("idle_modules", &["gaps"]),
    ("idle", &["gaps", "share_percent"]),
    ("activities", &["correlation", "from", "to", "bytes", "stream", "launched_by"]),
    ("instructions", &["bytes", "thread", "after", "duration_ns", "start_ns"]),
    ("devices", &["activities", "window_ns", "gpu_time_ns", "idle_ns"]),
    ("parts", &["window_ns", "idle_ns"]),
    ("gpus", &["window_ns", "idle_ns"]),
    ("work", &["avg_ns", "count"]),
    ("steps", &["p95_ns", "total_ns"]),
    ("findings", &["share_percent", "count"]),
    ("total", &["before_count", "after_count", "before_ns", "after_ns"]),
    ("run", &["before_ns", "after_ns", "change_percent"]),
    (
        "changes",
        &["share_of", "pairs_needed", "before_ns", "after_ns", "high_percent", "low_percent", "change_ns"],
    ),
    ("job", &["world_size"]),
    ("found_gpus", &["uuid", "pci", "multiprocessors", "capability"]),
    ("driver", &["file"]),
    ("impossible_durations", &["stream", "start_ns"]),
    ("impossible_durations_before", &["stream", "start_ns"]),
    ("impossible_durations_after", &["stream", "start_ns"]),
    (
        "ranks",
        &[
            "linked_percent",
            "steps",
            "communication_ns",
            "idle_ns",
            "vs_median_percent",
            "work_ns",
            "busy_ns",
        ],
    ),
    ("slowdown", &["stages", "workers", "steps", "measured_ns", "simulated_ns", "ideal_ns"]),
    ("shares", &["slowdown_alone", "saved_ns"]),
    ("evened_out", &["slowdown_alone", "saved_percent"]),
    ("step_times", &["error_percent", "measured_ns"]),
    ("clocks", &["collectives", "ends_apart_ns"]),
    ("last_to_collectives", &["ranks", "behind_next_ns", "of", "others_waited_ns"]),
];
/// Columns that a narrow table of changes by kernel, stack or module leaves out, least useful first.
const DIFFERENCES: &[&str] =
    &["before_count", "after_count", "average_percent", "before_ns", "after_ns", "change_percent"];
/// Names of the columns that contain the GPU or the rank of a row. A narrow table leaves out the column of the GPU or
/// rank only if this column has the same value in all rows.
const PLACES: [&str; 2] = ["device", "rank"];
/// Names of the columns that contain sentences. On a terminal, the sentences are shown under the row, where they can
/// use the whole width.
const BENEATH: [&str; 5] = ["why", "unknown_because", "host_line", "source", "remedy"];
/// Number of blanks between two columns.
const GAP: usize = 2;
/// Indentation, in blanks, of a line that is shown under a row.
const INDENT: usize = 4;
/// Maximum width, in characters, of a column of words such as `host_late` or `yes`. Columns of words are never cut.
const MAX_WORD: usize = 16;
/// Character between the columns while a table is laid out. No cell contains the separator, because cells do not
/// contain control characters.
const SEPARATOR: char = '\u{1f}';

/// Writes the tables, separated by empty lines. On a terminal, `heading` is written above the tables.
pub(super) fn write(heading: &[String], tables: &[Table], page: Page, out: &mut dyn Write) -> Result<()> {
    if let Some(columns) = page.columns {
        for line in heading.iter().flat_map(|line| wrap(&clean_line(line), columns)) {
            writeln!(out, "{}", page.paint(Style::Strong, &line))?;
        }
        if !heading.is_empty() {
            writeln!(out)?;
        }
    }
    let mut left_out: Vec<(String, String)> = Vec::new();
    for (at, table) in tables.iter().enumerate() {
        if at > 0 {
            writeln!(out)?;
        }
        let layout = Layout::new(table, page);
        layout.write(out)?;
        // If several tables omit the same columns, one line lists these columns for all of them.
        if let Some(hidden) = layout.left_out() {
            let name = table.name().replace('_', " ");
            match left_out.iter_mut().find(|(columns, _)| *columns == hidden) {
                Some((_, names)) => *names = format!("{names}, {name}"),
                None => left_out.push((hidden, name)),
            }
        }
    }
    let left_out: Vec<_> = left_out.iter().map(|(columns, names)| format!("{columns} of {names}")).collect();
    if let Some(columns) = page.columns.filter(|_| !left_out.is_empty()) {
        writeln!(out)?;
        let note =
            format!("not shown, for lack of width: {}; --format csv has all columns", left_out.join("; "));
        for line in wrap(&note, columns) {
            writeln!(out, "{}", page.paint(Style::Faint, &line))?;
        }
    }
    Ok(())
}

/// Writes each sentence on a new line, wrapped at the width of the page. The first of these sentences is the most
/// important, so it is emphasized.
pub(super) fn write_sentences(sentences: &[String], page: Page, out: &mut dyn Write) -> Result<()> {
    let columns = page.columns.unwrap_or(usize::MAX);
    for (at, sentence) in sentences.iter().enumerate() {
        let style = if at == 0 { Style::Strong } else { Style::Plain };
        for (part, line) in wrap(&clean_line(sentence), columns.saturating_sub(2)).into_iter().enumerate() {
            let indent = if part > 0 { "  " } else { "" };
            writeln!(out, "{indent}{}", page.paint(style, &line))?;
        }
    }
    Ok(())
}

/// A table, and its layout on a page.
struct Layout<'a> {
    table: &'a Table,
    page: Page,
    /// Indices of the columns that are shown side by side.
    shown: Vec<usize>,
    /// Indices of the columns that are shown under a row.
    beneath: Vec<usize>,
    /// Titles of the table's columns.
    titles: Vec<String>,
    /// Full texts of the table's cells. If the table has a total, the total is the last row.
    texts: Vec<Vec<String>>,
}

impl<'a> Layout<'a> {
    fn new(table: &'a Table, page: Page) -> Self {
        let is_terminal = page.columns.is_some();
        let short = table.short_names();
        let total = table.total().filter(|_| is_terminal);
        let rows = table.rows().iter().map(Vec::as_slice).chain(total);
        let texts: Vec<Vec<String>> =
            rows.map(|row| row.iter().map(|cell| cell.for_people(&short, is_terminal)).collect()).collect();
        let mut layout = Self {
            table,
            page,
            shown: (0..table.columns().len()).collect(),
            beneath: Vec::new(),
            titles: titles(table.columns(), is_terminal),
            texts,
        };
        if let Some(columns) = page.columns {
            layout.fit(columns);
        }
        layout
    }

    /// Leaves out columns until the remaining columns fit into a width of `columns` characters.
    fn fit(&mut self, columns: usize) {
        if self.natural_width() <= columns || self.table.rows().is_empty() {
            return;
        }
        let table = self.table;
        let named = |name: &str| table.columns().iter().position(|column| *column == name);
        let beneath: Vec<usize> = BENEATH.iter().filter_map(|name| named(name)).collect();
        self.shown.retain(|column| !beneath.contains(column));
        self.beneath = beneath;
        let is_empty = |column: &usize| table.rows().iter().all(|row| row[*column] == Cell::Nothing);
        let is_same = |column: &usize| {
            let mut cells = table.rows().iter().map(|row| &row[*column]);
            let first = cells.next();
            cells.all(|cell| Some(cell) == first)
        };
        let by_name = LEAST_USEFUL.iter().find(|(name, _)| *name == table.name()).map_or(&[][..], |it| it.1);
        let columns_to_leave_out = if named("sure").is_some() { DIFFERENCES } else { by_name };
        let listed = || columns_to_leave_out.iter().filter_map(|name| named(name));
        let empty = listed().filter(is_empty);
        let places =
            PLACES.iter().filter_map(|name| named(name)).filter(|at| table.rows().len() > 1 && is_same(at));
        for column in empty.chain(places).chain(listed()) {
            if self.needed_width(columns) <= columns {
                return;
            }
            self.shown.retain(|other| *other != column);
        }
        // If there is no room for names next to the other columns, the names are printed under each row.
        if self.needed_width(columns) > columns
            && self.shown.len() > 2
            && let Some(last) =
                self.shown.pop_if(|last| self.texts.iter().any(|row| row[*last].width() > MAX_WORD))
        {
            self.beneath.insert(0, last);
        }
        // The first and the last column are shown at any width.
        while self.needed_width(columns) > columns && self.shown.len() > 2 {
            self.shown.remove(self.shown.len() - 2);
        }
    }

    /// Returns the total width of the shown columns if no text is cut.
    fn natural_width(&self) -> usize {
        let widths = self.shown.iter().map(|column| self.width(*column));
        widths.sum::<usize>() + GAP * self.shown.len().saturating_sub(1)
    }

    /// Returns the minimum total width at which the texts in all shown columns are readable.
    fn needed_width(&self, columns: usize) -> usize {
        let texts = self.shown.iter().filter(|column| self.is_cut(**column)).count().max(1);
        let wanted = match texts {
            1 => columns * 2 / 5,
            2 => columns * 3 / 10,
            _ => columns / 4,
        };
        // Sentences are wrapped within their column, so they take fewer lines in a wider column.
        let is_prose = |column: &usize| text_kind(self.table.columns()[*column]) == TextKind::Prose;
        let wanted = if self.shown.iter().any(is_prose) { wanted.max(columns / 2) } else { wanted };
        let widths = self.shown.iter().map(|column| match self.is_cut(*column) {
            true => self.width(*column).min(wanted),
            false => self.width(*column),
        });
        widths.sum::<usize>() + GAP * self.shown.len().saturating_sub(1)
    }

    /// Returns the width of a column if none of its texts is cut.
    fn width(&self, column: usize) -> usize {
        let cells = self.texts.iter().map(|row| row[column].width());
        cells.chain([self.titles[column].width()]).max().unwrap_or(0)
    }

    /// Whether the texts of a column may be cut.
    fn is_cut(&self, column: usize) -> bool {
        self.is_text(column) && self.width(column) > MAX_WORD
    }

    /// Whether a column contains texts, which are aligned left (numbers are aligned right).
    fn is_text(&self, column: usize) -> bool {
        self.table.rows().iter().any(|row| row[column].is_text())
    }

    /// Returns the widths of the shown columns. Columns of numbers get the width that they need. Columns of texts share
    /// the remaining width.
    fn widths(&self) -> Vec<usize> {
        let mut widths: Vec<usize> = self.shown.iter().map(|column| self.width(*column)).collect();
        let Some(columns) = self.page.columns else { return widths };
        let room = columns.saturating_sub(GAP * self.shown.len().saturating_sub(1));
        let mut left = room;
        let mut open: Vec<usize> = Vec::new();
        for (at, column) in self.shown.iter().enumerate() {
            if self.is_cut(*column) {
                open.push(at);
            } else {
                left = left.saturating_sub(widths[at]);
            }
        }
        // Narrow columns get their width first, so that wider columns can use the width that the narrow columns do not
        // need.
        open.sort_by_key(|at| widths[*at]);
        while let Some(&at) = open.first() {
            let fair = (left / open.len()).max(MAX_WORD / 2);
            widths[at] = widths[at].min(fair);
            left = left.saturating_sub(widths[at]);
            open.remove(0);
        }
        widths
    }

    fn write(&self, out: &mut dyn Write) -> Result<()> {
        if self.page.columns.is_some() && self.table.rows().is_empty() {
            let note = format!("{}: none", self.table.name().replace('_', " "));
            return Ok(writeln!(out, "{}", self.page.paint(Style::Faint, &note))?);
        }
        let widths = self.widths();
        let cells: Vec<Vec<Vec<String>>> =
            self.shown.iter().zip(&widths).map(|(column, width)| self.fitted(*column, *width)).collect();
        let mut columns = Columns::new();
        columns.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
        columns.set_style(TableComponent::VerticalLines, SEPARATOR);
        columns.set_header(self.shown.iter().zip(&widths).map(|(column, width)| {
            let title = &self.titles[*column];
            if title.width() > *width { title.chars().take(*width).collect() } else { title.clone() }
        }));
        for row in 0..self.texts.len() {
            columns.add_row(cells.iter().map(|column| column[row].join("\n")));
        }
        for (column, at) in columns.column_iter_mut().zip(&self.shown) {
            column.set_padding((0, 0));
            column.set_cell_alignment(if self.is_text(*at) {
                CellAlignment::Left
            } else {
                CellAlignment::Right
            });
        }
        let mut lines = columns.lines();
        if let Some(line) = lines.next() {
            self.write_line(&line, |_, _| Style::Strong, out)?;
        }
        let rows = self.table.rows().len();
        for row in 0..self.texts.len() {
            let height = cells.iter().map(|column| column[row].len()).max().unwrap_or(1);
            for line in lines.by_ref().take(height) {
                match row < rows {
                    true => self.write_line(&line, |column, _| self.style(row, column), out)?,
                    false => self.write_line(&line, |_, _| Style::Strong, out)?,
                }
            }
            if row < rows {
                self.write_beneath(row, out)?;
            }
        }
        if self.texts.len() > rows
            && self.beneath.iter().any(|column| !BENEATH.contains(&self.table.columns()[*column]))
        {
            writeln!(out, "{:INDENT$}-> total", "")?;
        }
        let left_out = self.table.rows_left_out();
        if self.page.columns.is_some() && left_out > 0 {
            let rows = if left_out == 1 { "row" } else { "rows" };
            let note = format!("{} more {rows}; -n 0 shows all", group_digits(left_out));
            writeln!(out, "{}", self.page.paint(Style::Faint, &note))?;
        }
        Ok(())
    }

    /// Returns the lines of every cell in a column, cut or wrapped to `width`.
    fn fitted(&self, column: usize, width: usize) -> Vec<Vec<String>> {
        let all = self.texts.iter().map(|row| &row[column]);
        if self.page.columns.is_none() || !self.is_cut(column) {
            return all.map(|text| vec![text.clone()]).collect();
        }
        let rows = self.table.rows();
        let own = |row: usize| rows.get(row).and_then(|row| row[column].own_frame());
        let texts: Vec<_> = all.enumerate().map(|(row, whole)| Text { whole, own: own(row) }).collect();
        fit_all(&texts, text_kind(self.table.columns()[column]), width)
    }

    /// Writes a line of a table, in which `SEPARATOR` separates the columns.
    fn write_line(
        &self,
        line: &str,
        style: impl Fn(usize, &str) -> Style,
        out: &mut dyn Write,
    ) -> Result<()> {
        let line = line.trim_end_matches([' ', SEPARATOR]);
        let fields = line.split(SEPARATOR).zip(&self.shown);
        let fields = fields.map(|(field, column)| self.page.paint(style(*column, field), field));
        Ok(writeln!(out, "{}", fields.collect::<Vec<_>>().join("  ").trim_end())?)
    }

    fn write_beneath(&self, row: usize, out: &mut dyn Write) -> Result<()> {
        let width = self.page.columns.unwrap_or(usize::MAX).saturating_sub(INDENT + 3);
        for &column in &self.beneath {
            if self.table.rows()[row][column] == Cell::Nothing || self.texts[row][column].is_empty() {
                continue;
            }
            let lines = match self.table.columns()[column] {
                "why" | "remedy" => wrap(&self.texts[row][column], width),
                name if !BENEATH.contains(&name) => self.fitted(column, width)[row].clone(),
                _ => wrap(&format!("{}: {}", self.titles[column], self.texts[row][column]), width),
            };
            for (at, line) in lines.iter().enumerate() {
                let mark = if at == 0 { "-> " } else { "   " };
                writeln!(out, "{:INDENT$}{mark}{}", "", self.page.paint(Style::Faint, line))?;
            }
        }
        Ok(())
    }

    fn style(&self, row: usize, column: usize) -> Style {
        style(&self.table.rows()[row][column], self.table.columns()[column])
    }

    /// Lists the titles of the columns that are not shown; `None` if all columns are shown.
    fn left_out(&self) -> Option<String> {
        let is_shown = |column: &usize| self.shown.contains(column) || self.beneath.contains(column);
        let hidden: Vec<_> = (0..self.titles.len()).filter(|column| !is_shown(column)).collect();
        let names: Vec<&str> = hidden.iter().map(|column| &*self.titles[*column]).collect();
        (!names.is_empty()).then(|| names.join(", "))
    }
}

/// Returns the titles of columns. Column titles on a terminal have no units. On a terminal, titles consist of words
/// instead of identifiers.
fn titles(columns: &[&str], is_terminal: bool) -> Vec<String> {
    let mut titles: Vec<String> = Vec::new();
    for column in columns {
        let title = column_title(column);
        titles.push(match is_terminal {
            // A column with a change in percent is next to the column with the change itself, so the title of the
            // percent column can be short.
            true if titles.iter().any(|other| other == title) => "%".to_owned(),
            true => title.replace('_', " "),
            false => title.to_owned(),
        });
    }
    titles
}

fn text_kind(column: &str) -> TextKind {
    match column {
        "stack" => TextKind::Stack,
        // Texts in the column `launched_by` differ at their start, so the start must remain visible.
        "launched_by" => TextKind::Site,
        "line" | "module" => TextKind::Path,
        "value" | "found" | "help" | "values" | "what" | "missing_ranks" => TextKind::Prose,
        _ => TextKind::Name,
    }
}

/// Returns the style of a cell. The style of a name depends on the kind of GPU work. The style of a check's result
/// depends on the result's severity.
fn style(cell: &Cell, column: &str) -> Style {
    match cell {
        Cell::Nothing => Style::Faint,
        Cell::Share(percent) if *percent < 1.0 && column == "share_percent" => Style::Faint,
        Cell::Change(change) if column == "change_ns" => match change.signum() {
            1 => Style::Bad,
            -1 => Style::Good,
            _ => Style::Plain,
        },
        Cell::Text(text) if column == "result" => match text.as_str() {
            "BAD" | "fail" => Style::Bad,
            "note" | "warn" => Style::Warning,
            "unknown" => Style::Faint,
            _ => Style::Good,
        },
        Cell::Text(text) if column == "cause" => match text.as_str() {
            "host_late" => Style::Kernel,
            "launch_latency" => Style::Graph,
            "dependency" => Style::Copy,
            _ => Style::Faint,
        },
        Cell::Text(_) if column == "straggler" => Style::Bad,
        Cell::Text(_) if column == "direction" => Style::Copy,
        Cell::Text(name) if column == "name" => work_style(name),
        Cell::Kernels(names) => names.first().map_or(Style::Plain, |name| work_style(name)),
        _ => Style::Plain,
    }
}

/// Whether a name is the name of a copy, such as `HtoD`, `PtoP` or `Memcpy ...`.
fn is_copy(name: &str) -> bool {
    matches!(name.as_bytes(), [b'A'..=b'Z', b't', b'o', b'A'..=b'Z', ..]) || name.starts_with("Memcpy")
}

/// Returns the style for the name of a kernel, copy or fill.
fn work_style(name: &str) -> Style {
    const COMMUNICATION: [&str; 4] = ["nccl", "rccl", "nvshmem", "all_reduce"];
    let lower = name.to_ascii_lowercase();
    match () {
        () if is_copy(name) => Style::Copy,
        () if lower.starts_with("memset") => Style::Set,
        () if lower == "[graph]" || lower == "graph" => Style::Graph,
        () if lower.starts_with('[') => Style::Faint,
        () if COMMUNICATION.iter().any(|word| lower.contains(word)) => Style::Communication,
        () => Style::Kernel,
    }
}
