//! `gpuflame merge-ranks`: merges the recordings or traces of one job into one profile, and writes a table that shows
//! which rank delays the other ranks.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::IsTerminal;
use std::path::PathBuf;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};

use super::arrivals::{align_clocks, arrival_table};
use super::console::{Console, Outcome};
use super::explain::{Explained, explain_sums_with};
use super::input::Source;
use super::jobs::{describe_several_files, refuse_different_jobs, report_missing};
use super::name_flags::NameFlags;
use super::op_collector::OpCollector;
use super::output::Target;
use super::page::Page;
use super::ranks::{RankFlags, SameJob, SameRank};
use super::table_output::{self, Cell, ReportFormat, Table};
use gpuflame_export::{
    self, ExecutedLine, GraphStacks, NameFolding, Unit, clean_frame, executed_line, folded_names, work_name,
};
use gpuflame_model::error::{Error, ErrorKind, Result};
use gpuflame_model::profile::views::{CPU, GPU, IDLE, OFF_CPU, idle_word};
use gpuflame_model::profile::{
    Cause, LeafFrame, Profile, Sample, SampleSite, add_to, format_nanos, saturating_sum,
};
use gpuflame_model::record::Work;
use gpuflame_offline::analysis::{
    CollectiveKernel, CollectiveKernels, CommunicationFilter, JobMember, RankTime, StragglerVerdict,
    base_shifts, compare_ranks, median, shift_collectives,
};
use gpuflame_offline::formats::{FoldedStacks, write_lines_folded, write_lines_svg};
use gpuflame_offline::run::ReadOptions;

/// Merge the ranks of a job, and find the straggler.
///
/// The straggler is the rank that spends the least time in communication (kernels of NCCL or RCCL). The last rank to
/// enter a collective does not wait, but all other ranks wait for it. A straggler may have more GPU work, or a CPU that
/// is late with launches. If not all ranks communicate, the straggler is the rank with the most work. The straggler is
/// named only if its steps differ from those of the other ranks by more than chance. The test compares the order of the
/// durations (p < 0.01) and needs at least ten steps. The collective in which the other ranks wait most is named too.
/// `host_line` is the source line in which the straggler's host was late for more time than in the other ranks.
/// `host_line` needs samples (`run --cpu-samples 99 --off-cpu`) or a trace with Python functions. Steps are those of
/// the program or the profiler. If there are no steps, windows are used instead. `vs_median` is the difference from the
/// median rank. A few percent mean that no rank is unusual. Each time in the tables was recorded within one rank. Only
/// the table of ranks that came last to collectives compares clocks. The comparison of clocks needs collectives that
/// end at the same time on all ranks. If the clocks differ, they are first aligned by the ends of the collectives.
///
/// Files of different programs are refused. Traces are of different programs if they give different numbers of ranks,
/// or share no kernel. A file `ranks.json` next to the files declares that they are one job.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  gpuflame merge-ranks job/ -o all.svg\n  \
    gpuflame merge-ranks rank-*.json.gz --format json")]
pub(super) struct MergeRanks {
    /// Recordings or traces, one per rank, or folders of such files. The rank is read from the trace
    /// (`distributedInfo`), or otherwise from the file name. A `ranks.json` next to the files ({"FILE": RANK}) gives
    /// the rank of every file. Files of the same rank are windows or processes of one run.
    #[arg(required = true)]
    inputs: Vec<Source>,
    /// Output file for the merged profile, with each rank as a frame at the root (.folded or .svg).
    #[arg(short, long, value_name = "FILE")]
    output: Option<Target>,
    /// Output file for the tables (`-`: standard output).
    #[arg(long, value_name = "FILE", default_value = "-")]
    pub(super) table: Target,
    /// Format of the tables.
    #[arg(short, long, default_value = "text")]
    pub(super) format: ReportFormat,
    /// Maximum number of kernels per rank, and of stacks over all ranks; 0: all.
    #[arg(short, long, default_value_t = 3)]
    number: usize,
    /// Weight of a stack in the profile: ns, us or count.
    #[arg(short, long, default_value_t)]
    unit: Unit,
    /// Stacks under which the work of a graph is drawn: both, capture (where it was captured or added), or
    /// launch.
    #[arg(long, default_value_t)]
    graph: GraphStacks,
    #[command(flatten)]
    ranks: RankFlags,
    #[command(flatten)]
    names: NameFlags,
}

