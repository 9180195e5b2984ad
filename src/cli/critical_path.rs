//! `gpuflame critical-path`: the chain of calls, waits and GPU work that decided when the run ended.

use std::collections::{BTreeMap, HashMap};

use clap::Args;

use super::console::{Console, Outcome, usage_error};
use super::critical_path_hta::{HtaPathFlags, write_hta_path};
use super::explain::{Explained, explain_opened};
use super::heading::heading;
use super::input::Source;
use super::output::Target;
use super::path_names::{PathNames, why_words};
use super::table_output::{Cell, ReportFlags, Table, group_digits};
use super::times::parse_micros;
use gpuflame_model::error::{Error, ErrorKind, Result};
use gpuflame_model::profile::{Profile, format_nanos};
use gpuflame_offline::analysis::{
    Contradiction, CriticalPath, InstructionDetail, InstructionKind, InstructionList, InstructionRows,
    MomentKind, PathClass, PathPart,
};
use gpuflame_offline::formats::{FoldedStacks, write_lines_folded, write_lines_svg};
use gpuflame_offline::run::ReadOptions;

/// Find the critical path: the calls, waits and GPU work that decided when the run ended.
///
/// The parts of the path add up to the window, to the nanosecond. docs/critical-path.md states the rules.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  gpuflame critical-path trace.json.gz\n  \
    gpuflame critical-path run.gfr --step 3 --list\n  \
    gpuflame critical-path run.gfr --picture path.svg\n  \
    gpuflame critical-path trace.json.gz --as-hta --instance 1")]
pub(super) struct CriticalPathVerb {
    /// Recording or trace (`-`: standard input).
    input: Source,
    /// Maximum number of rows per table; 0: all.
    #[arg(short, long, default_value_t = 20)]
    number: usize,
    /// Show only the part of the path in this step, counted from 1.
    #[arg(long, value_name = "N", conflicts_with_all = ["from", "to"])]
    step: Option<usize>,
    /// Show only the part of the path from this moment on, counted from the start of the path: `10ms`, `1.5s` or `200us`.
    /// Without a unit: microseconds.
    #[arg(long, value_name = "TIME", value_parser = parse_micros)]
    from: Option<i64>,
    /// Show only the part of the path before this moment.
    #[arg(long, value_name = "TIME", value_parser = parse_micros)]
    to: Option<i64>,
    /// List the parts of the path by time, each with its reason.
    #[arg(long)]
    list: bool,
    /// Draw the path as a flame graph (`.svg`), or write folded stacks (`.folded`), besides the tables.
    #[arg(long, value_name = "FILE")]
    picture: Option<Target>,
    /// Show the path by the rules of Holistic Trace Analysis instead.
    #[arg(long, conflicts_with_all = ["step", "from", "to", "list", "picture"])]
    as_hta: bool,
    #[command(flatten)]
    hta: HtaPathFlags,
    #[command(flatten)]
    pub(super) report: ReportFlags,
}

/// The run, its instructions and its critical path.
pub(super) struct FoundPath {
    pub(super) explained: Explained,
    pub(super) list: InstructionList,
    pub(super) path: CriticalPath,
}

impl FoundPath {
    /// Reads `input` and finds its critical path.
    ///
    /// # Errors
    /// `Format`, if the input has no rows or its records contradict each other.
    pub(super) fn read(input: &Source, console: Console) -> Result<Self> {
        let mut rows = InstructionRows::default();
        // Every part needs its stack, so no stack is dropped to save memory.
        let options = ReadOptions::default();
        let mut explained = explain_opened(input, input.open()?, &options, console, &mut rows)?;
        explained.facts.give_source_ids(rows.joined_mut());
        explained.facts.require_work(input)?;
        explained.facts.require_rows(input)?;
        let list = InstructionList::new(rows, &explained.profile);
        let path = match CriticalPath::new(&list, &explained.profile) {
            Ok(Some(path)) => path,
            Ok(None) => {
                let what = "it has no times, so no path can be found; `gpuflame info` shows its contents";
                return Err(Error::new(ErrorKind::Format, format!("{input}: {what}")));
            }
            Err(worst) => return Err(contradiction(input, &list, &explained.profile, &worst)),
        };
        Ok(Self { explained, list, path })
    }

    pub(super) fn names(&self) -> PathNames<'_> {
        PathNames { path: &self.path, list: &self.list, profile: &self.explained.profile }
    }
}

