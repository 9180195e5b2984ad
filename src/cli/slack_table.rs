//! Builds the tables that show the slack of each kernel and each direction of copies. Slack is the maximum time by
//! which work can be delayed without delaying the end of the run.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::found_path::FoundPath;
use super::path_names::PathNames;
use super::table_output::{Cell, Table};
use gpuflame_model::profile::saturating_sum;
use gpuflame_model::record::{IdMap, Work};
use gpuflame_offline::analysis::{
    CriticalPath, InstructionDetail, InstructionKind, MomentKind, PathClass, PathPart, What,
};

/// Sums and slack of all GPU work with the same name. All times in these sums are in ns.
#[derive(Default)]
struct SlackSums {
    count: u64,
    on_path: u64,
    total_ns: u64,
    path_ns: u64,
    max_saving_ns: u64,
    /// Slack in ns of each kernel, copy or fill, sorted in ascending order.
    slacks: Vec<u64>,
}

impl SlackSums {
    fn add(&mut self, more: Self) {
        let Self { count, on_path, total_ns, path_ns, max_saving_ns, slacks } = more;
        self.count += count;
        self.on_path += on_path;
        self.total_ns += total_ns;
        self.path_ns += path_ns;
        self.max_saving_ns = self.max_saving_ns.max(max_saving_ns);
        self.slacks.extend(slacks);
    }

    /// Returns the cells with the smallest and the median slack.
    fn slack_cells(&self) -> [Cell; 2] {
        let cell = |at: usize| self.slacks.get(at).map_or(Cell::Nothing, |slack| Cell::Nanos(*slack));
        [cell(0), cell(self.slacks.len() / 2)]
    }
}

/// Returns the slack table of `gpuflame critical-path` for one run.
pub(super) fn slack_table(found: &FoundPath, most: usize) -> Table {
    slack_table_of(&found.path, &|number| (found.names(), number), most)
}

/// Returns the slack table of `gpuflame critical-path`, sorted by time on the path, longest first. `find` maps an
/// instruction of the path to the name look-up of its rank and the instruction's index in that rank.
pub(super) fn slack_table_of<'a>(
    path: &CriticalPath,
    find: &dyn Fn(u32) -> (PathNames<'a>, u32),
    most: usize,
) -> Table {
    let mut rows = slack_sums(path, find);
    rows.sort_by_key(|(_, sums)| Reverse((sums.path_ns, sums.total_ns)));
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
    for (name, sums) in rows.into_iter().take(most) {
        let times = [Cell::Nanos(sums.path_ns), Cell::Nanos(sums.total_ns)];
        let counts = [Cell::Count(sums.on_path), Cell::Count(sums.count)];
        let rest = [Cell::Nanos(sums.max_saving_ns), Cell::Kernels(vec![name])];
        table.add_row(times.into_iter().chain(counts).chain(sums.slack_cells()).chain(rest));
    }
    table
}

/// Returns the table of `gpuflame top --by slack`, sorted by smallest slack in ascending order.
pub(super) fn top_slack_table(found: &FoundPath, most: usize) -> Table {
    let mut rows = slack_sums(&found.path, &|number| (found.names(), number));
    rows.sort_by_key(|(_, sums)| {
        (sums.slacks.first().copied(), Reverse(sums.path_ns), Reverse(sums.total_ns))
    });
    let columns = &[
        "total_ns",
        "share_percent",
        "count",
        "min_slack_ns",
        "median_slack_ns",
        "max_saving_ns",
        "on_path_ns",
        "on_path",
        "name",
    ];
    let mut table = Table::new("slack", columns);
    table.set_all_rows(rows.len());
    let sum = |of: fn(&SlackSums) -> u64| saturating_sum(rows.iter().map(|(_, sums)| of(sums)));
    let total = sum(|sums| sums.total_ns);
    table.set_total([
        Cell::Nanos(total),
        Cell::share(total, total),
        Cell::Count(sum(|sums| sums.count)),
        Cell::Blank,
        Cell::Blank,
        Cell::Blank,
        Cell::Nanos(sum(|sums| sums.path_ns)),
        Cell::Count(sum(|sums| sums.on_path)),
        "total".into(),
    ]);
    for (name, sums) in rows.into_iter().take(most) {
        let times = [Cell::Nanos(sums.total_ns), Cell::share(sums.total_ns, total), Cell::Count(sums.count)];
        let rest = [
            Cell::Nanos(sums.max_saving_ns),
            Cell::Nanos(sums.path_ns),
            Cell::Count(sums.on_path),
            Cell::Kernels(vec![name]),
        ];
        table.add_row(times.into_iter().chain(sums.slack_cells()).chain(rest));
    }
    table
}

/// Returns the slack sums for each name, sorted by name.
fn slack_sums<'a>(
    path: &CriticalPath,
    find: &dyn Fn(u32) -> (PathNames<'a>, u32),
) -> Vec<(String, SlackSums)> {
    let on_path = times_on_path(path);
    // The map is keyed by the profile of a rank and the kind of work, and not by name, because looking up the names of
    // a million instructions would take long.
    let mut by_work: IdMap<(usize, Option<Work>), usize> = IdMap::default();
    let mut all: Vec<(String, SlackSums)> = Vec::new();
    let ends = path.moments().iter().enumerate().filter(|(_, moment)| moment.kind == MomentKind::End);
    for (at, moment) in ends {
        let (names, number) = find(moment.instruction);
        let instruction = names.list.get(number);
        let Some((start, end)) = instruction.ran else { continue };
        // Each node of a CUDA graph is a separate instruction, so nodes have their own rows.
        let InstructionDetail::Work { activity, .. } = instruction.detail else { continue };
        let work = match instruction.kind {
            InstructionKind::Launch => continue,
            InstructionKind::Graph => None,
            _ => Some(activity.work()),
        };
        let at_sum = *by_work.entry((std::ptr::from_ref(names.profile).addr(), work)).or_insert_with(|| {
            all.push((names.instruction(number).into_owned(), SlackSums::default()));
            all.len() - 1
        });
        let (_, sum) = &mut all[at_sum];
        let (nanos, saving) = on_path.get(&moment.instruction).copied().unwrap_or_default();
        sum.count += 1;
        sum.on_path += u64::from(nanos > 0);
        sum.total_ns += end.0 - start.0;
        sum.path_ns += nanos;
        sum.max_saving_ns = sum.max_saving_ns.max(saving);
        sum.slacks.push(path.slack(at));
    }
    let mut sums: BTreeMap<String, SlackSums> = BTreeMap::new();
    for (name, of_work) in all {
        sums.entry(name).or_default().add(of_work);
    }
    sums.values_mut().for_each(|sum| sum.slacks.sort_unstable());
    sums.into_iter().collect()
}

/// Returns the time on the path and the largest saving of each instruction, in ns.
fn times_on_path(path: &CriticalPath) -> IdMap<u32, (u64, u64)> {
    let savings = path.savings();
    let mut times: IdMap<u32, (u64, u64)> = IdMap::default();
    for part in path.parts() {
        if let (PathClass::Kernel | PathClass::Memory | PathClass::Graph, Some(number)) =
            (part.class, instruction_of(part))
        {
            let sum = times.entry(number).or_default();
            *sum = (sum.0 + (part.end - part.start), sum.1.max(savings.of(part)));
        }
    }
    times
}

fn instruction_of(part: &PathPart) -> Option<u32> {
    match part.what {
        What::Instruction(number) => Some(number),
        _ => None,
    }
}
