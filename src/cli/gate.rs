//! `gpuflame diff BASE... --new NEW...`: compares several runs before a change with several runs after it. The
//! comparison results in a verdict and a table. Each verdict has a different exit code. The table has one row for each
//! total, step, kernel, stack and idle cause.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;

use super::baseline;
use super::console::{Console, Outcome, usage_error};
use super::input::Source;
use super::layout;
use super::name_flags::NameFlags;
use super::page::Page;
use super::run_values::{RunValues, Sums, Times};
use super::shorten::{MAX_NAME_CHARS, shortened};
use super::table_output::{Cell, ReportFlags, ReportFormat, Table, group_digits, write_tables};
use gpuflame_model::error::Result;
use gpuflame_offline::analysis::{MIN_RUNS, PairChange, PairRow, PairVerdict, RunOrder};

/// Exit code of the verdict `faster`. The constants below are the exit codes of the other verdicts. The exit code of
/// the verdict `same` is 0.
const FASTER: u8 = 10;
const SLOWER: u8 = 11;
const INCONCLUSIVE: u8 = 12;
const INVALID: u8 = 13;
/// Exit code of the verdict `slower` if the slowdown is below the limit of `--fail-above`.
const SLOWER_WITHIN: u8 = 14;

/// Maximum number of kernels, and of stacks, to compare. The kernels and stacks with the longest mean time on either
/// side are compared.
const MAX_COMPARED: usize = 100;
/// Maximum ratio between the numbers of GPU operations in two runs that are both before, or both after, the change.
const MAX_RATIO_WITHIN: f64 = 1.1;
/// Maximum ratio between two medians: the median number of GPU operations of the runs before the change, and that of
/// the runs after the change. The maximum ratio between the two sides is larger than the maximum ratio within a side,
/// because a change that fuses kernels reduces the number of operations.
const MAX_RATIO_BETWEEN: f64 = 2.0;
/// Maximum number of reasons that a sentence lists.
const MAX_REASONS: usize = 3;

const COLUMNS: [&str; 11] = [
    "change_ns",
    "change_percent",
    "low_percent",
    "high_percent",
    "before_ns",
    "after_ns",
    "verdict",
    "pairs_needed",
    "by",
    "share_of",
    "name",
];

/// The command-line arguments of a comparison of several runs.
pub(super) struct Gate<'a> {
    pub(super) base: Vec<&'a Source>,
    pub(super) new: &'a [Source],
    /// Slowdown in percent above which the gate fails.
    pub(super) fail_above: f64,
    pub(super) save_baseline: Option<&'a std::path::Path>,
    /// Whether the command's exit code is 0 if the gate passes.
    pub(super) zero_on_pass: bool,
    /// Maximum number of rows of the table; 0: all.
    pub(super) number: usize,
    pub(super) names: &'a NameFlags,
    pub(super) report: &'a ReportFlags,
}

/// Parses a percentage such as `5%` or `0.5`.
pub(super) fn parse_percent(text: &str) -> std::result::Result<f64, String> {
    let text = text.trim();
    let number = text.strip_suffix('%').unwrap_or(text).trim();
    let percent = number.parse::<f64>().ok().filter(|percent| *percent > 0.0 && *percent <= 1000.0);
    percent.ok_or_else(|| "expected a percentage above 0 and up to 1000, such as 5%".to_owned())
}

/// Overall verdict of the comparison.
struct Conclusion {
    word: &'static str,
    code: u8,
    passes: bool,
    sentence: String,
    change: Option<PairChange>,
    pairs_needed: Option<usize>,
    reason: Option<String>,
}

/// A row of the result table.
struct Row {
    by: &'static str,
    /// Denominator of the change: `row`, `wall` or `GPU work`.
    share_of: &'static str,
    name: String,
    values: PairRow,
}

/// The runs before and after the change, with values in the same unit.
struct Sides<'a> {
    before: &'a [RunValues],
    after: &'a [RunValues],
    /// Whether values are divided by the number of steps, because the runs have different numbers of steps.
    is_per_step: bool,
}

