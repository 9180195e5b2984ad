//! Writes the screen of a summary, which consists of sentences, findings and tables.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::io::Write as _;

use super::findings::{
    answer_table, finding_table, has_impossible_durations, measured_part, next_table, not_recorded_table,
    write_findings, write_not_recorded,
};
use super::fit::{Fit, TABLES};
use crate::explain::Explained;
use crate::info::step_table;
use crate::input::Source;
use crate::layout;
use crate::measured_part::MeasuredPart;
use crate::next_command::{command_for, quoted_for_shell};
use crate::page::Page;
use crate::ranks::RankFlags;
use crate::run_path::RunPath;
use crate::shorten::{MAX_NAME_CHARS, shortened};
use crate::table_output::{Cell, Table};
use crate::top::copy_table;
use gpuflame_export::{NameFolding, clean_line, executed_line, idle_place, percent, work_name};
use gpuflame_model::error::Result;
use gpuflame_model::profile::views::{GPU, IDLE, idle_word};
use gpuflame_model::profile::{Profile, RootMark, Sample, Weight, add_to, saturating_sum};
use gpuflame_offline::analysis::{CopySums, Finding, Severity};

/// Name of the row for the GPU time of work whose launching source line is unknown.
const NO_LINE: &str = "[no line]";

/// The data from which the screen of a summary is written.
pub(super) struct Screen<'a> {
    pub(super) explained: &'a Explained,
    pub(super) copies: &'a CopySums,
    pub(super) names: NameFolding,
    pub(super) findings: &'a [Finding],
    /// The critical path; `None` if the summary does not show it.
    pub(super) path: Option<&'a RunPath>,
    pub(super) sums: ScreenSums,
}

/// Sums that are computed once, because they do not depend on the size of the screen.
#[derive(Default)]
pub(super) struct ScreenSums {
    /// Idle time in ns, keyed by cause and keyed by place.
    idle: OnceCell<[NanosByName; 2]>,
    /// GPU time in ns, keyed by the source line that launched the work.
    lines: OnceCell<NanosByName>,
}

type NanosByName = BTreeMap<String, u64>;

