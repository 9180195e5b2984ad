//! Builds the tables and the flame graph of a critical path.

use std::collections::BTreeMap;

use super::console::{Console, usage_error};
use super::output::Target;
use super::path_groups::PathGroup;
use super::path_names::PathNames;
use super::table_output::{Cell, Table};
use gpuflame_model::error::Result;
use gpuflame_model::profile::format_nanos;
use gpuflame_offline::analysis::{PathClass, PathPart};
use gpuflame_offline::formats::{FoldedStacks, write_lines_folded, write_lines_svg};

/// Returns the table with the time of each class on the critical path. The times of all classes add up to the length of
/// the window.
pub(super) fn class_table(parts: &[PathPart], total: u64) -> Table {
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

/// Returns the cells of a group: its time, its share of `total`, and its number of parts.
pub(super) fn group_sums(group: &PathGroup, total: u64) -> [Cell; 3] {
    [Cell::Nanos(group.nanos), Cell::share(group.nanos, total), Cell::Count(group.parts.len() as u64)]
}

/// Returns the cells of a group: its class, function and name.
pub(super) fn group_names(group: PathGroup) -> [Cell; 3] {
    let PathGroup { class, name, function, .. } = group;
    [class.word().into(), function.map_or(Cell::Nothing, Cell::Text), name_cell(class, name)]
}

/// Returns a table without rows that has the columns for the parts of a path. For the path of a job, the table has a
/// column for the rank.
pub(super) fn part_table(has_rank: bool) -> Table {
    macro_rules! columns {
        ($($rank:literal)?) => {
            &[
                "start_ns",
                "duration_ns",
                $($rank,)?
                "class",
                "thread",
                "device",
                "stream",
                "saving_ns",
                "function",
                "name",
                "reason",
            ]
        };
    }
    let columns: &[&str] = if has_rank { columns!("rank") } else { columns!() };
    Table::new("path", columns)
}

/// Returns the cells with a part's times: the time from `zero` to the part's start, and the part's duration. `zero` is
/// the start of the path.
pub(super) fn part_times(part: &PathPart, zero: u64) -> [Cell; 2] {
    [Cell::Moment((part.start - zero) as i64), Cell::Nanos(part.end - part.start)]
}

/// Returns the cells of a part: its class, thread, GPU, stream, saving, function, name and reason.
pub(super) fn part_names(names: PathNames<'_>, part: &PathPart, saving: u64, reason: String) -> [Cell; 8] {
    let id = |id: Option<u32>| id.map_or(Cell::Nothing, |id| Cell::Id(id.into()));
    let stream = names.stream(part);
    [
        part.class.word().into(),
        id(names.thread(part).map(|thread| thread.0)),
        stream.map_or(Cell::Nothing, |(device, _)| Cell::Gpu(device)),
        id(stream.map(|(_, stream)| stream)),
        Cell::Nanos(saving),
        names.function(part).map_or(Cell::Nothing, Cell::Text),
        name_cell(part.class, names.name(part).into_owned()),
        Cell::Text(reason),
    ]
}

fn name_cell(class: PathClass, name: String) -> Cell {
    match class {
        PathClass::Kernel | PathClass::Launch | PathClass::Gap => Cell::Kernels(vec![name]),
        _ => Cell::Text(name),
    }
}

/// Minimum share of the path, in percent, that the verb's short answer lists. A smaller share would be shown as 0.0 %.
const MIN_SHARE_PERCENT: f64 = 0.05;

/// Returns one line with the share of the path that each kind of part has, as the verb's short answer.
pub(super) fn answer(parts: &[PathPart], total: u64) -> String {
    let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
    for part in parts {
        let word = match part.class {
            PathClass::Kernel | PathClass::Graph => "kernels",
            PathClass::Memory => "copies",
            PathClass::HostFunction => "host functions",
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
    sums.retain(|(_, nanos)| share(*nanos) >= MIN_SHARE_PERCENT);
    let words: Vec<String> =
        sums.iter().map(|(word, nanos)| format!("{word} {:.1} %", share(*nanos))).collect();
    format!("critical path of {}: {}", format_nanos(total), words.join(", "))
}

/// Writes the path as a flame graph or as folded stacks. `parts` are folded lines, each with its time in ns.
pub(super) fn draw(
    parts: impl Iterator<Item = (String, u64)>,
    target: &Target,
    console: Console,
) -> Result<()> {
    let mut lines = FoldedStacks::default();
    parts.for_each(|(line, nanos)| lines.add_folded(&line, nanos));
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
