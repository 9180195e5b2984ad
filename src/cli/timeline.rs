//! `gpuflame timeline`: draws one line of letters per stream. The letters show the state of the stream over time.

use clap::Args;

use super::console::{Console, Outcome};
use super::explain::{Explained, explain_opened, max_memory};
use super::found_path::remark_on_missing_work;
use super::heading::heading;
use super::input::Source;
use super::page::{Page, Style};
use super::shorten::wrap;
use super::states::{answer, collective_test, no_states, no_stream, print_remarks};
use super::stream_flags::StreamFlags;
use super::table_output::{self, Cell, ReportFlags, ReportFormat, Table};
use super::times::parse_micros;
use gpuflame_model::error::Result;
use gpuflame_model::profile::format_nanos;
use gpuflame_offline::analysis::{
    Column, State, StateColumns, StateOptions, StateReport, StreamKey, StreamRows, reconstruct_states,
    shown_window,
};
use gpuflame_offline::run::ReadOptions;

/// Draw each stream as a line of letters: when it ran, waited, or had no work.
///
/// `gpuflame states` shows the same states. docs/states.md describes the rules.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  gpuflame timeline trace.json.gz\n  \
    gpuflame timeline run.gfr --from 10ms --to 20ms --step 50us")]
pub(super) struct Timeline {
    /// Recording or trace (`-`: standard input).
    pub(super) input: Source,
    /// Maximum number of streams to show; 0: all. Streams with the most running time are kept.
    #[arg(short, long, default_value_t = 20)]
    pub(super) number: usize,
    #[command(flatten)]
    pub(super) shown: StreamFlags,
    /// Duration that a letter represents (default: the time that is shown, divided by the width of the terminal). Long
    /// lines are broken.
    #[arg(long, value_name = "TIME", value_parser = parse_micros)]
    pub(super) step: Option<i64>,
    #[command(flatten)]
    pub(super) report: ReportFlags,
}

/// Number of letters in a line that is written to a pipe or a file.
const LETTERS: usize = 80;
/// Distance, in letters, between two times in the line of times above the letters.
const TICK_LETTERS: usize = 20;
/// Letters for the times in which a stream runs GPU work. Each letter represents a share of its column's time during
/// which the stream ran: up to 25, 50, 75 or 100 %.
const RUNNING: [char; 4] = [':', '+', '*', '#'];
/// Legend that explains the letters.
const LEGEND: &str =
    ":+*# running (up to 25, 50, 75, 100 %), w waiting, p pending, . idle, - not recorded, blank finished";

impl Timeline {
    pub(super) fn run(&self, console: Console) -> Result<Outcome> {
        self.view().run(console)
    }

    fn view(&self) -> TimelineView<'_> {
        let Self { input, number, shown, step, report } = self;
        TimelineView { input, number: *number, shown, step: step.map(i64::unsigned_abs), report }
    }
}

/// Input data and settings of a timeline that is drawn.
#[derive(Clone, Copy)]
pub(super) struct TimelineView<'a> {
    pub(super) input: &'a Source,
    pub(super) number: usize,
    pub(super) shown: &'a StreamFlags,
    pub(super) step: Option<u64>,
    pub(super) report: &'a ReportFlags,
}

impl TimelineView<'_> {
    pub(super) fn run(self, console: Console) -> Result<Outcome> {
        self.shown.check()?;
        let mut rows = StreamRows::default();
        let options = ReadOptions { max_memory: max_memory(), ..ReadOptions::default() };
        let explained = explain_opened(self.input, self.input.open()?, &options, console, &mut rows)?;
        explained.facts.require_work(self.input)?;
        explained.facts.require_rows(self.input)?;
        let profile = &explained.profile;
        let states = StateOptions { from: self.shown.from(), to: self.shown.to(), step: self.step };
        let window = shown_window(&rows, profile, states).filter(|(from, to)| from < to);
        let Some(window) = window else { return Err(no_states(self.input, Some(self.shown))) };
        let page = Page::of(&self.report.output, console);
        let labels = Labels::new(&rows.keys());
        let letters = page.columns.map_or(LETTERS, |width| width.saturating_sub(labels.width() + 1).max(1));
        let step = self.step.unwrap_or_else(|| (window.1 - window.0).div_ceil(letters as u64));
        let mut columns = StateColumns::new(window, step);
        let wants = |key: StreamKey| self.shown.wants_stream(key.0.0, key.2.0);
        let report =
            reconstruct_states(rows, profile, states, &collective_test(profile), &mut |key, interval| {
                if wants(key) {
                    columns.add(key, interval);
                }
            });
        let Some(report) = report else { return Err(no_states(self.input, Some(self.shown))) };
        if columns.streams.is_empty() {
            return Err(no_stream(self.input, &report));
        }
        print_remarks(self.input, &report, self.step, console);
        remark_on_missing_work(self.input, profile, console);
        let all = columns.streams.len();
        self.keep_busiest(&mut columns);
        self.write(&explained, &report, &columns, &labels, letters, page, console)?;
        if columns.streams.len() < all {
            console.remark(format!(
                "{} of {all} streams, those that ran the longest; -n 0 shows all",
                columns.streams.len()
            ));
        }
        Ok(Outcome::Clean)
    }

    /// Keeps only the `--number` streams with the most running time. The order of the streams does not change.
    fn keep_busiest(self, columns: &mut StateColumns) {
        if self.number == 0 || columns.streams.len() <= self.number {
            return;
        }
        let running =
            |columns: &[Column]| columns.iter().map(|column| column[State::Running as usize]).sum::<u64>();
        let mut order: Vec<_> =
            columns.streams.iter().map(|(key, all)| (std::cmp::Reverse(running(all)), *key)).collect();
        order.sort_unstable();
        order.truncate(self.number);
        columns.streams.retain(|(key, _)| order.iter().any(|(_, kept)| kept == key));
    }

    #[expect(clippy::too_many_arguments, reason = "all parts of one picture")]
    fn write(
        self,
        explained: &Explained,
        report: &StateReport,
        columns: &StateColumns,
        labels: &Labels,
        letters: usize,
        page: Page,
        console: Console,
    ) -> Result<()> {
        let zero = columns.window.0 - self.shown.from().unwrap_or(0);
        let sentence = answer(report, &|key| self.shown.wants_stream(key.0.0, key.2.0));
        let head = [heading(self.input, &explained.profile), sentence.clone()];
        if self.report.format != ReportFormat::Text {
            return self.report.write(console, &head, &[table(columns, zero)]);
        }
        let width = page.columns.unwrap_or(usize::MAX);
        self.report.output.write(console, |out| {
            table_output::write_tables(&head[..1], &[], ReportFormat::Text, page, out)?;
            let legend = format!("a letter: {}; {LEGEND}", format_nanos(columns.step));
            for line in [sentence.as_str(), &legend].iter().flat_map(|text| wrap(text, width)) {
                writeln!(out, "{line}")?;
            }
            for first in (0..columns.count()).step_by(letters) {
                writeln!(out)?;
                let last = columns.count().min(first + letters);
                let offset = columns.window.0 - zero + first as u64 * columns.step;
                writeln!(out, "{:1$} {2}", "", labels.width(), ruler(offset, columns.step, last - first))?;
                for (key, all) in &columns.streams {
                    writeln!(out, "{} {}", labels.text(*key), line(&all[first..last], page))?;
                }
            }
            Ok(())
        })
    }
}