/// Returns the error for records that contradict each other. It names both.
fn contradiction(input: &Source, list: &InstructionList, profile: &Profile, worst: &Contradiction) -> Error {
    let name = |number: u32| {
        let instruction = list.get(number);
        let name = match instruction.detail {
            InstructionDetail::Work { activity, .. } => gpuflame_export::work_name(profile, activity.work()),
            _ => instruction.kind.word().into(),
        };
        format!("{name} (correlation id {})", instruction.correlation.0)
    };
    let what = format!(
        "the records contradict each other, so there is no critical path: {} is {} before {}, for which it had to wait \
         ({}); `gpuflame check` lists what is wrong with the times",
        name(worst.effect),
        format_nanos(worst.nanos),
        name(worst.cause),
        worst.kind.word()
    );
    Error::new(ErrorKind::Format, format!("{input}: {what}"))
}

impl CriticalPathVerb {
    pub(super) fn run(&self, console: Console) -> Result<Outcome> {
        if self.as_hta {
            return write_hta_path(&self.input, &self.hta, &self.report, console);
        }
        let found = FoundPath::read(&self.input, console)?;
        let window = self.window(&found)?;
        let parts = clipped(found.path.parts(), window);
        let names = found.names();
        if let Some(target) = &self.picture {
            draw(names, &parts, target, console)?;
        }
        let total = window.1 - window.0;
        let mut tables =
            vec![class_table(&parts, total), self.name_table(names, &parts, total), self.slack_table(&found)];
        if self.list {
            tables.push(self.part_table(names, &parts, found.path.window().0));
        }
        print_remarks(&self.input, &found, console);
        let lines = [heading(&self.input, &found.explained.profile), answer(&parts, total)];
        self.report.write(console, &lines, &tables)?;
        Ok(Outcome::Clean)
    }

    /// Returns start and end of the shown time.
    fn window(&self, found: &FoundPath) -> Result<(u64, u64)> {
        let whole = found.path.window();
        if let Some(step) = self.step {
            let spans = found.explained.facts.steps.spans();
            let span = step.checked_sub(1).and_then(|at| spans.get(at)).copied();
            let cut = span.map(|(from, to)| (from.clamp(whole.0, whole.1), to.clamp(whole.0, whole.1)));
            return cut.filter(|(from, to)| from < to).ok_or_else(|| match spans.len() {
                0 => self.error("it has no steps; name a part by --from and --to"),
                count => self.error(&format!("step {step} has no part of the path; there are {count} steps")),
            });
        }
        let moment = |offset: Option<i64>, default| {
            offset.map_or(default, |offset| whole.0.saturating_add(offset.unsigned_abs()).min(whole.1))
        };
        let (from, to) = (moment(self.from, whole.0), moment(self.to, whole.1));
        if from >= to {
            let length = format_nanos(whole.1 - whole.0);
            return Err(usage_error(format!(
                "no time is left between --from and --to; the path is {length} long"
            )));
        }
        Ok((from, to))
    }

    fn error(&self, what: &str) -> Error {
        Error::new(ErrorKind::Format, format!("{}: {what}", self.input))
    }

    fn most(&self) -> usize {
        if self.number == 0 { usize::MAX } else { self.number }
    }

    /// Time on the path by class and name.
    fn name_table(&self, names: PathNames<'_>, parts: &[PathPart], total: u64) -> Table {
        let mut sums: BTreeMap<(PathClass, String, Option<String>), (u64, u64)> = BTreeMap::new();
        let mut functions: HashMap<_, Option<String>> = HashMap::new();
        for part in parts {
            let site = names.site(part);
            let function = functions.entry(site).or_insert_with(|| names.function(part)).clone();
            let sum = sums.entry((part.class, names.name(part).into_owned(), function)).or_default();
            *sum = (sum.0 + (part.end - part.start), sum.1 + 1);
        }
        let mut rows: Vec<_> = sums.into_iter().collect();
        rows.sort_by(|a, b| b.1.0.cmp(&a.1.0).then_with(|| a.0.cmp(&b.0)));
        let mut table =
            Table::new("path_names", &["time_ns", "share_percent", "parts", "class", "function", "name"]);
        table.set_all_rows(rows.len());
        for ((class, name, function), (nanos, count)) in rows.into_iter().take(self.most()) {
            table.add_row([
                Cell::Nanos(nanos),
                Cell::share(nanos, total),
                Cell::Count(count),
                class.word().into(),
                function.map_or(Cell::Nothing, Cell::Text),
                name_cell(class, name),
            ]);
        }
        table
    }

