//! `gpuflame diff`: compares the duration of two runs, in total and per kernel, stack and module. `gpuflame diff` also
//! tests whether a change is larger than chance would explain. `gate.rs` compares several runs before a change with
//! several runs after it.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use clap::Args;

use super::console::{Console, Outcome, usage_error};
use super::explain::{Explained, explain};
use super::gate::{Gate, parse_percent};
use super::heading::heading;
use super::input::Source;
use super::name_flags::NameFlags;
use super::stream_times::{clamped_table, remark_impossible};
use super::table_output::{Cell, ReportFlags, ReportFormat, Table};
use gpuflame_export::{clean_frame, folded_names, work_name};
use gpuflame_model::error::Result;
use gpuflame_model::profile::views::{IDLE, idle_word};
use gpuflame_model::profile::{DeviceTime, DurationSpread, Profile, SampleSite, saturating_sum};
use gpuflame_model::record::Work;
use gpuflame_offline::analysis::{
    DurationChange, Durations, StreamOrder, WorkSpans, check_stream_order, compare_durations,
};
use gpuflame_offline::run::ReadOptions;

/// Compare two runs, or several runs before a change with several runs after it.
///
/// Stacks are matched by name, after numbers that differ in every run are folded. The table `run` has the busy time of
/// the GPUs and their idle time by cause. The table `run` also has these times per step if both runs have several
/// steps. The table `matched` has the share of GPU time whose kernel, stack or module occurs in both runs. The table
/// `modules` has sums by `nn.Module`, which match even if the kernels differ. Text tables leave out rows that did not
/// change by more than chance. JSON and CSV have all rows.
///
/// The column `sure` states whether the average duration of an activity changed by more than chance (Welch's t-test,
/// two-sided, p < 0.001): `yes` or `no`; `too few` if either side has fewer than five durations; `new` or `gone` if one
/// side has no durations. The test assumes independent durations. If the clock was slower during one whole run, every
/// row has `yes`, so record each variant twice. Totals also change with the number of activities, which the test
/// ignores.
///
/// With --new, whole runs are compared, and the answer is a verdict with its own exit code: `same` 0, `faster` 10,
/// `slower` 11, `inconclusive` 12 (with the number of pairs that would be enough), `invalid` 13 (the runs cannot be
/// compared, with the reason), and 14 for `slower` by less than --fail-above. The verdict applies to the GPU work and
/// the mean step. Rows by kernel, stack and idle cause have their own verdicts. If the runs are equal, any row is
/// wrongly `slower` or `faster` with a probability of at most 1 %. Record the runs in turns (before, after, before,
/// after), and give the files in this order, so that a steady drift is removed. 7 runs per side find a change of 3 % if
/// runs differ by 1 %.
#[derive(Debug, Args)]
#[command(override_usage = "gpuflame diff [OPTIONS] <BEFORE> <AFTER>\n       \
    gpuflame diff [OPTIONS] <BASE>... --new <NEW>...")]
#[command(after_help = "Examples:\n  gpuflame diff before.gfr after.gfr\n  \
    gpuflame diff before.json.gz after.json.gz -n 0 --format csv -o diff.csv\n  \
    gpuflame diff base*.gfr --new new*.gfr --fail-above 5%\n  \
    gpuflame diff base*.gfr --save-baseline main.json\n  \
    gpuflame diff main.json --new new*.gfr --format markdown -o comment.md")]
pub(super) struct Diff {
    /// Run before the change.
    before: Source,
    /// Run after the change.
    #[arg(required_unless_present_any = ["new", "save_baseline"])]
    after: Option<Source>,
    /// More runs before the change, or baseline files; needs --new.
    #[arg(hide = true)]
    more: Vec<Source>,
    /// Runs after the change. All other files are runs before the change, or baseline files.
    #[arg(long, value_name = "NEW", num_args = 1..)]
    new: Vec<Source>,
    /// Change above which a comparison of several runs fails the gate (exit code 11). Changes below a quarter of this
    /// value are never called slower or faster.
    #[arg(long, value_name = "PERCENT", default_value = "5%", value_parser = parse_percent)]
    fail_above: f64,
    /// Write the values of the runs before the change to a small file, which can later replace their recordings.
    #[arg(long, value_name = "FILE")]
    save_baseline: Option<PathBuf>,
    /// Exit with 0 if the gate passes: same, faster, or slower by less than --fail-above.
    #[arg(long, requires = "new")]
    zero_on_pass: bool,
    /// Maximum number of rows per table; 0: all.
    #[arg(short, long, default_value_t = 10)]
    number: usize,
    #[command(flatten)]
    names: NameFlags,
    #[command(flatten)]
    pub(super) report: ReportFlags,
}