/// Sums and other facts about one rank of the job.
struct RankData {
    rank: u32,
    source: String,
    busy: u64,
    /// Idle time in ns; `None` if it is unknown.
    idle: Option<u64>,
    time: RankTime,
    linked: (u64, u64),
    /// Kernels with their GPU time in ns, longest time first.
    kernels: Vec<(u64, String)>,
    /// GPU time in ns of the kernels that move data between ranks, keyed by kernel name.
    collectives: BTreeMap<String, u64>,
    /// Every execution of a kernel that moves data between ranks. The list of executions is empty if the source has
    /// only sums.
    arrivals: CollectiveKernels,
    /// Base time to which the times in `arrivals` are relative, if this base is known.
    clock_base: Option<i64>,
    /// Whether the rank's source has sums instead of single activities.
    has_only_sums: bool,
    /// Number of ranks of the job, if the rank's file contains this number.
    world_size: Option<u32>,
    /// Number of steps of the rank, or number of recording windows if it has no steps.
    steps: u64,
    /// Time in ns during which the host was late, keyed by the source line that the host executed; or the reason why
    /// these times are unknown.
    late_lines: std::result::Result<BTreeMap<String, u64>, &'static str>,
}

impl MergeRanks {
    pub(super) fn run(&self, console: Console) -> Result<Outcome> {
        let sources = self.ranks.sources(&self.inputs, console)?;
        let (mut all, mut damaged, mut only_sums) = (Vec::new(), None, None);
        let (mut merged, mut stacks, mut idle) = (FoldedStacks::default(), StackSums::new(), BTreeMap::new());
        let numbers = self.ranks.assign(&sources, SameRank::Together)?;
        describe_several_files(&numbers).into_iter().for_each(|line| console.remark(line));
        let bar = progress_bar(sources.len(), console);
        let names = self.names.names();
        let options = gpuflame_export::Options {
            unit: self.unit,
            graph: self.graph,
            names,
            ..gpuflame_export::Options::default()
        };
        for (source, &rank) in sources.iter().zip(&numbers) {
            bar.inc(1);
            let mut ops = OpCollector::default();
            let explained = match explain_sums_with(source, self.names.read_options(), console, &mut ops) {
                Ok(explained) => explained,
                // If this rank cannot be read, the other ranks may still be readable. If no rank is readable, the error
                // of the last rank is returned.
                Err(error) if sources.len() > 1 => {
                    console.remark(format!("{error}; rank {rank} is left out"));
                    damaged = Some(error);
                    continue;
                }
                Err(error) => return Err(error),
            };
            if explained.facts.has_only_sums && explained.profile.step_series().groups.is_empty() {
                only_sums.get_or_insert(source);
            }
            merged.add_under(
                &format!("rank {rank}"),
                FoldedStacks::from_profile(&explained.profile, &GPU, &options),
            );
            add_stacks(&mut stacks, rank, &explained.profile, names);
            add_idle(&mut idle, &explained.profile);
            let one = RankData::new(rank, source, &explained, ops, names);
            match all.iter_mut().find(|known: &&mut RankData| known.rank == rank) {
                Some(known) => known.add(one),
                None => all.push(one),
            }
        }
        bar.finish_and_clear();
        if let Some(error) = damaged.filter(|_| all.is_empty()) {
            return Err(error);
        }
        all.sort_by_key(|rank| rank.rank);
        let members: Vec<JobMember> = all.iter().map(RankData::member).collect();
        let files: Vec<String> = all.iter().map(|rank| rank.source.clone()).collect();
        refuse_different_jobs(&members, &files, SameJob::from_sources(&sources), console)?;
        let job = report_missing(&members, self.ranks.assume_order, console);
        if let Some(output) = &self.output {
            self.profile(&merged, output, console)?;
        }
        if compare_ranks(&all.iter().map(|rank| &rank.time).collect::<Vec<_>>())
            .iter()
            .any(|one| one.verdict == StragglerVerdict::Unsure)
        {
            console.remark(match only_sums {
                Some(source) => format!(
                    "no straggler is named, because {source} has neither steps nor single activities; mark steps with \
                     `gpuflame.step()` or `--window step-range=NAME`, or record with `gpuflame run --rows PROGRAM`"
                ),
                None => "no straggler is named: no rank differs from the other ranks by more than chance (p < 0.01) \
                         over at least ten steps (of the profiler, or windows)"
                    .to_owned(),
            });
        }
        for (rank, reason) in all.iter().enumerate().filter_map(|(at, rank)| {
            is_straggler(&all, at)
                .then(|| find_late_line(&all, at).err())
                .flatten()
                .map(|why| (rank.rank, why))
        }) {
            console.remark(format!("rank {rank}: the line that its host was in is unknown: {reason}"));
        }
        let mut arrivals: BTreeMap<u32, CollectiveKernels> =
            all.iter_mut().map(|rank| (rank.rank, std::mem::take(&mut rank.arrivals))).collect();
        let bases: Vec<Option<i64>> = all.iter().map(|rank| rank.clock_base).collect();
        for (rank, shift) in all.iter().zip(base_shifts(&bases)) {
            arrivals.entry(rank.rank).and_modify(|kernels| shift_collectives(kernels, shift));
        }
        let clock_error = align_clocks(&mut arrivals, console);
        let withheld = collectives_of_sums(&all);
        let page = Page::of(&self.table, console);
        let tables = [
            rank_table(&all),
            arrival_table(&arrivals, &withheld, clock_error, self.most()),
            self.kernel_table(&all, page),
            self.stack_table(&stacks),
            idle_table(&idle),
            job,
        ];
        let busy = saturating_sum(all.iter().map(|rank| rank.busy));
        let idle: Option<Vec<u64>> = all.iter().map(|rank| rank.idle).collect();
        let mut heading = format!("{} ranks", all.len());
        if let Some(idle) =
            idle.map(|idle| saturating_sum(idle.into_iter())).filter(|idle| busy > 0 || *idle > 0)
        {
            let share = 100.0 * busy as f64 / busy.saturating_add(idle) as f64;
            heading = format!("{heading}: GPUs busy {share:.1} %");
        }
        self.table
            .write(console, |out| table_output::write_tables(&[heading], &tables, self.format, page, out))?;
        Ok(Outcome::Clean)
    }