impl Screen<'_> {
    pub(super) fn profile(&self) -> &Profile {
        &self.explained.profile
    }

    /// Returns the samples of idle time in the steady part. Returns an empty list if idle time is unknown.
    pub(super) fn idle_samples(&self) -> Vec<&Sample> {
        let is_steady =
            |sample: &&Sample| !matches!(sample.root_mark, Some(RootMark::StartUp | RootMark::Shutdown));
        let known = self.profile().idle_doubt().is_none();
        self.profile().samples(&IDLE).iter().filter(is_steady).filter(|_| known).collect()
    }

    fn part(&self) -> MeasuredPart {
        measured_part(self.profile(), self.findings)
    }

    pub(super) fn busy_percent(&self) -> Option<f64> {
        let times = self.profile().times();
        let busy = saturating_sum(times.iter().map(|time| time.steady().busy));
        let window = saturating_sum(times.iter().map(|time| time.steady().window()));
        (self.profile().idle_doubt().is_none() && window > 0).then(|| percent(busy, window))
    }

    /// Returns the screen as text: the answers, the tables, the missing data, and the next command.
    pub(super) fn text(&self, answers: &[String], input: &Source, fit: Fit, page: Page) -> Result<Vec<u8>> {
        let mut text = Vec::new();
        layout::write_sentences(answers, page, &mut text)?;
        text.push(b'\n');
        write_findings(self.findings, self.part(), fit.rows, page, &mut text)?;
        layout::write(&[], &self.tables(fit), page, &mut text)?;
        text.push(b'\n');
        write_not_recorded(self.not_recorded(), page, &mut text)?;
        // The next command is not wrapped, so that the user can paste it into a shell.
        writeln!(text, "next: {}", clean_line(&self.next_command(input)))?;
        Ok(text)
    }

    /// Returns the contents of the whole screen as tables, for programs.
    pub(super) fn all_tables(&self, answers: &[String], input: &Source, fit: Fit) -> Vec<Table> {
        let findings = finding_table(self.findings, self.part().nanos, fit.rows);
        let unknown: Vec<_> = self.not_recorded();
        [answer_table(answers), findings]
            .into_iter()
            .chain(self.tables(fit))
            .chain([not_recorded_table(unknown), next_table(&self.next_command(input))])
            .collect()
    }

    fn tables(&self, Fit { rows: most, left_out }: Fit) -> Vec<Table> {
        let kept = &TABLES[..TABLES.len() - left_out];
        let mut tables = Vec::new();
        if !has_impossible_durations(self.findings) {
            tables.push(self.device_table(most));
            tables.extend(self.idle_tables(most));
        }
        tables.push(self.work_table(most));
        tables.extend(self.path.and_then(|path| path.table(most, short_name)));
        tables.push(self.line_table(most.min(3)));
        let mut copies = copy_table(self.copies, most.min(3));
        copies.set_all_rows(copies.rows().len());
        tables.push(copies);
        tables.extend(step_table(self.explained, most));
        tables.retain(|table| !table.rows().is_empty() && kept.contains(&table.name()));
        tables
    }

    /// Returns the table with the busy and idle time of each GPU. For a single GPU, this table is empty, because the
    /// first sentence already contains the GPU's times.
    fn device_table(&self, most: usize) -> Table {
        let mut table = Table::new("gpus", &["device", "busy_percent", "busy_ns", "idle_ns", "window_ns"]);
        let times = self.profile().times();
        let is_unknown = self.profile().idle_doubt().is_some();
        for time in times.iter().filter(|_| times.len() > 1).take(most.max(1) * 2) {
            let steady = time.steady();
            let known = |cell| if is_unknown { Cell::Nothing } else { cell };
            table.add_row([
                Cell::Gpu(time.device.0),
                known(Cell::share(steady.busy, steady.window())),
                Cell::Nanos(steady.busy),
                known(Cell::Nanos(steady.idle)),
                Cell::Nanos(steady.window()),
            ]);
        }
        table
    }

    /// Returns the table of idle time per cause, and the table of idle time per place.
    pub(super) fn idle_tables(&self, most: usize) -> [Table; 2] {
        let [causes, places] = self.sums.idle.get_or_init(|| self.idle_sums());
        let by_cause = Table::new("idle_causes", &["total_ns", "share_percent", "cause"]);
        let by_place = Table::new("idle_places", &["total_ns", "share_percent", "place"]);
        [self.sum_table(by_cause, causes, most), self.sum_table(by_place, places, most)]
    }

    fn idle_sums(&self) -> [NanosByName; 2] {
        let (mut causes, mut places) = (BTreeMap::new(), BTreeMap::new());
        for sample in self.idle_samples() {
            add_to(causes.entry(idle_word(sample).to_owned()).or_default(), sample.amount());
            let place = idle_place(self.profile(), sample).unwrap_or_default();
            add_to(places.entry(place).or_default(), sample.amount());
        }
        [causes, places]
    }

    /// Returns the table of GPU work per name, summed over all GPUs.
    fn work_table(&self, most: usize) -> Table {
        let mut sums: BTreeMap<String, Weight> = BTreeMap::new();
        for work in self.profile().works() {
            let sum = sums.entry(work_name(self.profile(), work.work).into_owned()).or_default();
            add_to(&mut sum.nanos, work.weight.nanos);
            add_to(&mut sum.count, work.weight.count);
        }
        let total = self.known_total(sums.values().map(|sum| sum.nanos));
        let mut sums: Vec<_> = sums.into_iter().collect();
        sums.sort_by(|a, b| b.1.nanos.cmp(&a.1.nanos).then_with(|| a.0.cmp(&b.0)));
        let mut table = Table::new("work", &["total_ns", "share_percent", "count", "avg_ns", "name"]);
        for (name, sum) in sums.into_iter().take(most) {
            table.add_row([
                Cell::Nanos(sum.nanos),
                total.map_or(Cell::Nothing, |total| Cell::share(sum.nanos, total)),
                Cell::Count(sum.count),
                Cell::Nanos(sum.nanos / sum.count.max(1)),
                Cell::Kernels(vec![shortened(&name, MAX_NAME_CHARS)]),
            ]);
        }
        table
    }

    /// Returns the table of source lines, sorted by the GPU time of the work that each line launched. The table is
    /// empty if no source line is known.
    fn line_table(&self, most: usize) -> Table {
        let lines = self.sums.lines.get_or_init(|| self.line_sums());
        self.sum_table(Table::new("lines", &["total_ns", "share_percent", "line"]), lines, most)
    }

    /// Returns the GPU time per launching source line, in ns; empty if no line is known.
    fn line_sums(&self) -> NanosByName {
        let mut lines = BTreeMap::new();
        for sample in self.profile().samples(&GPU) {
            let line = executed_line(self.profile(), sample.site, self.names);
            let line = line.map_or_else(|| NO_LINE.to_owned(), |line| format!("{}:{}", line.file, line.line));
            add_to(lines.entry(line).or_default(), sample.amount());
        }
        if lines.keys().eq([NO_LINE]) {
            lines.clear();
        }
        lines
    }

    /// Adds the `most` largest sums to a table. The cell for an unknown name is empty.
    fn sum_table(&self, mut table: Table, sums: &NanosByName, most: usize) -> Table {
        let total = self.known_total(sums.values().copied());
        let mut sums: Vec<_> = sums.iter().filter(|(_, nanos)| **nanos > 0).collect();
        sums.sort_by(|a, b| b.1.cmp(a.1).then_with(|| a.0.cmp(b.0)));
        for (name, nanos) in sums.into_iter().take(most) {
            let name =
                if name.is_empty() { Cell::Nothing } else { Cell::Text(shortened(name, MAX_NAME_CHARS)) };
            let share = total.map_or(Cell::Nothing, |total| Cell::share(*nanos, total));
            table.add_row([Cell::Nanos(*nanos), share, name]);
        }
        table
    }

    /// Returns the total to which shares refer; `None` if impossible durations make all shares wrong.
    fn known_total(&self, nanos: impl Iterator<Item = u64>) -> Option<u64> {
        (!has_impossible_durations(self.findings)).then(|| saturating_sum(nanos))
    }

    fn next_command(&self, input: &Source) -> String {
        let is_idle = self.busy_percent().is_some_and(|busy| busy < 50.0);
        let file = quoted_for_shell(&input.to_string());
        let shown = |finding: &&Finding| matches!(finding.severity, Severity::Bad | Severity::Cost);
        let picture = match self.findings.iter().find(shown) {
            Some(finding) => {
                let has_rows = !self.explained.facts.has_only_sums;
                let is_bad = finding.severity == Severity::Bad;
                let command = command_for(
                    finding.id,
                    is_bad,
                    &file,
                    std::slice::from_ref(&file),
                    has_rows,
                    RankFlags::default(),
                );
                command.ok_or("--idle -o idle.svg")
            }
            None if is_idle => Err("--idle -o idle.svg"),
            None => Err("-o gpu.svg"),
        };
        picture.unwrap_or_else(|options| format!("gpuflame flamegraph {file} {options}"))
    }
}

fn short_name(name: &str) -> String {
    shortened(name, MAX_NAME_CHARS)
}