    /// Slack by kernel, copy and fill.
    fn slack_table(&self, found: &FoundPath) -> Table {
        let names = found.names();
        let mut on_path: HashMap<u32, (u64, u64)> = HashMap::new();
        for part in found.path.parts() {
            if let (PathClass::Kernel | PathClass::Memory | PathClass::Graph, Some(number)) =
                (part.class, instruction_of(part))
            {
                let sum = on_path.entry(number).or_default();
                *sum = (sum.0 + (part.end - part.start), sum.1.max(part.saving));
            }
        }
        let mut rows: BTreeMap<String, SlackRow> = BTreeMap::new();
        for (at, moment) in found.path.moments().iter().enumerate() {
            let instruction = match moment.kind {
                MomentKind::End => found.list.get(moment.instruction),
                _ => continue,
            };
            let Some((start, end)) = instruction.ran else { continue };
            // The nodes of a graph have rows of their own.
            let is_work = matches!(instruction.detail, InstructionDetail::Work { .. });
            if !is_work || instruction.kind == InstructionKind::Launch {
                continue;
            }
            let row = rows.entry(names.instruction(moment.instruction).into_owned()).or_default();
            let (nanos, saving) = on_path.get(&moment.instruction).copied().unwrap_or_default();
            row.count += 1;
            row.on_path += u64::from(nanos > 0);
            row.total_ns += end.0 - start.0;
            row.path_ns += nanos;
            row.max_saving_ns = row.max_saving_ns.max(saving);
            row.slacks.push(found.path.slack(at));
        }
        let mut rows: Vec<_> = rows.into_iter().collect();
        rows.sort_by(|a, b| b.1.path_ns.cmp(&a.1.path_ns).then(b.1.total_ns.cmp(&a.1.total_ns)));
        let columns = &[
            "on_path_ns",
            "total_ns",
            "on_path",
            "count",
            "min_slack_ns",
            "median_slack_ns",
            "max_saving_ns",
            "name",
        ];
        let mut table = Table::new("slack", columns);
        table.set_all_rows(rows.len());
        for (name, mut row) in rows.into_iter().take(self.most()) {
            row.slacks.sort_unstable();
            table.add_row([
                Cell::Nanos(row.path_ns),
                Cell::Nanos(row.total_ns),
                Cell::Count(row.on_path),
                Cell::Count(row.count),
                row.slacks.first().map_or(Cell::Nothing, |slack| Cell::Nanos(*slack)),
                row.slacks.get(row.slacks.len() / 2).map_or(Cell::Nothing, |slack| Cell::Nanos(*slack)),
                Cell::Nanos(row.max_saving_ns),
                Cell::Kernels(vec![name]),
            ]);
        }
        table
    }

    /// The parts of the path, by time.
    fn part_table(&self, names: PathNames<'_>, parts: &[PathPart], zero: u64) -> Table {
        let columns = &[
            "start_ns",
            "duration_ns",
            "class",
            "thread",
            "device",
            "stream",
            "saving_ns",
            "function",
            "name",
            "reason",
        ];
        let mut table = Table::new("path", columns);
        table.set_all_rows(parts.len());
        let id = |id: Option<u32>| id.map_or(Cell::Nothing, |id| Cell::Id(id.into()));
        for (at, part) in parts.iter().enumerate().take(self.most()) {
            let stream = names.stream(part);
            let before = at.checked_sub(1).map(|at| &parts[at]);
            table.add_row([
                Cell::Moment((part.start - zero) as i64),
                Cell::Nanos(part.end - part.start),
                part.class.word().into(),
                id(names.thread(part).map(|thread| thread.0)),
                stream.map_or(Cell::Nothing, |(device, _)| Cell::Gpu(device)),
                id(stream.map(|(_, stream)| stream)),
                Cell::Nanos(part.saving),
                names.function(part).map_or(Cell::Nothing, Cell::Text),
                name_cell(part.class, names.name(part).into_owned()),
                Cell::Text(names.reason(before, part)),
            ]);
        }
        table
    }
}

/// Sums of one kernel.
#[derive(Default)]
struct SlackRow {
    count: u64,
    on_path: u64,
    total_ns: u64,
    path_ns: u64,
    max_saving_ns: u64,
    slacks: Vec<u64>,
}

fn name_cell(class: PathClass, name: String) -> Cell {
    match class {
        PathClass::Kernel | PathClass::Launch | PathClass::Gap => Cell::Kernels(vec![name]),
        _ => Cell::Text(name),
    }
}

fn instruction_of(part: &PathPart) -> Option<u32> {
    match part.what {
        gpuflame_offline::analysis::What::Instruction(number) => Some(number),
        _ => None,
    }
}