const COLUMNS: [&str; 9] = [
    "change_ns",
    "change_percent",
    "before_ns",
    "after_ns",
    "before_count",
    "after_count",
    "average_percent",
    "sure",
    "name",
];

/// Prefix of the frames with which torch.profiler marks modules in a stack.
const MODULE_PREFIX: &str = "nn.Module: ";

impl Diff {
    pub(super) fn run(&self, console: Console) -> Result<Outcome> {
        if !self.new.is_empty() || self.save_baseline.is_some() {
            return self.gate().run(console);
        }
        let Some(after) = self.after.as_ref().filter(|_| self.more.is_empty()) else {
            return Err(usage_error(
                "`diff` compares two runs; `gpuflame diff BASE... --new NEW...` compares several runs before a change \
                 with several after it, and `gpuflame merge-ranks FILES` merges the ranks of a job",
            ));
        };
        self.compare_two(after, console)
    }

    fn gate(&self) -> Gate<'_> {
        Gate {
            base: std::iter::once(&self.before).chain(&self.after).chain(&self.more).collect(),
            new: &self.new,
            fail_above: self.fail_above,
            save_baseline: self.save_baseline.as_deref(),
            zero_on_pass: self.zero_on_pass,
            number: self.number,
            names: &self.names,
            report: &self.report,
        }
    }

    fn compare_two(&self, after_source: &Source, console: Console) -> Result<Outcome> {
        let before = ComparedRun::read(&self.before, &self.names, console)?;
        let after = ComparedRun::read(after_source, &self.names, console)?;
        let mut total = Table::new(
            "total",
            &["change_ns", "change_percent", "before_ns", "after_ns", "before_count", "after_count"],
        );
        let (a, b) = (before.total(), after.total());
        let [change, percent, nanos, later_nanos, count, later_count, ..] = cells("", a, b);
        total.add_row([change, percent, nanos, later_nanos, count, later_count]);
        let mut tables = vec![total, time_table(&before, &after)];
        let mut matched = Table::new("matched", &["before_percent", "after_percent", "by"]);
        let parts = [
            ("kernels", &before.kernels, &after.kernels),
            ("stacks", &before.stacks, &after.stacks),
            ("modules", &before.modules, &after.modules),
        ];
        let parts = parts.into_iter().filter(|(_, before, after)| !before.is_empty() || !after.is_empty());
        for (name, before, after) in parts.clone() {
            matched.add_row([share_in(before, after, a), share_in(after, before, b), name.into()]);
        }
        tables.push(matched);
        let mut hidden = 0;
        for (name, before, after) in parts {
            tables.push(self.comparison_table(name, before, after, &mut hidden));
        }
        tables.extend(before.impossible_table("impossible_durations_before"));
        tables.extend(after.impossible_table("impossible_durations_after"));
        let headings = [("before", &self.before, &before), ("after", after_source, &after)]
            .map(|(word, source, run)| format!("{word}: {}", heading(source, &run.profile)));
        self.report.write(console, &headings, &tables)?;
        if hidden > 0 {
            console.remark(format!(
                "left out {hidden} rows that did not change by more than chance; JSON and CSV have them"
            ));
        }
        Ok(Outcome::Clean)
    }

    /// Builds a table of changes, sorted by the absolute value of the change in descending order.
    fn comparison_table(&self, name: &'static str, before: &Sums, after: &Sums, hidden: &mut u64) -> Table {
        let mut names: Vec<&String> = before.keys().chain(after.keys()).collect();
        names.sort();
        names.dedup();
        let get = |sums: &Sums, name: &String| sums.get(name).copied().unwrap_or_default();
        let mut rows: Vec<_> =
            names.into_iter().map(|name| (name, get(before, name), get(after, name))).collect();
        if self.report.format == ReportFormat::Text {
            let all = rows.len();
            rows.retain(|(_, a, b)| is_changed(*a, *b));
            *hidden += (all - rows.len()) as u64;
        }
        rows.sort_by_key(|(_, a, b)| std::cmp::Reverse(a.nanos.abs_diff(b.nanos)));
        let mut table = Table::new(name, &COLUMNS);
        let most = if self.number == 0 { usize::MAX } else { self.number };
        let all = rows.len();
        for (name, a, b) in rows.into_iter().take(most) {
            table.add_row(cells(name, a, b));
        }
        table.set_all_rows(all);
        table
    }
}