    fn profile(&self, merged: &FoldedStacks, output: &Target, console: Console) -> Result<()> {
        match output.ending() {
            Some("svg") => {
                let title = Some("GPU time by rank and launching stack".to_owned());
                let options = gpuflame_export::Options {
                    unit: self.unit,
                    title,
                    ..gpuflame_export::Options::default()
                };
                output.write(console, |out| write_lines_svg(merged, &options, out))
            }
            Some("folded" | "txt") | None => {
                output.write(console, |out| write_lines_folded(merged, self.unit, out))
            }
            Some(other) => {
                let tables =
                    if matches!(other, "csv" | "json") { "; --table FILE writes the tables" } else { "" };
                let message = format!(
                    "cannot write the profile as .{other}; end the name in .folded, .txt or .svg{tables}"
                );
                Err(Error::new(ErrorKind::Setting, message))
            }
        }
    }

    fn most(&self) -> usize {
        if self.number == 0 { usize::MAX } else { self.number }
    }

    fn kernel_table(&self, all: &[RankData], page: Page) -> Table {
        let mut table = Table::new("kernels", &["rank", "total_ns", "name"]);
        for rank in all {
            for (nanos, name) in rank.kernels.iter().take(self.most()) {
                table.add_row([
                    Cell::Id(rank.rank.into()),
                    Cell::Nanos(*nanos),
                    page.kernel_cell(name.clone()),
                ]);
            }
        }
        table
    }

