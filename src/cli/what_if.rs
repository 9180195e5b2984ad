//! `gpuflame what-if`: predicts how long the run would take after a change.

use std::collections::BTreeMap;

use clap::Args;

use super::console::{Console, Outcome, usage_error};
use super::edit_flags::{Change, EditFlags};
use super::found_path::FoundPath;
use super::heading::heading;
use super::input::Source;
use super::length_change::{change_row, percent_change};
use super::ranks::RankFlags;
use super::ranks_even::write_even_ranks;
use super::replayed_steps::ReplayedStep;
use super::table_output::{Cell, ReportFlags, Table};
use gpuflame_model::error::Result;
use gpuflame_model::profile::format_nanos;
use gpuflame_model::record::{IdMap, Work};
use gpuflame_offline::analysis::{
    Edit, EditedRun, InstructionKind, PathClass, PathPart, Reliance, Replay, Schedule, What,
};

/// Maximum number of parts of the new critical path that are shown.
const PATH_ROWS: usize = 5;

/// Predict how long the run would take with faster kernels, cheaper launches, fewer waits or more streams.
///
/// No kernel is executed: the run is replayed with other durations, and everything that depends on the durations comes
/// earlier or later. Several changes are replayed together. Work that overlaps is assumed to run at full speed.
/// docs/what-if.md describes the changes.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  gpuflame what-if trace.json.gz --scale 'gemm=0.5'\n  \
    gpuflame what-if trace.json.gz --launch-ns 1000 --no-sync\n  \
    gpuflame what-if run.gfr --graphs --step 3\n  \
    gpuflame what-if run.gfr --gpu-speed 2 --overlap-comm\n  \
    gpuflame what-if rank-*.json.gz --ranks-even")]
pub(super) struct WhatIf {
    /// Recording or trace (`-`: standard input); with `--ranks-even`, one per rank, or folders of such files.
    #[arg(required = true)]
    inputs: Vec<Source>,
    #[command(flatten)]
    edits: EditFlags,
    /// Assume that all ranks of a job take equally long between collectives. `--ranks-even` needs the files of all
    /// ranks, and no other change.
    #[arg(long, help_heading = "Changes (replayed together)")]
    ranks_even: bool,
    #[command(flatten)]
    ranks: RankFlags,
    /// Number of steps to show; 0: all.
    #[arg(short, long, default_value_t = 20)]
    number: usize,
    #[command(flatten)]
    pub(super) report: ReportFlags,
}

impl WhatIf {
    pub(super) fn run(&self, console: Console) -> Result<Outcome> {
        if self.ranks_even {
            if !self.edits.is_empty() {
                let what =
                    "--ranks-even compares ranks and replays none of them; give it without other changes";
                return Err(usage_error(what.to_owned()));
            }
            let most = if self.number == 0 { usize::MAX } else { self.number };
            return write_even_ranks(&self.inputs, self.ranks, most, &self.report, console);
        }
        let [input] = &self.inputs[..] else {
            let what =
                "one file is replayed at a time; several files are the ranks of a job, for --ranks-even";
            return Err(usage_error(what.to_owned()));
        };
        if self.edits.is_empty() {
            let what = "no change is named; for example --scale 'gemm=0.5', --launch-ns 1000, --no-sync or --graphs \
                        (`gpuflame what-if --help` lists all)";
            return Err(usage_error(what.to_owned()));
        }
        let found = FoundPath::read_to_replay(input, console)?;
        let replay = Replay::new(&found.path, &found.list, &found.explained.profile);
        let changes = self.edits.resolve(input, &found)?;
        let edits: Vec<Edit> = changes.iter().map(|change| change.edit.clone()).collect();
        let steps = ReplayedStep::find(&found, &found.explained.facts.steps.spans());
        let before = Lengths::recorded(&found, &steps);
        let edited = replay.edit(&edits);
        let after = Lengths::of(&steps, &edited.schedule);
        let path = PathSums::of(&found, &replay, &edited);
        let mut tables = vec![total_table(&before, &after)];
        tables.extend(self.step_table(&before, &after));
        tables.push(change_table(&replay, &changes, &before, &after));
        tables.push(path_table(&found, &path));
        tables.push(assumption_table(&found, &replay, &changes, (&edits, &edited)));
        let lines = [heading(input, &found.explained.profile), answer(&before, &after, &path)];
        self.report.write(console, &lines, &tables)?;
        Ok(Outcome::Clean)
    }

    /// Returns the table with the durations of the steps before and after the changes.
    fn step_table(&self, before: &Lengths, after: &Lengths) -> Option<Table> {
        let most = if self.number == 0 { usize::MAX } else { self.number };
        let mut table =
            Table::new("steps", &["step", "before_ns", "after_ns", "change_ns", "change_percent"]);
        table.set_all_rows(before.steps.len());
        for (number, steps) in (1..).zip(before.steps.iter().zip(&after.steps)).take(most) {
            let (Some(old), Some(new)) = steps else { continue };
            let [old, new, change, share] = change_row(*old, *new);
            table.add_row([Cell::Id(number), old, new, change, share]);
        }
        (!before.steps.is_empty()).then_some(table)
    }
}

