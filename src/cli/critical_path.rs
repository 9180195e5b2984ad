//! `gpuflame critical-path`: finds the chain of calls, waits and GPU work that decided when the run ended.

use clap::Args;

use super::console::{Console, Outcome, usage_error};
use super::critical_path_hta::{HtaPathFlags, write_hta_path};
use super::critical_path_job::JobReport;
use super::found_path::{FoundPath, print_remarks};
use super::heading::heading;
use super::input::Source;
use super::output::Target;
use super::path_groups::path_groups;
use super::path_names::PathNames;
use super::path_ranges::{PathRanges, RangeName, parts_within};
use super::path_tables::{
    answer, class_table, draw, group_names, group_sums, part_names, part_table, part_times,
};
use super::ranks::{RankFlags, expand_folders};
use super::slack_table::slack_table;
use super::table_output::{ReportFlags, Table};
use super::times::parse_micros;
use gpuflame_model::error::Result;
use gpuflame_offline::analysis::PathPart;

/// Find the critical path: the calls, waits and GPU work that decided when the run ended.
///
/// The durations of the path's parts add up exactly to the duration of the window. docs/critical-path.md states the
/// rules.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  gpuflame critical-path trace.json.gz\n  \
    gpuflame critical-path run.gfr --step 3 --list\n  \
    gpuflame critical-path trace.json.gz --range forward\n  \
    gpuflame critical-path run.gfr --picture path.svg\n  \
    gpuflame critical-path trace.json.gz --as-hta --instance 1\n  \
    gpuflame critical-path rank-*.json.gz --list")]
pub(super) struct CriticalPathVerb {
    /// Recording or trace (`-`: standard input). Several files, or a folder of files, are the ranks of one job. The
    /// clocks of the ranks are aligned by the collectives in which the ranks meet. At a collective, the path continues
    /// on the rank that entered last.
    #[arg(required = true)]
    inputs: Vec<Source>,
    /// Maximum number of rows per table; 0: all.
    #[arg(short, long, default_value_t = 20)]
    number: usize,
    /// Show only the part of the path in this step, counted from 1.
    #[arg(long, value_name = "N", conflicts_with_all = ["from", "to"])]
    step: Option<usize>,
    /// Show only the part of the path after this time, counted from the start of the path: `10ms`, `1.5s` or `200us`. A
    /// time without a unit is in microseconds.
    #[arg(long, value_name = "TIME", value_parser = parse_micros)]
    from: Option<i64>,
    /// Show only the part of the path before this time, counted from the start of the path.
    #[arg(long, value_name = "TIME", value_parser = parse_micros)]
    to: Option<i64>,
    /// Show only the parts of the path inside the ranges with this name, or whose names match this regular expression. An
    /// exact name takes precedence.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["step", "from", "to"])]
    range: Option<RangeName>,
    /// List the parts of the path by time, each with its reason.
    #[arg(long)]
    list: bool,
    /// Draw the path as a flame graph (`.svg`), or write it as folded stacks (`.folded`), in addition to the tables.
    #[arg(long, value_name = "FILE")]
    picture: Option<Target>,
    /// Show the path by the rules of Holistic Trace Analysis instead.
    #[arg(long, conflicts_with_all = ["step", "from", "to", "range", "list", "picture"])]
    as_hta: bool,
    #[command(flatten)]
    ranks: RankFlags,
    #[command(flatten)]
    hta: HtaPathFlags,
    #[command(flatten)]
    pub(super) report: ReportFlags,
}

impl CriticalPathVerb {
    pub(super) fn run(&self, console: Console) -> Result<Outcome> {
        let sources = expand_folders(&self.inputs)?;
        let [input] = &sources[..] else { return self.run_job(&sources, console) };
        if self.as_hta {
            return write_hta_path(input, &self.hta, &self.report, console);
        }
        self.run_one(input, console)
    }