    fn stack_table(&self, stacks: &StackSums) -> Table {
        let mut table = Table::new("stacks", &["total_ns", "share_percent", "ranks", "stack"]);
        let total = saturating_sum(stacks.values().map(|(nanos, _)| *nanos));
        let mut stacks: Vec<_> = stacks.iter().collect();
        let rows = stacks.len();
        stacks.sort_by(|a, b| b.1.0.cmp(&a.1.0).then_with(|| a.0.cmp(b.0)));
        for (stack, (nanos, ranks)) in stacks.into_iter().take(self.most()) {
            table.add_row([
                Cell::Nanos(*nanos),
                Cell::share(*nanos, total),
                Cell::Count(ranks.len() as u64),
                Cell::Stack(stack.clone(), None),
            ]);
        }
        table.set_total([Cell::Nanos(total), Cell::share(total, total), Cell::Blank, "total".into()]);
        table.set_all_rows(rows);
        table
    }
}

/// Map from each launching stack to its GPU time in ns and the ranks in which the stack occurs.
type StackSums = BTreeMap<String, (u64, BTreeSet<u32>)>;

fn add_stacks(stacks: &mut StackSums, rank: u32, profile: &Profile, names: NameFolding) {
    for sample in profile.samples(&GPU).iter().filter(|sample| sample.amount() > 0) {
        let names = folded_names(profile, sample.site, names);
        let names: Vec<_> = names.iter().map(|name| clean_frame(name)).collect();
        let sum = stacks.entry(names.join(";")).or_default();
        sum.0 = sum.0.saturating_add(sample.amount());
        sum.1.insert(rank);
    }
}

/// Adds the idle time in ns and the number of gaps of a profile to `sums`, keyed by cause.
fn add_idle(sums: &mut BTreeMap<&'static str, (u64, u64)>, profile: &Profile) {
    for sample in profile.shown_samples(&IDLE) {
        let sum = sums.entry(idle_word(sample)).or_default();
        *sum = (sum.0.saturating_add(sample.amount()), sum.1 + sample.count());
    }
}

fn idle_table(sums: &BTreeMap<&'static str, (u64, u64)>) -> Table {
    let mut table = Table::new("idle", &["total_ns", "share_percent", "gaps", "cause"]);
    let total = saturating_sum(sums.values().map(|(nanos, _)| *nanos));
    let mut sums: Vec<_> = sums.iter().filter(|(_, (nanos, _))| *nanos > 0).collect();
    sums.sort_by_key(|(cause, (nanos, _))| (std::cmp::Reverse(*nanos), **cause));
    let mut gaps_of_all = 0_u64;
    for (cause, (nanos, gaps)) in sums {
        table.add_row([Cell::Nanos(*nanos), Cell::share(*nanos, total), Cell::Count(*gaps), (*cause).into()]);
        gaps_of_all = gaps_of_all.saturating_add(*gaps);
    }
    table.set_total([
        Cell::Nanos(total),
        Cell::share(total, total),
        Cell::Count(gaps_of_all),
        "total".into(),
    ]);
    table
}