/// Durations of the run and of its steps in a schedule, in ns.
struct Lengths {
    /// Duration of the whole run.
    whole: u64,
    /// End of the run, in ns since 1970.
    end: u64,
    /// Durations of the steps; `None` if the run has no calls.
    steps: Vec<Option<u64>>,
}

impl Lengths {
    fn of(steps: &[ReplayedStep], schedule: &Schedule) -> Self {
        let steps = steps.iter().map(|step| step.duration_in(schedule)).collect();
        Self::new(schedule.window(), steps)
    }

    /// Returns the durations in the recorded run. A replay without changes would have the same durations as the
    /// recorded run.
    fn recorded(found: &FoundPath, steps: &[ReplayedStep]) -> Self {
        Self::new(found.path.window(), steps.iter().map(|step| Some(step.recorded())).collect())
    }

    fn new((start, end): (u64, u64), steps: Vec<Option<u64>>) -> Self {
        Self { whole: end - start, end, steps }
    }

    /// Returns the median duration of a step in ns; `None` if the run has fewer than two steps.
    fn median_step(&self) -> Option<u64> {
        let mut all: Vec<u64> = self.steps.iter().copied().flatten().collect();
        all.sort_unstable();
        all.get(all.len() / 2).copied().filter(|_| self.steps.len() > 1)
    }
}

/// Key of the name of a part of the path. Parts with equal keys have equal names.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum PartKey {
    Work(InstructionKind, Work),
    Instruction(u32),
    /// A CUDA call, identified by the id of the called API function.
    Call(Option<u32>),
    /// The time between two CUDA calls, identified by the ids of both API functions.
    Between(Option<u32>, Option<u32>),
    Nothing,
}

impl PartKey {
    fn new(found: &FoundPath, replay: &Replay<'_>, part: &PathPart) -> Self {
        match part.what {
            What::Instruction(number) => match found.list.activity(number) {
                Some(activity) => Self::Work(found.list.kind(number), activity.work()),
                None => Self::Instruction(number),
            },
            What::Call(at) => Self::Call(replay.function(at)),
            What::Between(after, before) | What::Stack { after, before, .. } => {
                Self::Between(replay.function(after), replay.function(before))
            }
            What::Nothing => Self::Nothing,
        }
    }
}

/// Sums of the parts of the critical path after the changes.
struct PathSums {
    /// Time in ns, number of parts, and last part, keyed by class and name key.
    by_key: IdMap<(PathClass, PartKey), (u64, u64, PathPart)>,
}

impl PathSums {
    fn of(found: &FoundPath, replay: &Replay<'_>, edited: &EditedRun) -> Self {
        let mut by_key = IdMap::default();
        replay.each_path_part(edited, &mut |part| {
            let key = (part.class, PartKey::new(found, replay, part));
            let sum = by_key.entry(key).or_insert((0, 0, *part));
            *sum = (sum.0 + (part.end - part.start), sum.1 + 1, *part);
        });
        Self { by_key }
    }

    fn nanos(&self) -> u64 {
        self.by_key.values().map(|(nanos, ..)| nanos).sum()
    }
}

fn total_table(before: &Lengths, after: &Lengths) -> Table {
    let mut table = Table::new("total", &["before_ns", "after_ns", "change_ns", "change_percent"]);
    table.add_row(change_row(before.whole, after.whole));
    table
}

/// Returns the table with the effect that each change has without the other changes. The table is needed because the
/// savings of several changes do not add up.
fn change_table(replay: &Replay<'_>, changes: &[Change], before: &Lengths, after: &Lengths) -> Table {
    let mut table = Table::new("changes", &["alone_ns", "changed", "change"]);
    for change in changes {
        let alone = match changes.len() {
            1 => after.end,
            _ => replay.edited(std::slice::from_ref(&change.edit)).window().1,
        };
        table.add_row([
            Cell::Change(alone as i64 - before.end as i64),
            change.count.map_or(Cell::Nothing, |count| Cell::Count(count as u64)),
            Cell::Text(change.words.clone()),
        ]);
    }
    table
}

/// Returns the words that describe a class of the path's parts in the verb's answer.
fn bound_words(class: PathClass) -> &'static str {
    match class {
        PathClass::Kernel | PathClass::Graph => "kernels",
        PathClass::Memory => "copies",
        PathClass::HostFunction => "host functions",
        PathClass::Call | PathClass::Return => "CUDA calls",
        PathClass::Host | PathClass::HandOff => "host time between calls",
        PathClass::Launch | PathClass::Gap => "launch latency and gaps",
        PathClass::Unexplained(_) => "time that the records do not explain",
    }
}

/// Returns the kind of time with the largest share of a path, and this share in percent.
fn bound(path: &PathSums) -> Option<(&'static str, f64)> {
    let mut sums: BTreeMap<&'static str, u64> = BTreeMap::new();
    for ((class, _), (nanos, ..)) in &path.by_key {
        *sums.entry(bound_words(*class)).or_default() += nanos;
    }
    let total = path.nanos();
    let (word, nanos) = sums.into_iter().max_by_key(|(word, nanos)| (*nanos, std::cmp::Reverse(*word)))?;
    Some((word, 100.0 * nanos as f64 / total as f64))
}