    /// Writes the critical path of one run.
    fn run_one(&self, input: &Source, console: Console) -> Result<Outcome> {
        let found = FoundPath::read_for(input, self.range.is_some(), console)?;
        let ranges = match &self.range {
            Some(name) => Some(PathRanges::find(name, input, &found, console)?),
            None => None,
        };
        let window = [self.window(input, &found)?];
        let stretches = ranges.as_ref().map_or(&window[..], PathRanges::stretches);
        let all = found.path.parts();
        let parts: Vec<_> = stretches.iter().flat_map(|stretch| parts_within(all, *stretch)).collect();
        let names = found.names();
        if let Some(target) = &self.picture {
            draw(parts.iter().map(|part| (names.folded(part), part.end - part.start)), target, console)?;
        }
        let (zero, most) = (found.path.window().0, self.most());
        let total = stretches.iter().map(|(from, to)| to - from).sum();
        let mut tables = vec![
            class_table(&parts, total),
            self.name_table(names, &parts, total),
            slack_table(&found, most),
        ];
        tables.extend(ranges.as_ref().map(|ranges| ranges.table(all, zero, most)));
        if self.list {
            tables.push(self.part_table(names, &parts, zero));
        }
        print_remarks(input, &found, console);
        let mut lines = vec![heading(input, &found.explained.profile)];
        lines.extend(ranges.iter().zip(&self.range).map(|(ranges, name)| ranges.line(name)));
        lines.push(answer(&parts, total));
        self.report.write(console, &lines, &tables)?;
        Ok(Outcome::Clean)
    }

    /// Writes the critical path of a job with several ranks.
    fn run_job(&self, sources: &[Source], console: Console) -> Result<Outcome> {
        let of_one =
            [("--step", self.step.is_some()), ("--range", self.range.is_some()), ("--as-hta", self.as_hta)];
        if let Some((flag, _)) = of_one.into_iter().find(|(_, is_set)| *is_set) {
            return Err(usage_error(format!(
                "{flag} needs one file, and not {}; name a part of a job by --from and --to",
                sources.len()
            )));
        }
        let job = JobReport::read(sources, self.ranks, (self.from, self.to), console)?;
        if let Some(target) = &self.picture {
            draw(job.folded(), target, console)?;
        }
        let tables = job.tables(self.most(), self.list);
        job.print_remarks(console);
        self.report.write(console, &job.lines(), &tables)?;
        Ok(Outcome::Clean)
    }

    /// Returns the start and end in ns of the time range that is shown.
    fn window(&self, input: &Source, found: &FoundPath) -> Result<(u64, u64)> {
        match self.step {
            Some(step) => found.step(input, step),
            None => found.stretch(self.from, self.to),
        }
    }

    fn most(&self) -> usize {
        if self.number == 0 { usize::MAX } else { self.number }
    }

    /// Returns the table of time on the path, grouped by class and name.
    fn name_table(&self, names: PathNames<'_>, parts: &[PathPart], total: u64) -> Table {
        let groups = path_groups(names, parts);
        let mut table =
            Table::new("path_names", &["time_ns", "share_percent", "parts", "class", "function", "name"]);
        table.set_all_rows(groups.len());
        for group in groups.into_iter().take(self.most()) {
            table.add_row(group_sums(&group, total).into_iter().chain(group_names(group)));
        }
        table
    }

    /// Returns the table with the parts of the path, in chronological order.
    fn part_table(&self, names: PathNames<'_>, parts: &[PathPart], zero: u64) -> Table {
        let mut table = part_table(false);
        table.set_all_rows(parts.len());
        let savings = names.path.savings();
        let all = names.path.parts();
        for part in parts.iter().take(self.most()) {
            // The part before a shown part may be outside the time range that is shown. Therefore the whole path is
            // searched for the part before a shown part.
            let at = all.partition_point(|other| other.end <= part.start);
            let before = at.checked_sub(1).map(|at| &all[at]);
            let reason = names.reason(before, part);
            table.add_row(part_times(part, zero).into_iter().chain(part_names(
                names,
                part,
                savings.of(part),
                reason,
            )));
        }
        table
    }
}