fn rank_table(all: &[RankData]) -> Table {
    let columns = &[
        "rank",
        "busy_ns",
        "idle_ns",
        "busy_share_percent",
        "work_ns",
        "communication_ns",
        "vs_median_percent",
        "linked_percent",
        "steps",
        "straggler",
        "host_line",
        "source",
    ];
    let mut table = Table::new("ranks", columns);
    let times: Vec<_> = all.iter().map(|rank| &rank.time).collect();
    for ((at, rank), standing) in all.iter().enumerate().zip(compare_ranks(&times)) {
        let mut held = standing.verdict.mark().to_owned();
        if let (StragglerVerdict::OthersWait, Some(name)) =
            (standing.verdict, find_awaited_collective(all, at))
        {
            held = format!("{held} in {name}");
        }
        table.add_row([
            Cell::Id(rank.rank.into()),
            Cell::Nanos(rank.busy),
            rank.idle.map_or(Cell::Nothing, Cell::Nanos),
            rank.idle.map_or(Cell::Nothing, |idle| Cell::share(rank.busy, rank.busy.saturating_add(idle))),
            Cell::Nanos(rank.time.work),
            Cell::Nanos(rank.time.communication),
            standing.to_median_percent.map_or(Cell::Nothing, Cell::Share),
            Cell::share(rank.linked.0, rank.linked.1),
            if rank.steps > 0 { Cell::Count(rank.steps) } else { Cell::Nothing },
            Cell::Text(held),
            match standing.verdict {
                StragglerVerdict::OthersWait | StragglerVerdict::MostWork => {
                    find_late_line(all, at).map_or(Cell::Nothing, |line| Cell::Text(line.to_owned()))
                }
                StragglerVerdict::NotStraggler | StragglerVerdict::Unsure => Cell::Nothing,
            },
            Cell::Text(rank.source.clone()),
        ]);
    }
    table
}

/// Returns the sentence that names the straggler of a job. `files` are the recordings of the job's ranks. Returns
/// `None` if there are fewer than two ranks, if a file cannot be read, or if no rank differs from the other ranks.
pub(super) fn describe_straggler(files: &[(u32, PathBuf)], console: Console) -> Option<String> {
    let console = Console { quiet: true, ..console };
    let mut all: Vec<RankData> = Vec::new();
    for (rank, file) in files {
        let (source, mut ops) = (Source::from(file.clone().into_os_string()), OpCollector::default());
        let explained = explain_sums_with(&source, ReadOptions::default(), console, &mut ops).ok()?;
        let one = RankData::new(*rank, &source, &explained, ops, NameFolding::Kept);
        match all.iter_mut().find(|known| known.rank == *rank) {
            Some(known) => known.add(one),
            None => all.push(one),
        }
    }
    let times: Vec<_> = all.iter().map(|rank| &rank.time).collect();
    let standings = if all.len() > 1 { compare_ranks(&times) } else { Vec::new() };
    let at = standings.iter().position(|one| one.verdict != StragglerVerdict::NotStraggler)?;
    let (rank, own) = (all[at].rank, &all[at].time);
    // The sentence compares medians instead of sums, because the first step of a rank may wait for the start of another
    // rank.
    let has_steps = times.iter().all(|time| time.steps.work.len() > 1);
    let per_step = if has_steps { " per step" } else { "" };
    let of_others = |of: fn(&RankTime) -> u64| {
        let others = times.iter().enumerate().filter(|(other, _)| *other != at);
        median(&others.map(|(_, time)| of(time)).collect::<Vec<_>>())
    };
    let communication_of: fn(&RankTime) -> u64 = match has_steps {
        true => |time| median(&time.steps.communication),
        false => |time| time.communication,
    };
    let work_of: fn(&RankTime) -> u64 = match has_steps {
        true => |time| median(&time.steps.work),
        false => |time| time.work,
    };
    let of_other_ranks = of_others(communication_of);
    let communication = format!(
        "{} of communication{per_step}, the other ranks {}",
        format_nanos(communication_of(own)),
        format_nanos(of_other_ranks)
    );
    let line = find_late_line(&all, at)
        .map_or_else(|_| String::new(), |line| format!("; its host was late in {line}"));
    let collective = find_awaited_collective(&all, at).map_or_else(String::new, |name| format!(" in {name}"));
    match standings[at].verdict {
        StragglerVerdict::OthersWait => Some(format!(
            "rank {rank} is the straggler: the other ranks wait for it{collective} ({communication}){line}"
        )),
        StragglerVerdict::MostWork => Some(format!(
            "rank {rank} is the straggler: it has {} of GPU work{per_step}, the other ranks {}{line}",
            format_nanos(work_of(own)),
            format_nanos(of_others(work_of))
        )),
        // If there are no steps, even a large difference may be due to chance, so the sentence is only a hint.
        StragglerVerdict::Unsure if !has_steps && own.communication < of_other_ranks / 2 => Some(format!(
            "the other ranks may wait for rank {rank}{collective} ({communication}); mark steps with \
                 `gpuflame.step()` or `--window step-range=NAME` to be sure"
        )),
        StragglerVerdict::Unsure | StragglerVerdict::NotStraggler => None,
    }
}