/// Formats the names of streams. The stream's name is written before the stream's line of letters. A name contains the
/// CUDA context only if a GPU has several contexts.
struct Labels {
    has_contexts: bool,
}

impl Labels {
    fn new(keys: &[StreamKey]) -> Self {
        Self { has_contexts: keys.iter().any(|a| keys.iter().any(|b| a.0 == b.0 && a.1 != b.1)) }
    }

    fn width(&self) -> usize {
        if self.has_contexts { "GPU 0 context  1 stream    7".len() } else { "GPU 0 stream    7".len() }
    }

    fn text(&self, (device, context, stream): StreamKey) -> String {
        let context = if self.has_contexts { format!("context {:>2} ", context.0) } else { String::new() };
        format!("GPU {} {context}stream {:>4}", device.0, stream.0)
    }
}

/// Returns the line of times above the letters. A time that does not fit at the end of the line is left out.
fn ruler(offset: u64, step: u64, letters: usize) -> String {
    let mut text = String::new();
    for at in (0..letters).step_by(TICK_LETTERS) {
        let time = format!("|{}", format_nanos(offset + at as u64 * step));
        if at + time.len() <= letters || at == 0 {
            text += &format!("{:1$}", "", at.saturating_sub(text.len()));
            text += &time;
        }
    }
    text
}

/// Returns the letter for a column, and the letter's style. If the stream ran at any time in the column, the letter
/// shows that the stream ran, so that no work is hidden. If the stream did not run, the letter shows the state that
/// lasted longest in the column.
fn letter(column: &Column) -> (char, Style) {
    let all: u64 = column.iter().sum();
    let running = column[State::Running as usize];
    if running > 0 {
        return (
            RUNNING[(running.saturating_mul(4).div_ceil(all.max(1)) as usize).clamp(1, 4) - 1],
            Style::Kernel,
        );
    }
    let longest = State::ALL.into_iter().rev().max_by_key(|state| column[*state as usize]);
    match longest {
        Some(State::Waiting) => ('w', Style::Bad),
        Some(State::Pending) => ('p', Style::Warning),
        Some(State::Finished) => (' ', Style::Plain),
        Some(State::NotRecorded) => ('-', Style::Faint),
        _ => ('.', Style::Faint),
    }
}

fn line(columns: &[Column], page: Page) -> String {
    let letters: Vec<(char, Style)> = columns.iter().map(letter).collect();
    let same = letters.chunk_by(|a, b| a.1 == b.1);
    let text: String = same
        .map(|same| page.paint(same[0].1, &same.iter().map(|(letter, _)| letter).collect::<String>()))
        .collect();
    text.trim_end().to_owned()
}

/// Returns the timeline as a table for programs. The table has one row per stream and column, but only for columns in
/// which the stream ran, waited or had pending work.
fn table(columns: &StateColumns, zero: u64) -> Table {
    let mut table = Table::new(
        "timeline",
        &[
            "device",
            "context",
            "stream",
            "start_ns",
            "duration_ns",
            "busy_ns",
            "busy_percent",
            "waiting_ns",
            "pending_ns",
            "idle_ns",
            "finished_ns",
            "not_recorded_ns",
        ],
    );
    for ((device, context, stream), all) in &columns.streams {
        let has_work = |column: &Column| column[..=State::Pending as usize].iter().any(|nanos| *nanos > 0);
        for (at, column) in all.iter().enumerate().filter(|(_, column)| has_work(column)) {
            let [running, others @ ..] = *column;
            let length = column.iter().sum();
            let start = columns.window.0 - zero + at as u64 * columns.step;
            let cells = [
                Cell::Id(device.0.into()),
                Cell::Id(context.0.into()),
                Cell::Id(stream.0.into()),
                Cell::Nanos(start),
                Cell::Nanos(length),
                Cell::Nanos(running),
                Cell::share(running, length),
            ];
            table.add_row(cells.into_iter().chain(others.map(Cell::Nanos)));
        }
    }
    table
}