impl Gate<'_> {
    pub(super) fn run(&self, console: Console) -> Result<Outcome> {
        let repeated = self.repeated();
        if !repeated.is_empty() {
            return self.finish(console, &invalid(&repeated), None);
        }
        let names = self.names.names();
        let (mut base, mut has_baseline) = (Vec::new(), false);
        for source in &self.base {
            if let Some(runs) = baseline::read(source, names)? {
                has_baseline = true;
                base.extend(runs);
            } else {
                base.push(RunValues::read(source, self.names, console)?);
            }
        }
        let mut new = Vec::new();
        for source in self.new {
            if baseline::read(source, names)?.is_some() {
                return Err(usage_error(format!(
                    "{source} is a baseline; name it before --new, and recordings or traces after --new"
                )));
            }
            new.push(RunValues::read(source, self.names, console)?);
        }
        let sides = Sides::new(&base, &new);
        let problems = sides.problems(!self.new.is_empty());
        if let Some(file) = self.save_baseline {
            if let Some(problem) = problems.first() {
                console.remark(format!("{} was not written: {problem}", file.display()));
            } else {
                baseline::save(file, &base, names, console)?;
            }
            if self.new.is_empty() {
                return Ok(if problems.is_empty() { Outcome::Clean } else { Outcome::Status(INVALID) });
            }
        }
        if !problems.is_empty() {
            return self.finish(console, &invalid(&problems), None);
        }
        sides.remark_order(has_baseline, console);
        if base.len().min(new.len()) < MIN_RUNS {
            return self.finish(console, &too_few(base.len(), new.len()), None);
        }
        if has_baseline {
            console.remark(
                "the runs of a baseline were recorded earlier: a change of the machine since then counts as a change \
                 of the program",
            );
        }
        let rows = sides.rows(console);
        let order = match has_baseline {
            true => RunOrder::unordered(base.len(), new.len()),
            false => RunOrder::in_turns(base.len(), new.len()),
        };
        let values: Vec<PairRow> = rows.iter().map(|row| row.values.clone()).collect();
        let changes = order.compare(&values, self.fail_above / 100.0);
        let conclusion = self.conclude(&rows, &changes, &sides);
        self.finish(console, &conclusion, Some(self.table(&rows, &changes)))
    }

    /// Returns a sentence for each run that occurs twice on the command line, even if the two paths are different.
    fn repeated(&self) -> Vec<String> {
        let mut seen = BTreeSet::new();
        let all = self.base.iter().copied().chain(self.new);
        let again = all.filter(|source| {
            let key = match source {
                Source::Stdin => None,
                Source::File(path) => match fs::metadata(path) {
                    Ok(file) => Some((file.dev(), file.ino())),
                    // An error here means that the file is missing or inaccessible. The error is reported later, when
                    // the run's file is read.
                    Err(_) => return false,
                },
            };
            !seen.insert(key)
        });
        again.map(|source| format!("{source} is named twice; name each run once")).collect()
    }

    fn conclude(&self, rows: &[Row], changes: &[PairChange], sides: &Sides<'_>) -> Conclusion {
        let main = || rows.iter().zip(changes).filter(|(row, _)| row.values.is_main);
        let find = |verdict| main().filter(move |(_, change)| change.verdict == verdict);
        let largest = |verdict| find(verdict).max_by(|a, b| a.1.change.abs().total_cmp(&b.1.change.abs()));
        let decisive =
            [PairVerdict::Slower, PairVerdict::Faster, PairVerdict::Inconclusive, PairVerdict::Same];
        let (row, change) = decisive.into_iter().find_map(largest).expect("the total is a main row");
        let limit = format!("{} %", self.fail_above);
        let is_above = 100.0 * change.change >= self.fail_above;
        let (code, passes) = match change.verdict {
            PairVerdict::Slower if is_above => (SLOWER, false),
            PairVerdict::Slower => (SLOWER_WITHIN, true),
            PairVerdict::Faster => (FASTER, true),
            PairVerdict::Same => (0, true),
            PairVerdict::Inconclusive => (INCONCLUSIVE, false),
        };
        let pairs_needed = find(PairVerdict::Inconclusive).map(|(_, change)| change.pairs_needed);
        // `None` means that no number of pairs of runs is enough for a verdict, so `None` counts as larger than any
        // number.
        let pairs_needed = pairs_needed.max_by_key(|pairs| pairs.unwrap_or(usize::MAX)).flatten();
        let end = match change.verdict {
            PairVerdict::Slower if is_above => format!("--fail-above is {limit}: the gate fails"),
            PairVerdict::Slower => format!("below --fail-above {limit}: the gate passes"),
            PairVerdict::Faster => "the gate passes".to_owned(),
            PairVerdict::Same => format!("a change of {limit} is excluded: the gate passes"),
            PairVerdict::Inconclusive => match pairs_needed {
                Some(pairs) => format!(
                    "about {} pairs would find or exclude a change of {limit}",
                    group_digits(pairs as u64)
                ),
                None => format!("the runs differ too much to find a change of {limit}"),
            },
        };
        let [low, high] = change.interval.map(signed_percent);
        let what = if row.by == "step" { "mean step" } else { "GPU work" };
        let unit = if row.by == "step" { "" } else { sides.unit() };
        let mut sentence = format!(
            "{}: {what}{unit} {} (99 % interval {low} to {high}, {} and {} runs); {end}",
            change.verdict.word(),
            signed_percent(change.change),
            sides.before.len(),
            sides.after.len(),
        );
        for verdict in [PairVerdict::Slower, PairVerdict::Faster] {
            let others = rows.iter().zip(changes).filter(|(row, _)| !row.values.is_main);
            let count = others.filter(|(_, change)| change.verdict == verdict).count();
            if count > 0 {
                let word = if count == 1 { "row is" } else { "rows are" };
                sentence += &format!("; {count} other {word} {}", verdict.word());
            }
        }
        let change = Some(*change);
        let word = decisive_word(code);
        Conclusion { word, code, passes, sentence, change, pairs_needed, reason: None }
    }

    /// Builds the result table. The first rows of the table are the total, the step, busy time and wall time. After the
    /// first rows come the rows with the verdict `slower` or `faster`, and then all remaining rows. In each of these
    /// two groups, the rows are sorted by the size of the change, largest first.
    fn table(&self, rows: &[Row], changes: &[PairChange]) -> Table {
        let mut all: Vec<(&Row, &PairChange, i64)> =
            rows.iter().zip(changes).map(|(row, change)| (row, change, row.cost(change))).collect();
        all.sort_by_key(|(row, change, cost)| {
            let is_called = matches!(change.verdict, PairVerdict::Slower | PairVerdict::Faster);
            let place = if row.values.is_main {
                0
            } else if row.by == "time" {
                1
            } else {
                2
            };
            (
                place,
                place == 2 && !is_called,
                std::cmp::Reverse(if place == 2 { cost.unsigned_abs() } else { 0 }),
            )
        });
        let first = all.iter().filter(|(row, ..)| row.values.is_main || row.by == "time").count();
        let most = if self.number == 0 { usize::MAX } else { first + self.number };
        let mut table = Table::new("changes", &COLUMNS);
        let is_text = matches!(self.report.format, ReportFormat::Text | ReportFormat::Markdown);
        for (row, change, cost) in all.iter().take(most) {
            let [low, high] = change.interval.map(|end| Cell::Share(100.0 * end));
            let name = if is_text { shortened(&row.name, MAX_NAME_CHARS) } else { row.name.clone() };
            table.add_row([
                Cell::Change(*cost),
                Cell::Share(100.0 * change.change),
                low,
                high,
                Cell::Nanos(mean(&row.values.before).round() as u64),
                Cell::Nanos(mean(&row.values.after).round() as u64),
                change.verdict.word().into(),
                change.pairs_needed.map_or(Cell::Nothing, |pairs| Cell::Count(pairs as u64)),
                row.by.into(),
                row.share_of.into(),
                Cell::Text(name),
            ]);
        }
        table.set_all_rows(all.len());
        table
    }

    fn finish(&self, console: Console, conclusion: &Conclusion, table: Option<Table>) -> Result<Outcome> {
        let code = if self.zero_on_pass && conclusion.passes { 0 } else { conclusion.code };
        let page = Page::of(&self.report.output, console);
        let tables: Vec<Table> = table.into_iter().collect();
        self.report.output.write(console, |out| match self.report.format {
            ReportFormat::Text => {
                layout::write_sentences(std::slice::from_ref(&conclusion.sentence), page, out)?;
                if !tables.is_empty() {
                    writeln!(out)?;
                }
                layout::write(&[], &tables, page, out)
            }
            ReportFormat::Markdown => {
                let (word, rest) = conclusion.sentence.split_once(": ").unwrap_or((&conclusion.sentence, ""));
                let rest = super::table_output::markdown_text(rest);
                writeln!(out, "**gpuflame: {word}** - {rest}\n")?;
                write_tables(&[], &tables, ReportFormat::Markdown, page, out)
            }
            format => {
                let mut all = vec![self.verdict_table(conclusion, code)];
                all.extend(if tables.is_empty() { vec![Table::new("changes", &COLUMNS)] } else { tables });
                write_tables(&[], &all, format, page, out)
            }
        })?;
        Ok(Outcome::Status(code))
    }

    fn verdict_table(&self, conclusion: &Conclusion, code: u8) -> Table {
        let columns = &[
            "verdict",
            "passes",
            "exit_code",
            "change_percent",
            "low_percent",
            "high_percent",
            "fail_above_percent",
            "pairs_needed",
            "reason",
            "sentence",
        ];
        let mut table = Table::new("verdict", columns);
        let share = |value: Option<f64>| value.map_or(Cell::Nothing, |value| Cell::Share(100.0 * value));
        let change = conclusion.change;
        table.add_row([
            conclusion.word.into(),
            if conclusion.passes { "yes" } else { "no" }.into(),
            Cell::Id(code.into()),
            share(change.map(|change| change.change)),
            share(change.map(|change| change.interval[0])),
            share(change.map(|change| change.interval[1])),
            Cell::Share(self.fail_above),
            conclusion.pairs_needed.map_or(Cell::Nothing, |pairs| Cell::Count(pairs as u64)),
            conclusion.reason.clone().map_or(Cell::Nothing, Cell::Text),
            Cell::Text(conclusion.sentence.clone()),
        ]);
        table
    }
}