/// Creates a progress bar that counts the files of the ranks. The progress bar is visible only on a terminal.
fn progress_bar(files: usize, console: Console) -> ProgressBar {
    if !console.shows_progress() || files < 2 || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:40} {pos} of {len} ranks, {eta} left");
    ProgressBar::new(files as u64).with_style(style.expect("the template is right"))
}

impl RankData {
    fn new(rank: u32, source: &Source, explained: &Explained, ops: OpCollector, names: NameFolding) -> Self {
        let (profile, tally) = (&explained.profile, explained.ledger.tally.activities);
        let mut sums: BTreeMap<String, u64> = BTreeMap::new();
        let (mut time, filter) = (RankTime::default(), CommunicationFilter::default());
        let mut collectives: BTreeMap<String, u64> = BTreeMap::new();
        let mut communicates: BTreeMap<Work, bool> = BTreeMap::new();
        for one in profile.works() {
            let name = work_name(profile, one.work).into_owned();
            time.add(one.work, &name, one.weight.nanos);
            let is_communication = filter.is_communication(one.work, &name);
            communicates.insert(one.work, is_communication);
            if is_communication {
                add_to(collectives.entry(name.clone()).or_default(), one.weight.nanos);
            }
            if matches!(one.work, Work::Kernel(_)) {
                add_to(sums.entry(name).or_default(), one.weight.nanos);
            }
        }
        let known = |work| communicates.get(&work).copied().unwrap_or(false);
        let arrivals = collect_arrivals(profile, &ops, known, explained);
        let mut ops: Vec<_> =
            ops.0.into_iter().map(|(start, nanos, work, _)| (start, nanos, known(work))).collect();
        let series = profile.step_series();
        let windows = explained.facts.steps.spans();
        match series.groups.is_empty() {
            true => time.add_windows(&mut ops, &windows),
            false => time.add_steps(series),
        }
        let steps = profile.step_count();
        let mut kernels: Vec<_> = sums.into_iter().map(|(name, nanos)| (nanos, name)).collect();
        kernels.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
        let busy = saturating_sum(profile.times().iter().map(|time| time.busy));
        let idle = saturating_sum(profile.times().iter().map(|time| time.idle));
        let idle = profile.idle_doubt().is_none().then_some(idle);
        let (source, linked) = (source.to_string(), (tally.matched, tally.seen));
        let world_size = explained.facts.world_size;
        let late_lines = late_lines(explained, names);
        Self {
            rank,
            source,
            busy,
            idle,
            time,
            linked,
            kernels,
            collectives,
            arrivals,
            clock_base: explained.facts.linked.as_ref().map_or(Some(0), |linked| linked.clock_base),
            has_only_sums: explained.facts.has_only_sums,
            world_size,
            steps,
            late_lines,
        }
    }

    fn member(&self) -> JobMember {
        let kernels = self.kernels.iter().map(|(_, name)| name.clone()).collect();
        JobMember { rank: self.rank, world_size: self.world_size, kernels }
    }