fn answer(before: &Lengths, after: &Lengths, path: &PathSums) -> String {
    let (old, new) = (before.whole, after.whole);
    let bound = bound(path)
        .map_or_else(String::new, |(word, share)| format!("; the new critical path is {share:.0} % {word}"));
    let step = match (before.median_step(), after.median_step()) {
        (Some(old), Some(new)) => {
            format!(", median step {} -> {}", format_nanos(old), format_nanos(new))
        }
        _ => String::new(),
    };
    format!(
        "{} -> {} ({:+.1} %){step}{bound}",
        format_nanos(old),
        format_nanos(new),
        percent_change(old, new)
    )
}

/// Returns the table with the largest parts of the critical path after the changes.
fn path_table(found: &FoundPath, path: &PathSums) -> Table {
    let names = found.names();
    let mut sums: BTreeMap<(PathClass, String), (u64, u64)> = BTreeMap::new();
    for ((class, _), (nanos, count, part)) in &path.by_key {
        let sum = sums.entry((*class, names.name(part).into_owned())).or_default();
        *sum = (sum.0 + nanos, sum.1 + count);
    }
    let total = path.nanos();
    let mut rows: Vec<_> = sums.into_iter().collect();
    rows.sort_by(|a, b| b.1.0.cmp(&a.1.0).then_with(|| a.0.cmp(&b.0)));
    let mut table = Table::new("new_path", &["time_ns", "share_percent", "parts", "class", "name"]);
    for ((class, name), (nanos, count)) in rows.into_iter().take(PATH_ROWS) {
        let name = match class {
            PathClass::Kernel | PathClass::Launch | PathClass::Gap => Cell::Kernels(vec![name]),
            _ => Cell::Text(name),
        };
        table.add_row([
            Cell::Nanos(nanos),
            Cell::share(nanos, total),
            Cell::Count(count),
            class.word().into(),
            name,
        ]);
    }
    table
}

/// Returns the table with the assumptions of the prediction, including the rules that replace missing records.
fn assumption_table(
    found: &FoundPath,
    replay: &Replay<'_>,
    changes: &[Change],
    (edits, edited): (&[Edit], &EditedRun),
) -> Table {
    let mut table = Table::new("assumptions", &["rule", "uses", "assumption"]);
    let mut known = Vec::new();
    table.add_row(["full_speed".into(), Cell::Nothing, "work that overlaps runs at full speed".into()]);
    for change in changes {
        if !known.contains(&change.assumption) {
            known.push(change.assumption);
            table.add_row(["change".into(), Cell::Nothing, change.assumption.into()]);
        }
    }
    let mut reliances = replay.reliances(&found.explained.profile, edits, edited);
    if let Some(linked) = &found.explained.facts.linked {
        // A trace also contains calls that do not submit GPU work, such as launches that were captured into a CUDA
        // graph.
        let more = [
            (Reliance::HostFunctions, linked.host_function_calls),
            (Reliance::Attributes, linked.attribute_launches),
        ];
        // An edge of a CUDA graph does not show whether the edge was captured from a programmatic launch.
        if linked.captured_programmatic_launches > 0 && replay.unclear_graph_edges() > 0 {
            *reliances.entry(Reliance::Programmatic).or_default() += replay.unclear_graph_edges();
        }
        for (what, count) in more.into_iter().filter(|(_, count)| *count > 0) {
            reliances.insert(what, count);
        }
    }
    for (what, count) in reliances {
        table.add_row([what.word().into(), Cell::Count(count), reliance_words(what).into()]);
    }
    table
}

/// Returns the description of a rule that replaces a missing record.
pub(super) fn reliance_words(what: Reliance) -> &'static str {
    match what {
        Reliance::NoWaits => "waits are not recorded, so none gets shorter",
        Reliance::GraphEdges => "a node of a graph waits for the one that ended last before it",
        Reliance::Programmatic => "programmatic launches overlap by as much as in the run",
        Reliance::DefaultStream => "default streams wait for the rest of their context, and it for them",
        Reliance::HandOff => "threads wait for each other as in the run",
        Reliance::LockOrder => "threads take locks in the same order as in the run",
        Reliance::UnknownStream => {
            "no work waits where a default stream of an unknown GPU waits for an event"
        }
        Reliance::CallOrder => "calls of several threads come in the same order as in the run",
        Reliance::UnknownWait => "a call waits for the work that ended last in it",
        Reliance::UnknownOrder => "work waits for work that ended just before it",
        Reliance::UnknownGap => {
            "no work began right after other work of its stream, so the gap between them is taken as 0"
        }
        Reliance::HostFunctions => "host functions of streams take no time",
        Reliance::Attributes => "launches with attributes are programmatic if they overlapped",
        Reliance::NoLaunch => "work without a launch begins as early as other work allows",
        Reliance::NoTimes => "work without times is left out",
    }
}