fn decisive_word(code: u8) -> &'static str {
    match code {
        FASTER => "faster",
        SLOWER | SLOWER_WITHIN => "slower",
        INCONCLUSIVE => "inconclusive",
        INVALID => "invalid",
        _ => "same",
    }
}

fn signed_percent(share: f64) -> String {
    format!("{:+.1} %", 100.0 * share)
}

fn invalid(problems: &[String]) -> Conclusion {
    let more = problems.len().saturating_sub(MAX_REASONS);
    let mut reason = problems.iter().take(MAX_REASONS).cloned().collect::<Vec<_>>().join("; ");
    if more > 0 {
        reason += &format!("; and {more} more");
    }
    let sentence = format!("invalid: {reason}");
    unfounded(INVALID, sentence, Some(reason), None)
}

fn too_few(before: usize, after: usize) -> Conclusion {
    let reason = format!(
        "{before} and {after} runs; at least {MIN_RUNS} of each side are needed, and 7 find a change of 3 % if runs differ \
         by 1 %"
    );
    unfounded(INCONCLUSIVE, format!("inconclusive: {reason}"), Some(reason), Some(MIN_RUNS))
}

fn unfounded(code: u8, sentence: String, reason: Option<String>, pairs_needed: Option<usize>) -> Conclusion {
    let (word, passes, change) = (decisive_word(code), false, None);
    Conclusion { word, code, passes, sentence, change, pairs_needed, reason }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

impl Row {
    /// Returns the change in ns after steady drift between the runs was removed.
    fn cost(&self, change: &PairChange) -> i64 {
        (change.change * self.values.share_of.unwrap_or_else(|| mean(&self.values.before))).round() as i64
    }
}

impl<'a> Sides<'a> {
    fn new(before: &'a [RunValues], after: &'a [RunValues]) -> Self {
        let steps: BTreeSet<u64> = before.iter().chain(after).map(|run| run.steps).collect();
        Self { before, after, is_per_step: steps.len() > 1 && steps.iter().all(|steps| *steps > 1) }
    }

    fn all(&self) -> impl Iterator<Item = &'a RunValues> + Clone {
        self.before.iter().chain(self.after)
    }

    fn unit(&self) -> &'static str {
        if self.is_per_step { " per step" } else { " per run" }
    }

    fn per_unit(&self, run: &RunValues, value: u64) -> f64 {
        value as f64 / if self.is_per_step { run.steps as f64 } else { 1.0 }
    }

    /// Lists the reasons why the runs cannot be compared.
    fn problems(&self, has_both: bool) -> Vec<String> {
        let mut problems: Vec<String> = self.all().flat_map(|run| run.problems.clone()).collect();
        // A run that could not be read has no facts that could be compared. If the missing facts were compared, the
        // same reasons would be listed again.
        if !problems.is_empty() {
            return problems;
        }
        let mut differ = |what: &str, of: &dyn Fn(&RunValues) -> String, runs: &[&RunValues]| {
            let known: Vec<_> = runs
                .iter()
                .map(|run| (of(run), &run.source))
                .filter(|(value, _)| !value.is_empty())
                .collect();
            let Some(first) = known.first() else { return };
            if let Some(other) = known.iter().find(|(value, _)| *value != first.0) {
                problems.push(format!("{what}: {} in {}, {} in {}", first.0, first.1, other.0, other.1));
            }
        };
        let all: Vec<&RunValues> = self.all().collect();
        differ("different GPUs", &|run| run.gpus.join(", "), &all);
        differ("different numbers of GPUs in use", &|run| run.used_gpus.to_string(), &all);
        for side in [self.before, self.after] {
            differ(
                "different programs on one side",
                &|run| run.program.clone(),
                &side.iter().collect::<Vec<_>>(),
            );
        }
        let count = |run: &RunValues| self.per_unit(run, run.operations);
        let usual = |side: &[RunValues]| median(side.iter().map(count).collect());
        let beyond = |a: f64, b: f64, ratio: f64| a > b * ratio || b > a * ratio;
        let unit = self.unit();
        for side in [self.before, self.after] {
            let usual = usual(side);
            if let Some(run) = side.iter().find(|run| beyond(count(run), usual, MAX_RATIO_WITHIN)) {
                problems.push(format!(
                    "{}: {} GPU operations{unit}, {} in other runs of its side; let all runs do the same work, or mark \
                     steps",
                    run.source,
                    group_digits(count(run) as u64),
                    group_digits(usual as u64)
                ));
            }
        }
        if has_both && problems.is_empty() {
            let (before, after) = (usual(self.before), usual(self.after));
            if beyond(before, after, MAX_RATIO_BETWEEN) {
                problems.push(format!(
                    "{} GPU operations{unit} before, {} after: this is not the same work",
                    group_digits(before as u64),
                    group_digits(after as u64)
                ));
            }
            let kernels = |side: &'a [RunValues]| {
                side.iter().flat_map(|run| run.kernels.keys()).collect::<BTreeSet<_>>()
            };
            let program = |side: &'a [RunValues]| side.first().map(|run| run.program.as_str());
            if program(self.before) != program(self.after)
                && kernels(self.before).is_disjoint(&kernels(self.after))
            {
                problems.push("different programs: no kernel runs on both sides".to_owned());
            }
        }
        problems
    }

    /// Prints a remark if the recordings before and after the change were not made alternately.
    fn remark_order(&self, has_baseline: bool, console: Console) {
        if has_baseline || self.all().any(|run| run.start.is_empty()) {
            return;
        }
        let pairs = self.before.iter().zip(self.after);
        let starts: Vec<&String> = pairs.flat_map(|(before, after)| [&before.start, &after.start]).collect();
        if !starts.is_sorted() {
            console.remark(
                "the runs were not recorded in turns (before, after, before, after) in the order of the files, so a \
                 drift of the machine can count as a change",
            );
        }
    }

    /// Returns the rows to compare. The first row to compare is the total.
    fn rows(&self, console: Console) -> Vec<Row> {
        let row =
            |by, name: String, value: &dyn Fn(&RunValues) -> u64, whole: Option<(&'static str, f64)>| {
                let values =
                    |side: &[RunValues]| side.iter().map(|run| self.per_unit(run, value(run))).collect();
                let values =
                    PairRow { before: values(self.before), after: values(self.after), ..PairRow::default() };
                let (share_of, whole) = whole.map_or(("row", None), |(word, whole)| (word, Some(whole)));
                Row { by, share_of, name, values: PairRow { share_of: whole, ..values } }
            };
        let mut rows = vec![row("total", "GPU work".to_owned(), &|run| run.work_ns, None)];
        if self.all().all(|run| run.steps > 1 && run.step_ns > 0) {
            let mut step = row("step", "mean step".to_owned(), &|run| run.step_ns, None);
            // The duration of a step is already a value per step, so it is not divided by the number of steps.
            let values = |side: &[RunValues]| side.iter().map(|run| run.step_ns as f64).collect();
            (step.values.before, step.values.after) = (values(self.before), values(self.after));
            rows.push(step);
        }
        rows.iter_mut().for_each(|row| row.values.is_main = true);
        let parts: BTreeSet<&str> = self.all().map(|run| run.steady_part.as_str()).collect();
        let times = |run: &RunValues| -> Times {
            if parts.len() == 1 { run.steady.clone() } else { run.whole.clone() }
        };
        for (name, value) in
            [("busy", (|times| times.busy) as fn(&Times) -> u64), ("wall", |times| times.wall)]
        {
            if self.all().all(|run| value(&times(run)) > 0) {
                rows.push(row("time", name.to_owned(), &|run| value(&times(run)), None));
            }
        }
        let work = mean(&rows[0].values.before);
        for (by, sums) in
            [("kernel", (|run| &run.kernels) as fn(&RunValues) -> &Sums), ("stack", |run| &run.stacks)]
        {
            let names: BTreeSet<&String> = self.all().flat_map(|run| sums(run).keys()).collect();
            let count = names.len();
            let mut of_kind: Vec<Row> = names
                .into_iter()
                .map(|name| {
                    let value = |run: &RunValues| sums(run).get(name).copied().unwrap_or(0);
                    // The change of a row is computed from logarithms. If a run lacks a name, the time of that name is
                    // 0, and 0 has no logarithm. Therefore, if a run lacks a name, the change in the row of that name
                    // is given as a share of all GPU work.
                    let whole = self.all().any(|run| value(run) == 0).then_some(("GPU work", work));
                    row(by, name.clone(), &value, whole)
                })
                .collect();
            let size = |row: &Row| mean(&row.values.before).max(mean(&row.values.after));
            of_kind.sort_by(|a, b| size(b).total_cmp(&size(a)).then_with(|| a.name.cmp(&b.name)));
            of_kind.truncate(MAX_COMPARED);
            if count > MAX_COMPARED {
                console.remark(format!(
                    "compared only the {MAX_COMPARED} {by}s with the most time, of {}; the total includes all",
                    group_digits(count as u64)
                ));
            }
            rows.extend(of_kind);
        }
        if let Some(run) = self.all().find(|run| !run.idle_doubt.is_empty()) {
            console.remark(format!(
                "idle time is not compared: in {} it is unknown: {}",
                run.source, run.idle_doubt
            ));
            return rows;
        }
        let wall =
            mean(&self.before.iter().map(|run| self.per_unit(run, times(run).wall)).collect::<Vec<_>>());
        let causes: BTreeSet<String> = self.all().flat_map(|run| times(run).idle.into_keys()).collect();
        for cause in causes {
            let value = |run: &RunValues| times(run).idle.get(&cause).copied().unwrap_or(0);
            if wall > 0.0 && self.all().any(|run| value(run) > 0) {
                rows.push(row("idle", cause.clone(), &value, Some(("wall", wall))));
            }
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(source: &str, change: impl Fn(&mut RunValues)) -> RunValues {
        let mut run = RunValues {
            source: source.to_owned(),
            program: "app".to_owned(),
            gpus: vec!["NVIDIA H100".to_owned()],
            used_gpus: 1,
            steps: 10,
            operations: 1000,
            work_ns: 1_000_000,
            kernels: Sums::from([("gemm".to_owned(), 1_000_000)]),
            ..RunValues::default()
        };
        change(&mut run);
        run
    }

    #[test]
    fn runs_of_other_machines_and_other_work_are_not_comparable() {
        let before = [run("a", |_| {}), run("b", |_| {}), run("c", |_| {})];
        let problems = |change: &dyn Fn(&mut RunValues)| {
            let after = [run("x", change), run("y", change), run("z", change)];
            Sides::new(&before, &after).problems(true)
        };
        assert_eq!(problems(&|_| {}), [""; 0]);
        assert_eq!(problems(&|run| run.gpus.clear()), [""; 0], "traces do not list the machine's GPUs");
        let other_gpu = problems(&|run| run.gpus = vec!["NVIDIA A100".to_owned()]);
        assert_eq!(other_gpu, ["different GPUs: NVIDIA H100 in a, NVIDIA A100 in x"]);
        assert_eq!(problems(&|run| run.used_gpus = 2), ["different numbers of GPUs in use: 1 in a, 2 in x"]);
        // If the change fuses kernels, the number of kernels may be smaller after the change. However, if one side has
        // three times as many kernels as the other side, the two sides do different work. If one run has more steps
        // than another run, the number of kernels must be larger by the same factor.
        assert_eq!(problems(&|run| run.operations = 600), [""; 0]);
        let more = problems(&|run| run.operations = 3000);
        assert_eq!(more, ["1,000 GPU operations per run before, 3,000 after: this is not the same work"]);
        assert_eq!(problems(&|run| (run.operations, run.steps) = (3000, 30)), [""; 0]);
        assert_eq!(problems(&|run| run.program = "app-new".to_owned()), [""; 0]);
        let other_program = problems(&|run| {
            run.program = "other".to_owned();
            run.kernels = Sums::from([("sort".to_owned(), 1_000_000)]);
        });
        assert_eq!(other_program, ["different programs: no kernel runs on both sides"]);
        let mixed = [run("a", |_| {}), run("b", |run| run.program = "other".to_owned())];
        let mixed = Sides::new(&mixed, &before).problems(true);
        assert_eq!(mixed, ["different programs on one side: app in a, other in b"]);
    }

    #[test]
    fn percentages_on_the_command_line_are_above_0() {
        for (text, percent) in
            [("5%", Some(5.0)), (" 0.5 % ", Some(0.5)), ("7", Some(7.0)), ("0%", None), ("5%%", None)]
        {
            assert_eq!(parse_percent(text).ok(), percent, "{text}");
        }
    }
}