    /// Adds the data from another recording window or process of the same rank.
    fn add(&mut self, other: Self) {
        self.source = format!("{}, {}", self.source, other.source);
        add_to(&mut self.busy, other.busy);
        self.idle = self.idle.zip(other.idle).map(|(one, other)| one.saturating_add(other));
        self.time.merge(other.time);
        self.has_only_sums |= other.has_only_sums;
        self.linked = (self.linked.0 + other.linked.0, self.linked.1 + other.linked.1);
        let mut sums: BTreeMap<String, u64> = BTreeMap::new();
        let kernels = self.kernels.drain(..).chain(other.kernels);
        kernels.for_each(|(nanos, name)| add_to(sums.entry(name).or_default(), nanos));
        self.kernels = sums.into_iter().map(|(name, nanos)| (nanos, name)).collect();
        self.kernels.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
        add_to(&mut self.steps, other.steps);
        self.late_lines = match (std::mem::replace(&mut self.late_lines, Err("")), other.late_lines) {
            (Ok(mut lines), Ok(more)) => {
                more.into_iter().for_each(|(line, nanos)| add_to(lines.entry(line).or_default(), nanos));
                Ok(lines)
            }
            (Err(reason), _) | (_, Err(reason)) => Err(reason),
        };
        other.collectives.into_iter().for_each(|(name, nanos)| {
            add_to(self.collectives.entry(name).or_default(), nanos);
        });
        let mut arrivals = other.arrivals;
        match self.clock_base.zip(other.clock_base) {
            Some((base, other)) => shift_collectives(&mut arrivals, other.saturating_sub(base)),
            None => self.clock_base = None,
        }
        for (name, kernels) in arrivals {
            let all = self.arrivals.entry(name).or_default();
            all.extend(kernels);
            all.sort_by_key(|kernel| kernel.start);
        }
        self.world_size = self.world_size.or(other.world_size);
    }
}

/// Returns every execution of a kernel that moves data between ranks, with times on the clock of the rank's file.
fn collect_arrivals(
    profile: &Profile,
    ops: &OpCollector,
    is_communication: impl Fn(Work) -> bool,
    explained: &Explained,
) -> CollectiveKernels {
    let offset = explained.facts.linked.as_ref().map_or(0, |linked| linked.offset);
    let mut kernels: HashMap<Work, Vec<CollectiveKernel>> = HashMap::new();
    let communication = ops.0.iter().filter(|(.., work, _)| is_communication(*work));
    for &(start, nanos, work, device) in communication {
        if matches!(work, Work::Kernel(_)) {
            let start = i64::try_from(start).unwrap_or(i64::MAX).saturating_sub(offset);
            let end = start.saturating_add(i64::try_from(nanos).unwrap_or(i64::MAX));
            kernels.entry(work).or_default().push(CollectiveKernel { start, end, device });
        }
    }
    let mut arrivals = CollectiveKernels::new();
    for (work, kernels) in kernels {
        arrivals.entry(work_name(profile, work).into_owned()).or_default().extend(kernels);
    }
    arrivals.values_mut().for_each(|kernels| kernels.sort_by_key(|kernel| (kernel.start, kernel.end)));
    arrivals
}

/// Returns the time in ns during which the host was late, keyed by the source line that the host executed.
///
/// # Errors
/// Returns the reason if these times are unknown.
fn late_lines(
    explained: &Explained,
    names: NameFolding,
) -> std::result::Result<BTreeMap<String, u64>, &'static str> {
    let profile = &explained.profile;
    let is_trace = explained.facts.linked.is_some();
    if profile.idle_doubt().is_some() {
        return Err("GPU work is missing, so idle time is unknown");
    }
    if !is_trace && !profile.has(&CPU) && !profile.has(&OFF_CPU) {
        return Err("it was recorded without samples; record with `gpuflame run --cpu-samples 99 --off-cpu`");
    }
    let mut lines: BTreeMap<String, u64> = BTreeMap::new();
    let is_late =
        |sample: &&Sample| sample.leaf.frames().any(|leaf| leaf == LeafFrame::Idle(Cause::HostLate));
    let is_running =
        |sample: &&Sample| matches!(sample.site, SampleSite::Context(_)) && sample.root_mark.is_none();
    for sample in profile.samples(&IDLE).iter().filter(is_late).filter(is_running) {
        if let Some(ExecutedLine { file, line, function }) = executed_line(profile, sample.site, names) {
            let name = function_name(&function, &format!("{file}({line}): "));
            add_to(lines.entry(format!("{file}:{line} ({name})")).or_default(), sample.amount());
        }
    }
    match lines.is_empty() {
        true if is_trace => Err("the trace has no lines of the host; record it with `with_stack=True`"),
        true => Err("no sampled stack has a source line"),
        false => Ok(lines),
    }
}