/// Returns the parts inside a window, cut at its edges.
fn clipped(parts: &[PathPart], (from, to): (u64, u64)) -> Vec<PathPart> {
    let inside = parts.iter().filter(|part| part.start < to && part.end > from);
    inside.map(|part| PathPart { start: part.start.max(from), end: part.end.min(to), ..*part }).collect()
}

/// Time on the path by class. The sum is the window.
fn class_table(parts: &[PathPart], total: u64) -> Table {
    let mut sums: BTreeMap<PathClass, (u64, u64)> = BTreeMap::new();
    for part in parts {
        let sum = sums.entry(part.class).or_default();
        *sum = (sum.0 + (part.end - part.start), sum.1 + 1);
    }
    let mut rows: Vec<_> = sums.into_iter().collect();
    rows.sort_by(|a, b| b.1.0.cmp(&a.1.0).then(a.0.cmp(&b.0)));
    let mut table = Table::new("path_classes", &["time_ns", "share_percent", "parts", "class", "cause"]);
    table.set_total([
        Cell::Nanos(total),
        Cell::share(total, total),
        Cell::Count(parts.len() as u64),
        "total".into(),
        Cell::Blank,
    ]);
    for (class, (nanos, count)) in rows {
        let cause = match class {
            PathClass::Unexplained(why) => why.word().into(),
            _ => Cell::Nothing,
        };
        table.add_row([
            Cell::Nanos(nanos),
            Cell::share(nanos, total),
            Cell::Count(count),
            class.word().into(),
            cause,
        ]);
    }
    table
}

/// The answer in one line: shares of the path.
fn answer(parts: &[PathPart], total: u64) -> String {
    let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
    for part in parts {
        let word = match part.class {
            PathClass::Kernel | PathClass::Graph => "kernels",
            PathClass::Memory => "copies",
            PathClass::Call | PathClass::Return => "CUDA calls",
            PathClass::Host | PathClass::HandOff => "host between calls",
            PathClass::Launch | PathClass::Gap => "launch latency and gaps",
            PathClass::Unexplained(_) => "not explained by the records",
        };
        *sums.entry(word).or_default() += part.end - part.start;
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by_key(|(word, nanos)| (std::cmp::Reverse(*nanos), *word));
    let share = |nanos: u64| 100.0 * nanos as f64 / total as f64;
    let words: Vec<String> =
        sums.iter().map(|(word, nanos)| format!("{word} {:.1} %", share(*nanos))).collect();
    format!("critical path of {}: {}", format_nanos(total), words.join(", "))
}

fn print_remarks(input: &Source, found: &FoundPath, console: Console) {
    let (contradicted, worst) = found.path.contradicted();
    if let Some(worst) = worst {
        let names = found.names();
        console.remark(format!(
            "{input}: {} dependencies are left out because the effect comes before its cause; the worst is {} by {} ({})",
            group_digits(contradicted),
            names.instruction(worst.effect),
            format_nanos(worst.nanos),
            worst.kind.word()
        ));
    }
    if found.path.untimed() > 0 {
        let count = group_digits(found.path.untimed());
        console.remark(format!("{input}: {count} pieces of work have no times and cannot be on the path"));
    }
    let unexplained = found.path.parts().iter().filter_map(|part| match part.class {
        PathClass::Unexplained(why) => Some((why, part.end - part.start)),
        _ => None,
    });
    let mut sums: BTreeMap<_, u64> = BTreeMap::new();
    unexplained.for_each(|(why, nanos)| *sums.entry(why).or_default() += nanos);
    for (why, nanos) in sums {
        let time = format_nanos(nanos);
        console.remark(format!("{input}: {time} of the path are unexplained: {}", why_words(why)));
    }
}

/// Writes the path as a flame graph or as folded stacks.
fn draw(names: PathNames<'_>, parts: &[PathPart], target: &Target, console: Console) -> Result<()> {
    let mut lines = FoldedStacks::default();
    for part in parts {
        lines.add_folded(&names.folded(part), part.end - part.start);
    }
    let options = gpuflame_export::Options {
        title: Some("Critical path".to_owned()),
        ..gpuflame_export::Options::default()
    };
    match target.ending() {
        Some("svg") => target.write(console, |out| write_lines_svg(&lines, &options, out)),
        None | Some("folded" | "txt") => {
            target.write(console, |out| write_lines_folded(&lines, options.unit, out))
        }
        Some(ending) => Err(usage_error(format!(
            "cannot draw the path as .{ending}; end the name of --picture in .svg or .folded"
        ))),
    }
}