/// Whether the row of a kernel, stack or module is shown. Returns true if the counts of the two runs differ, or if
/// their durations differ by more than chance would explain.
fn is_changed(a: Durations, b: Durations) -> bool {
    a.count != b.count || (a.nanos != b.nanos && compare_durations(a, b) != DurationChange::Unsure)
}

/// Returns the share of `all` that belongs to names that occur in both `sums` and `other`.
fn share_in(sums: &Sums, other: &Sums, all: Durations) -> Cell {
    let both = sums.iter().filter(|(name, _)| other.contains_key(*name));
    Cell::share(saturating_sum(both.map(|(_, one)| one.nanos)), all.nanos)
}

/// Returns the table with the GPUs' busy and idle time in both runs, in total and per step.
fn time_table(before: &ComparedRun, after: &ComparedRun) -> Table {
    let mut table = Table::new("run", &["change_ns", "change_percent", "before_ns", "after_ns", "what"]);
    let mut whats: Vec<&str> = before.times.iter().chain(&after.times).map(|(what, _)| *what).collect();
    let mut seen = std::collections::BTreeSet::new();
    whats.retain(|what| seen.insert(*what));
    // A cause of idle time that did not occur has no row in `times`. The time of a cause without a row is zero, unless
    // idle time is unknown in that run.
    let get = |run: &ComparedRun, what: &str| {
        let find = |what: &str| run.times.iter().find(|(known, _)| *known == what).map(|(_, nanos)| *nanos);
        find(what).or_else(|| find("idle").map(|_| 0))
    };
    let mut row = |what: String, a: Option<u64>, b: Option<u64>| {
        let nanos = |value: Option<u64>| value.map_or(Cell::Nothing, Cell::Nanos);
        let (change, percent) = match (a, b) {
            (Some(a), Some(b)) => (difference(a, b), change_percent(a as f64, b as f64)),
            _ => (Cell::Nothing, Cell::Nothing),
        };
        table.add_row([change, percent, nanos(a), nanos(b), Cell::Text(what)]);
    };
    for what in &whats {
        row((*what).to_owned(), get(before, what), get(after, what));
    }
    if before.has_impossible_durations() || after.has_impossible_durations() {
        let clamped = "GPU work, impossible durations clamped".to_owned();
        row(clamped, Some(before.order.clamped_ns), Some(after.order.clamped_ns));
        let clamped = "busy, impossible durations clamped".to_owned();
        row(clamped, Some(before.order.clamped_busy_ns), Some(after.order.clamped_busy_ns));
    }
    if before.steps > 1 && after.steps > 1 {
        for what in &whats {
            let per_step = |run: &ComparedRun| get(run, what).map(|nanos| nanos / run.steps);
            row(format!("{what} of a step"), per_step(before), per_step(after));
        }
    }
    table
}

fn difference(a: u64, b: u64) -> Cell {
    Cell::Change(i64::try_from(i128::from(b) - i128::from(a)).unwrap_or(0))
}

fn change_percent(from: f64, to: f64) -> Cell {
    if from > 0.0 { Cell::Share(100.0 * (to - from) / from) } else { Cell::Nothing }
}

fn cells(name: &str, a: Durations, b: Durations) -> [Cell; 9] {
    [
        difference(a.nanos, b.nanos),
        change_percent(a.nanos as f64, b.nanos as f64),
        Cell::Nanos(a.nanos),
        Cell::Nanos(b.nanos),
        Cell::Count(a.count),
        Cell::Count(b.count),
        if b.count > 0 { change_percent(a.mean(), b.mean()) } else { Cell::Nothing },
        compare_durations(a, b).word().into(),
        name.into(),
    ]
}

type Sums = BTreeMap<String, Durations>;