/// Removes the source location from a function's name. Traces write the location before the name, but gpuflame writes
/// it after the name.
fn function_name<'a>(function: &'a str, place: &str) -> &'a str {
    let without_place = |(name, place): (&'a str, &str)| place.contains(".py:").then_some(name);
    let ours = || function.strip_suffix(')').and_then(|text| text.rsplit_once(" (")).and_then(without_place);
    function.strip_prefix(place).or_else(ours).unwrap_or(function)
}

/// Returns the collective kernels that cannot be compared, each with the number of ranks that ran it. A kernel cannot
/// be compared if it ran on several ranks and one of these ranks has only sums.
fn collectives_of_sums(all: &[RankData]) -> BTreeMap<String, u64> {
    let mut ranks: BTreeMap<&String, (u64, bool)> = BTreeMap::new();
    for rank in all {
        let kernels: BTreeSet<&String> = rank.kernels.iter().map(|(_, name)| name).collect();
        for name in rank.collectives.keys().filter(|name| kernels.contains(name)) {
            let (count, has_only_sums) = ranks.entry(name).or_default();
            (*count, *has_only_sums) = (*count + 1, *has_only_sums || rank.has_only_sums);
        }
    }
    let of_sums = ranks.into_iter().filter(|(_, (count, has_only_sums))| *count > 1 && *has_only_sums);
    of_sums.map(|(name, (count, _))| (name.clone(), count)).collect()
}

/// Whether the rank at index `at` is the straggler.
fn is_straggler(all: &[RankData], at: usize) -> bool {
    let times: Vec<_> = all.iter().map(|rank| &rank.time).collect();
    matches!(compare_ranks(&times)[at].verdict, StragglerVerdict::OthersWait | StragglerVerdict::MostWork)
}

/// Returns the source line in which the host of the rank at index `at` was late for longer than the other ranks' hosts
/// on average. If there are several lines with this property, returns the line with the largest difference.
///
/// # Errors
/// Returns the reason if no line is named.
fn find_late_line(all: &[RankData], at: usize) -> std::result::Result<&str, &'static str> {
    let own = all[at].late_lines.as_ref().map_err(|reason| *reason)?;
    let others = all.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, rank)| rank);
    let (mut lines, mut work) = (Vec::new(), Vec::new());
    for rank in others {
        work.push(rank.time.work);
        lines.extend(rank.late_lines.as_ref().ok());
    }
    if lines.is_empty() {
        return Err("the lines of the other ranks' hosts are not known");
    }
    let mean = |nanos: &mut dyn Iterator<Item = u64>, count: usize| saturating_sum(nanos) / count as u64;
    let in_line = |line: &str| {
        let nanos = lines.iter().map(|lines| lines.get(line).copied().unwrap_or(0));
        mean(&mut { nanos }, lines.len())
    };
    let more = own.iter().map(|(line, nanos)| (nanos.saturating_sub(in_line(line)), line.as_str()));
    let (late, line) = more.max().unwrap_or_default();
    let more_work = all[at].time.work.saturating_sub(mean(&mut work.iter().copied(), work.len()));
    match late {
        _ if more_work >= late => Err("its GPU had more work, and its host was not late for longer"),
        _ => Ok(line),
    }
}

/// Returns the collective in which the time of the rank at index `at` is furthest below the mean of the other ranks. In
/// the returned collective, the other ranks wait longest for the rank at index `at`.
fn find_awaited_collective(all: &[RankData], at: usize) -> Option<&str> {
    let below = |name: &String| {
        let nanos = |rank: &RankData| rank.collectives.get(name).copied().unwrap_or(0);
        let others = all.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, rank)| nanos(rank));
        let mean = saturating_sum(others) / (all.len() as u64 - 1).max(1);
        mean.saturating_sub(nanos(&all[at]))
    };
    let names: BTreeSet<&String> = all.iter().flat_map(|rank| rank.collectives.keys()).collect();
    names.into_iter().filter(|name| below(name) > 0).max_by_key(|name| below(name)).map(String::as_str)
}