/// The values of a run that `diff` compares.
struct ComparedRun {
    kernels: Sums,
    stacks: Sums,
    /// Sums per module that occurs in a stack; empty if no stack contains a module.
    modules: Sums,
    /// Breakdown of the run's GPU time in ns, as pairs of a name and a time.
    times: Vec<(&'static str, u64)>,
    /// Number of steps in the run.
    steps: u64,
    /// Result of the check whether activities on the same stream ran one after another.
    order: StreamOrder,
    profile: Profile,
}

impl ComparedRun {
    fn read(source: &Source, flags: &NameFlags, console: Console) -> gpuflame_model::error::Result<Self> {
        let mut spans = WorkSpans::bounded(usize::MAX);
        let options = ReadOptions { has_squares: true, ..flags.read_options() };
        let Explained { profile, facts, .. } = explain(source, &options, console, &mut spans)?;
        facts.require_work(source)?;
        // Only the recording of a process that exited contains durations by stack and kernel. A checkpoint does not
        // contain durations by stack and kernel.
        let has_nothing = facts.is_finished && profile.works().is_empty();
        if profile.spreads().is_empty() && !has_nothing {
            facts.require_rows(source)?;
        }
        let order = check_stream_order(&profile, &mut spans, facts.linked.as_ref());
        remark_impossible(source, &profile, &order, console);
        let (mut kernels, mut stacks, mut modules) = (Sums::new(), Sums::new(), Sums::new());
        let mut known: HashMap<SampleSite, (String, Option<String>)> = HashMap::new();
        let mut add = |place: SampleSite, work: Work, durations: Durations| {
            let (stack, module) = known.entry(place).or_insert_with(|| {
                let frames = folded_names(&profile, place, flags.names());
                let frames: Vec<_> = frames.iter().map(|name| clean_frame(name)).collect();
                let modules: Vec<_> =
                    frames.iter().filter_map(|name| name.strip_prefix(MODULE_PREFIX)).collect();
                (frames.join(";"), (!modules.is_empty()).then(|| modules.join(";")))
            });
            stacks.entry(stack.clone()).or_default().add_all(durations);
            if let Some(module) = module {
                modules.entry(module.clone()).or_default().add_all(durations);
            }
            kernels.entry(work_name(&profile, work).into_owned()).or_default().add_all(durations);
        };
        for spread in profile.spreads() {
            let DurationSpread { site, work, count, nanos, squares, .. } = *spread;
            add(site, work, Durations::from_sums(count, nanos, squares));
        }
        let times = time_breakdown(&profile);
        let steps = profile.step_count();
        Ok(Self { kernels, stacks, modules, times, steps, order, profile })
    }

    fn impossible_table(&self, name: &'static str) -> Option<Table> {
        clamped_table(name, &self.profile, &self.order)
    }

    fn has_impossible_durations(&self) -> bool {
        !self.order.impossible.is_empty()
    }

    fn total(&self) -> Durations {
        self.kernels.values().fold(Durations::default(), |sum, one| sum.and(*one))
    }
}

/// Returns the breakdown of the GPUs' total time, in ns. The breakdown includes idle time per cause if idle time is
/// known.
fn time_breakdown(profile: &Profile) -> Vec<(&'static str, u64)> {
    let sum = |of: fn(&DeviceTime) -> u64| saturating_sum(profile.times().iter().map(of));
    let mut times = vec![("wall", sum(|time| time.window)), ("busy", sum(|time| time.busy))];
    if profile.idle_doubt().is_some() {
        return times;
    }
    times.push(("idle", sum(|time| time.idle)));
    let mut causes: BTreeMap<&str, u64> = BTreeMap::new();
    for sample in profile.samples(&IDLE) {
        let cause = causes.entry(idle_word(sample)).or_default();
        *cause = cause.saturating_add(sample.amount());
    }
    let mut causes: Vec<_> = causes.into_iter().filter(|(_, nanos)| *nanos > 0).collect();
    causes.sort_by_key(|(_, nanos)| std::cmp::Reverse(*nanos));
    times.extend(causes.into_iter().map(|(cause, nanos)| (idle_what(cause), nanos)));
    times
}

fn idle_what(cause: &str) -> &'static str {
    match cause {
        "host_late" => "idle: host late",
        "launch_latency" => "idle: launch latency",
        "dependency" => "idle: dependency",
        "before_the_first" => "idle: before the first work",
        "after_the_last" => "idle: after the last work",
        "start_up" => "idle: start-up",
        "shutdown" => "idle: shutdown",
        _ => "idle: unknown",
    }
}
