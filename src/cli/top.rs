//! `gpuflame top`: lists the most expensive kernels, stacks, source lines and more, in descending order of cost.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use clap::{Args, ValueEnum};

use super::console::{Console, Outcome};
use super::explain::{Explained, explain};
use super::found_path::FoundPath;
use super::heading::heading;
use super::input::Source;
use super::name_flags::NameFlags;
use super::near_misses::{near_misses, quoted};
use super::slack_table::top_slack_table;
use super::stream_times::{MAX_SPANS, check_durations};
use super::table_output::{Cell, ReportFlags, Table};
use gpuflame_explain::events::{JoinedActivity, JoinedRows};
use gpuflame_explain::join::Origin;
use gpuflame_explain::symbolize::kernel_name;
use gpuflame_export::{
    NameFolding, event_site, executed_line, folded_names, innermost_frames, user_function, work_name,
};
use gpuflame_model::error::{Error, ErrorKind, Result};
use gpuflame_model::profile::views::{CPU, GPU, IDLE, OFF_CPU, idle_word};
use gpuflame_model::profile::{
    CopyPath, LeafFrame, Profile, RootMark, Sample, SampleSite, Values, Weight, add_to, add_values,
    saturating_sum,
};
use gpuflame_model::record::{MemoryKind, Work};
use gpuflame_offline::analysis::{
    Communication, CommunicationFilter, CopySums, InstructionRows, LaunchDelays, StackShare, WorkSpans,
    sum_communication,
};

/// Show the most expensive kernels, stacks, source lines and more.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  gpuflame top run.gfr --by kernels,delay,idle\n  \
    gpuflame top trace.json.gz --by slack\n  \
    gpuflame top trace.json.gz -n 0 --format csv -o top.csv")]
pub(super) struct Top {
    /// Recording or trace (`-`: standard input).
    input: Source,
    /// Rankings to show, separated by commas.
    #[arg(short, long, value_delimiter = ',', default_values = ["kernels", "stacks"])]
    by: Vec<Ranking>,
    /// Maximum number of rows per table; 0: all.
    #[arg(short, long, default_value_t = 10)]
    number: usize,
    /// With `--by function`: count each stack only for its innermost function, without the callers.
    #[arg(long = "self")]
    self_only: bool,
    #[command(flatten)]
    names: NameFlags,
    /// Count only kernels whose name contains PATTERN as communication; repeat the option for several
    /// patterns. By default, communication is all kernels of NCCL, RCCL, NVSHMEM, DeepEP, MSCCL++ and custom
    /// all-reduces, kernels that the trace marks as collectives, and copies between GPUs.
    #[arg(long, value_name = "PATTERN")]
    comm: Vec<String>,
    /// Count communication as Holistic Trace Analysis does: leave out the last of several steps, and work
    /// whose launch is not in the trace.
    #[arg(long)]
    as_hta: bool,
    #[command(flatten)]
    pub(super) report: ReportFlags,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Ranking {
    /// Kernels, copies and fills by GPU time.
    #[value(alias = "kernel")]
    Kernels,
    /// Launching stacks by GPU time.
    #[value(alias = "stack")]
    Stacks,
    /// Source lines by the GPU time of the work that they launched. Each stack counts for its innermost line of user
    /// code. Lines of the interpreter, of installed packages and of PyTorch count only if there is no other line.
    #[value(alias = "lines")]
    Line,
    /// Functions by the GPU time of the work that they and their callees launched. The table also has the CPU time and
    /// waiting time of the launching threads if these times were recorded (`run --cpu-samples 99 --off-cpu`). A
    /// function counts once per stack. With --self, a stack counts only for its innermost function.
    #[value(alias = "functions")]
    Function,
    /// Copies by GPU, direction and kinds of memory (pageable, pinned, device, managed ...), with their size, mean
    /// bandwidth and share of the copies' time.
    #[value(alias = "copy")]
    Copies,
    /// Time between the launching call and the start on the GPU.
    #[value(alias = "delays")]
    Delay,
    /// Idle time of GPUs, by cause, by call, by function, by line, by module, and then by cause and stack. If the
    /// launching thread was late, the time is shown under the stack of this thread. If the trace has only the two calls
    /// around the time, it is shown under `[between A and B]`. All other idle time is shown under the launch that ended
    /// it. Start-up and shutdown are in the first table, and at the end of the last table.
    Idle,
    /// Communication between GPUs, by GPU and by stack: its time, and the exposed part, during which no
    /// computation ran.
    #[value(alias = "communication")]
    Comm,
    /// Kernels, copies and fills by slack, next to the time that faster work would save. Slack is the time by which
    /// work could end later without the run ending later. Least slack first.
    Slack,
}

impl Top {
    pub(super) fn run(&self, console: Console) -> Result<Outcome> {
        let mut delays = LaunchDelays::default();
        let mut events = self.by.contains(&Ranking::Comm).then(JoinedRows::default);
        let mut copies = CopySums::default();
        let mut spans = WorkSpans::bounded(MAX_SPANS);
        let mut instructions = self.by.contains(&Ranking::Slack).then(InstructionRows::default);
        let sinks = (&mut delays, (&mut copies, (&mut events, (&mut spans, &mut instructions))));
        let mut explained = explain(&self.input, &self.names.read_options(), console, sinks)?;
        explained.facts.require_work(&self.input)?;
        explained.require_activities(&self.input)?;
        explained.need_samples(&self.input, &GPU)?;
        if explained.facts.has_only_sums && explained.facts.is_finished {
            delays = LaunchDelays::from_sums(&explained.profile);
        } else if self.by.contains(&Ranking::Delay) {
            explained.facts.require_rows(&self.input)?;
        }
        if self.by.contains(&Ranking::Copies) && explained.facts.has_only_sums {
            match CopySums::from_sums(&explained.profile).filter(|_| explained.facts.is_finished) {
                Some(sums) => copies = sums,
                None => explained.facts.require_rows(&self.input)?,
            }
        }
        if self.by.contains(&Ranking::Comm) {
            explained.facts.require_rows(&self.input)?;
        }
        if self.by.contains(&Ranking::Comm) {
            self.require_communication(&explained.profile)?;
        }
        let mut slack = None;
        if let Some(rows) = instructions {
            explained.facts.require_rows(&self.input)?;
            let path = FoundPath::new(&self.input, explained, rows)?;
            slack = Some(top_slack_table(&path, self.most()));
            explained = path.explained;
        }
        self.remark_on_unused(console);
        let (names, most) = (self.names.names(), self.most());
        let mut tables = Vec::new();
        for by in &self.by {
            match by {
                Ranking::Kernels => tables.push(kernel_table(&explained, most)),
                Ranking::Stacks => tables.push(stack_table(&explained, names, most)),
                Ranking::Function => {
                    tables.push(function_table(&explained.profile, names, most, self.self_only))
                }
                Ranking::Line => tables.push(line_table(&explained.profile, names, most)),
                Ranking::Idle => tables.extend(idle_tables(&explained.profile, names, most)),
                Ranking::Copies => {
                    if copies.iter().next().is_none() {
                        console.remark(format!("{}: contains no copies with usable times", self.input));
                    }
                    tables.push(copy_table(&copies, most));
                }
                Ranking::Slack => tables.extend(slack.take()),
                Ranking::Delay => tables.push(delay_table(&delays, &explained.profile, most)),
                Ranking::Comm => {
                    tables.extend(self.communication_tables(&explained, events.as_mut(), most, console))
                }
            }
        }
        tables.extend(check_durations(&self.input, &explained, spans, console));
        self.report.write(console, &[heading(&self.input, &explained.profile)], &tables)?;
        Ok(Outcome::Clean)
    }
}

impl Top {
    fn most(&self) -> usize {
        if self.number == 0 { usize::MAX } else { self.number }
    }

    /// Prints a remark for each option that was given although the chosen rankings do not use it.
    fn remark_on_unused(&self, console: Console) {
        let options = [
            (self.self_only, "--self", Ranking::Function, "function"),
            (!self.comm.is_empty(), "--comm", Ranking::Comm, "comm"),
            (self.as_hta, "--as-hta", Ranking::Comm, "comm"),
        ];
        for (is_given, option, by, word) in options {
            if is_given && !self.by.contains(&by) {
                console.remark(format!("{option} has no effect without --by {word}"));
            }
        }
    }

    /// Returns an error if a pattern of `--comm` matches no name of GPU work.
    ///
    /// # Errors
    /// Returns `Format`. The error's message lists similar names.
    fn require_communication(&self, profile: &Profile) -> Result<()> {
        let works = profile.works().iter().map(|work| work_name(profile, work.work));
        let names: BTreeSet<Cow<'_, str>> = works.collect();
        let is_known =
            |pattern: &str| names.iter().any(|name| name.to_lowercase().contains(&pattern.to_lowercase()));
        let Some(pattern) = self.comm.iter().find(|pattern| !is_known(pattern)) else { return Ok(()) };
        let near = near_misses(pattern, names.iter().map(AsRef::as_ref));
        let advice = match near.is_empty() {
            true => "`gpuflame top` lists the kernels".to_owned(),
            false => format!("did you mean {}?", quoted(&near)),
        };
        let what = format!("{}: --comm {pattern}: no kernel has that in its name; {advice}", self.input);
        Err(Error::new(ErrorKind::Format, what))
    }

    fn communication_tables(
        &self,
        explained: &Explained,
        events: Option<&mut JoinedRows>,
        most: usize,
        console: Console,
    ) -> [Table; 2] {
        let Explained { profile, facts, .. } = explained;
        let linked = facts.linked.as_ref();
        let collectives = linked
            .map(|linked| linked.collectives.iter().map(|name| kernel_name(name).into_owned()).collect());
        let filter =
            CommunicationFilter { patterns: self.comm.clone(), collectives: collectives.unwrap_or_default() };
        let last_step = linked.and_then(|linked| linked.last_step).filter(|_| self.as_hta);
        let is_counted = |event: &JoinedActivity| match (last_step, event.origin) {
            (None, _) => true,
            (Some(last), Origin::Launch(launched)) => (launched.time.0 as i64) < last,
            (Some(_), Origin::Missing(_)) => false,
        };
        let mut known = HashMap::new();
        let mut doing = HashMap::new();
        let events = events.map(|events| {
            events.sort();
            &*events
        });
        let activities = || events.into_iter().flat_map(|events| events.activities());
        for event in activities() {
            let work = event.activity.work();
            doing.entry(work).or_insert_with(|| filter.class(work, &work_name(profile, work)));
        }
        let (devices, places) = sum_communication(
            activities().filter(is_counted),
            |event| doing[&event.activity.work()],
            event_site,
        );
        let columns = &[
            "device",
            "comm_ns",
            "exposed_ns",
            "exposed_percent",
            "overlapped_ns",
            "overlap_percent",
            "compute_ns",
        ];
        let mut by_device = Table::new("comm", columns);
        for (device, sum) in &devices {
            let hidden = sum.all - sum.exposed;
            by_device.add_row([
                Cell::Id(device.0.into()),
                Cell::Nanos(sum.all),
                Cell::Nanos(sum.exposed),
                Cell::share(sum.exposed, sum.all),
                Cell::Nanos(hidden),
                Cell::share(hidden, sum.all),
                Cell::Nanos(sum.computation),
            ]);
        }
        if devices.values().all(|sum| sum.all == 0) {
            console.remark(format!(
                "{}: no kernel counts as communication; `--comm PATTERN` chooses kernels by name",
                self.input
            ));
        }
        let exposed = saturating_sum(devices.values().map(|sum| sum.exposed));
        let sum = |of: fn(&Communication) -> u64| saturating_sum(devices.values().map(of));
        let (all, computation) = (sum(|sum| sum.all), sum(|sum| sum.computation));
        let hidden = all.saturating_sub(exposed);
        by_device.set_total([
            "total".into(),
            Cell::Nanos(all),
            Cell::Nanos(exposed),
            Cell::share(exposed, all),
            Cell::Nanos(hidden),
            Cell::share(hidden, all),
            Cell::Nanos(computation),
        ]);
        for (place, share) in places {
            let stack = folded_names(profile, place, self.names.names()).join(";");
            let (sum, _) = known.entry(stack).or_insert((StackShare::default(), place));
            *sum = sum.and(share);
        }
        let mut stacks: Vec<_> = known.into_iter().collect();
        stacks.sort_by(|a, b| {
            let key = |(share, _): &(StackShare, SampleSite)| (share.exposed, share.nanos);
            key(&b.1).cmp(&key(&a.1)).then_with(|| a.0.cmp(&b.0))
        });
        let rows = stacks.len();
        let count = saturating_sum(stacks.iter().map(|(_, (share, _))| share.count));
        let mut by_stack =
            Table::new("comm_stacks", &["exposed_ns", "share_percent", "total_ns", "count", "stack"]);
        for (stack, (share, place)) in stacks.into_iter().take(most) {
            by_stack.add_row([
                Cell::Nanos(share.exposed),
                Cell::share(share.exposed, exposed),
                Cell::Nanos(share.nanos),
                Cell::Count(share.count),
                Cell::Stack(stack, own_frame(profile, place, self.names.names())),
            ]);
        }
        by_stack.set_total([
            Cell::Nanos(exposed),
            Cell::share(exposed, exposed),
            Cell::Nanos(all),
            Cell::Count(count),
            "total".into(),
        ]);
        by_stack.set_all_rows(rows);
        [by_device, by_stack]
    }
}

/// Returns the innermost frame of the user's own code in the stack of a sample site. If a table cuts the stack, the
/// innermost frame of the user's own code is kept.
pub(super) fn own_frame(profile: &Profile, site: SampleSite, names: NameFolding) -> Option<String> {
    executed_line(profile, site, names).map(|line| line.function)
}

fn total_gpu_time(profile: &Profile) -> u64 {
    saturating_sum(profile.devices().iter().map(|device| device.nanos))
}

fn kernel_table(explained: &Explained, most: usize) -> Table {
    let profile = &explained.profile;
    let mut table = Table::new(
        "kernels",
        &[
            "total_ns",
            "share_percent",
            "count",
            "avg_ns",
            "min_ns",
            "p50_ns",
            "p95_ns",
            "max_ns",
            "device",
            "name",
        ],
    );
    let total = total_gpu_time(profile);
    let mut works: Vec<_> =
        profile.works().iter().map(|work| (work_name(profile, work.work), work)).collect();
    works.sort_by(|(a_name, a), (b_name, b)| {
        b.weight.nanos.cmp(&a.weight.nanos).then_with(|| (a_name, a.device).cmp(&(b_name, b.device)))
    });
    let (rows, count) = (works.len(), saturating_sum(works.iter().map(|(_, work)| work.weight.count)));
    for (name, work) in works.into_iter().take(most) {
        table.add_row([
            Cell::Nanos(work.weight.nanos),
            Cell::share(work.weight.nanos, total),
            Cell::Count(work.weight.count),
            Cell::Nanos(work.weight.nanos / work.weight.count.max(1)),
            Cell::Nanos(work.min),
            Cell::Nanos(work.percentiles[0]),
            Cell::Nanos(work.percentiles[1]),
            Cell::Nanos(work.max),
            Cell::Id(work.device.0.into()),
            Cell::Kernels(vec![name.into_owned()]),
        ]);
    }
    let mut cells = vec![Cell::Nanos(total), Cell::share(total, total), Cell::Count(count)];
    cells.resize(table.columns().len() - 1, Cell::Blank);
    table.set_total(cells.into_iter().chain(["total".into()]));
    table.set_all_rows(rows);
    table
}

fn stack_table(explained: &Explained, names: NameFolding, most: usize) -> Table {
    let profile = &explained.profile;
    let mut sums: HashMap<String, (Values, SampleSite)> = HashMap::new();
    for sample in profile.samples(&GPU) {
        let stack = folded_names(profile, sample.site, names).join(";");
        let (sum, _) = sums.entry(stack).or_insert((Values::default(), sample.site));
        add_values(sum, sample.values);
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by(|a, b| b.1.0[0].cmp(&a.1.0[0]).then_with(|| a.0.cmp(&b.0)));
    let mut table = Table::new("stacks", &["total_ns", "share_percent", "count", "stack"]);
    let total = total_gpu_time(profile);
    let (rows, all) = (sums.len(), saturating_sum(sums.iter().map(|(_, (values, _))| values[1])));
    for (stack, ([nanos, count, ..], site)) in sums.into_iter().take(most) {
        let stack = Cell::Stack(stack, own_frame(profile, site, names));
        table.add_row([Cell::Nanos(nanos), Cell::share(nanos, total), Cell::Count(count), stack]);
    }
    table.set_total([Cell::Nanos(total), Cell::share(total, total), Cell::Count(all), "total".into()]);
    table.set_all_rows(rows);
    table
}

fn function_table(profile: &Profile, names: NameFolding, most: usize, self_only: bool) -> Table {
    let mut sums: HashMap<String, [u64; 3]> = HashMap::new();
    for (at, view) in [&GPU, &CPU, &OFF_CPU].into_iter().enumerate() {
        for sample in profile.samples(view) {
            let frames: BTreeSet<String> = match self_only {
                true => {
                    let innermost = innermost_frames(profile, sample.site, names);
                    BTreeSet::from([innermost.function.or(innermost.call).unwrap_or_default()])
                }
                false => folded_names(profile, sample.site, names).into_iter().map(Cow::into_owned).collect(),
            };
            for frame in frames {
                add_to(&mut sums.entry(frame).or_default()[at], sample.amount());
            }
        }
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    let all = |times: &[u64; 3]| saturating_sum(times.iter().copied());
    sums.sort_by(|a, b| all(&b.1).cmp(&all(&a.1)).then_with(|| a.0.cmp(&b.0)));
    let mut table = Table::new("function", &["gpu_ns", "cpu_ns", "waiting_ns", "function"]);
    let rows = sums.len();
    for (function, times) in sums.into_iter().take(most) {
        let cell = |at: usize, view| if profile.has(view) { Cell::Nanos(times[at]) } else { Cell::Nothing };
        let (gpu, cpu, waiting) = (cell(0, &GPU), cell(1, &CPU), cell(2, &OFF_CPU));
        table.add_row([gpu, cpu, waiting, Cell::Text(function)]);
    }
    table.set_all_rows(rows);
    table
}

/// Sums of the GPU work that one source line launched.
#[derive(Default)]
struct LineSums {
    values: Values,
    kernels: HashMap<Work, u64>,
}

/// Maximum number of kernels that the table names per source line.
const MAX_KERNELS_PER_LINE: usize = 3;

fn line_table(profile: &Profile, names: NameFolding, most: usize) -> Table {
    let mut sums: HashMap<(String, String), LineSums> = HashMap::new();
    for sample in profile.samples(&GPU) {
        let line = executed_line(profile, sample.site, names);
        let key = line.map_or_else(
            || ("[no line]".to_owned(), String::new()),
            |it| (format!("{}:{}", it.file, it.line), it.function),
        );
        let sum = sums.entry(key).or_default();
        add_values(&mut sum.values, sample.values);
        for tip in sample.leaf.frames() {
            if let LeafFrame::Work(work) = tip {
                add_to(sum.kernels.entry(work).or_default(), sample.amount());
            }
        }
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by(|a, b| b.1.values[0].cmp(&a.1.values[0]).then_with(|| a.0.cmp(&b.0)));
    let columns = &["total_ns", "share_percent", "count", "line", "function", "kernels"];
    let mut table = Table::new("line", columns);
    let total = total_gpu_time(profile);
    let (rows, all) = (sums.len(), saturating_sum(sums.iter().map(|(_, sum)| sum.values[1])));
    for ((line, function), under) in sums.into_iter().take(most) {
        let [nanos, count, ..] = under.values;
        table.add_row([
            Cell::Nanos(nanos),
            Cell::share(nanos, total),
            Cell::Count(count),
            Cell::Text(line),
            Cell::Text(function),
            Cell::Kernels(heaviest_kernels(profile, under.kernels)),
        ]);
    }
    let whole = [Cell::Nanos(total), Cell::share(total, total), Cell::Count(all)];
    table.set_total(whole.into_iter().chain(["total".into(), Cell::Blank, Cell::Blank]));
    table.set_all_rows(rows);
    table
}

/// Returns the names of the kernels with the most GPU time, in that order: `gemm`, `relu`, `add`, `4 more`.
fn heaviest_kernels(profile: &Profile, kernels: HashMap<Work, u64>) -> Vec<String> {
    let mut sums: HashMap<Cow<'_, str>, u64> = HashMap::new();
    for (work, nanos) in kernels {
        add_to(sums.entry(work_name(profile, work)).or_default(), nanos);
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    let more = sums.len().saturating_sub(MAX_KERNELS_PER_LINE);
    let named = sums.into_iter().take(MAX_KERNELS_PER_LINE).map(|(name, _)| name.into_owned());
    named.chain((more > 0).then(|| format!("{more} more"))).collect()
}

/// Whether idle time is outside the steady part of the run. Idle time outside the steady part does not belong to the
/// program's steps.
fn is_apart(sample: &Sample) -> bool {
    matches!(sample.root_mark, Some(RootMark::StartUp | RootMark::Shutdown))
}

/// Returns six tables of idle time: per cause, per call, per function, per line, per module, and per cause and stack.
/// If a GPU was idle in the steady part of the run, the second to the fifth table cover only the steady part.
fn idle_tables(profile: &Profile, names: NameFolding, most: usize) -> [Table; 6] {
    let mut causes = HashMap::new();
    let mut sums: [IdleSums; 4] = Default::default();
    let samples = profile.shown_samples(&IDLE);
    let has_steady = samples.iter().any(|sample| !is_apart(sample) && sample.amount() > 0);
    let mut summed = 0_u64;
    let count = |sums: &mut IdleSums, key, sample: &Sample| {
        let sum = sums.entry(key).or_default();
        add_to(&mut sum.0, sample.amount());
        add_to(&mut sum.1, sample.count());
    };
    for sample in samples {
        count(&mut causes, Some(idle_word(sample).to_owned()), sample);
        if has_steady && is_apart(sample) {
            continue;
        }
        add_to(&mut summed, sample.amount());
        let innermost = innermost_frames(profile, sample.site, names);
        let line = executed_line(profile, sample.site, names).map(|it| format!("{}:{}", it.file, it.line));
        // A CPU sample shows which function was executing on the host. If the host slept, the table contains the user's
        // function that slept instead of the C library's sleep function.
        let own =
            matches!(sample.site, SampleSite::Context(_)).then(|| user_function(profile, sample.site, names));
        let function = own.flatten().or(innermost.function);
        let keys = [innermost.call, function, line, innermost.module];
        sums.iter_mut().zip(keys).for_each(|(sums, key)| count(sums, key, sample));
    }
    let [calls, functions, lines, modules] = sums;
    let total = saturating_sum(profile.times().iter().map(|time| time.idle));
    let table = |name, columns, sums, total| idle_sum_table(Table::new(name, columns), sums, total, most);
    [
        table("idle_causes", &["total_ns", "share_percent", "gaps", "cause"], causes, total),
        table("idle_calls", &["total_ns", "share_percent", "gaps", "call"], calls, summed),
        table("idle_functions", &["total_ns", "share_percent", "gaps", "function"], functions, summed),
        table("idle_lines", &["total_ns", "share_percent", "gaps", "line"], lines, summed),
        table("idle_modules", &["total_ns", "share_percent", "gaps", "module"], modules, summed),
        idle_table(profile, names, most),
    ]
}

/// Idle time in ns and number of gaps, keyed by name. The key `None` represents names that were not recorded.
type IdleSums = HashMap<Option<String>, (u64, u64)>;

/// Adds the `most` largest sums to `table`. The cell for a name that was not recorded is empty.
fn idle_sum_table(mut table: Table, sums: IdleSums, total: u64, most: usize) -> Table {
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by(|a, b| b.1.0.cmp(&a.1.0).then_with(|| a.0.cmp(&b.0)));
    let (rows, all) = (sums.len(), saturating_sum(sums.iter().map(|(_, (_, gaps))| *gaps)));
    for (name, (nanos, gaps)) in sums.into_iter().take(most) {
        let name = name.map_or(Cell::Nothing, Cell::Text);
        table.add_row([Cell::Nanos(nanos), Cell::share(nanos, total), Cell::Count(gaps), name]);
    }
    table.set_total([Cell::Nanos(total), Cell::share(total, total), Cell::Count(all), "total".into()]);
    table.set_all_rows(rows);
    table
}

fn idle_table(profile: &Profile, names: NameFolding, most: usize) -> Table {
    let mut sums: HashMap<(bool, &str, String), (u64, u64, SampleSite)> = HashMap::new();
    for sample in profile.shown_samples(&IDLE) {
        let stack = folded_names(profile, sample.site, names).join(";");
        let sum = sums.entry((is_apart(sample), idle_word(sample), stack)).or_insert((0, 0, sample.site));
        add_to(&mut sum.0, sample.amount());
        add_to(&mut sum.1, sample.count());
    }
    let total = saturating_sum(profile.times().iter().map(|time| time.idle));
    let mut sums: Vec<_> = sums.into_iter().collect();
    // Rows of start-up and shutdown follow the rows of the steady part, even if the times of start-up and shutdown are
    // longer.
    sums.sort_by(|a, b| a.0.0.cmp(&b.0.0).then(b.1.0.cmp(&a.1.0)).then_with(|| a.0.cmp(&b.0)));
    let mut table = Table::new("idle", &["total_ns", "share_percent", "gaps", "cause", "stack"]);
    if let Some(doubt) = profile.idle_doubt() {
        table.add_row([Cell::Nothing, Cell::Nothing, Cell::Nothing, "unknown".into(), Cell::Text(doubt)]);
    }
    let (rows, all) = (sums.len(), saturating_sum(sums.iter().map(|(_, (_, gaps, _))| *gaps)));
    for ((_, cause, stack), (nanos, gaps, site)) in sums.into_iter().take(most) {
        table.add_row([
            Cell::Nanos(nanos),
            Cell::share(nanos, total),
            Cell::Count(gaps),
            cause.into(),
            Cell::Stack(stack, own_frame(profile, site, names)),
        ]);
    }
    let whole = [Cell::Nanos(total), Cell::share(total, total), Cell::Count(all)];
    table.set_total(whole.into_iter().chain([Cell::Blank, "total".into()]));
    table.set_all_rows(rows + usize::from(profile.idle_doubt().is_some()));
    table
}

/// Sums the activities with the same name over all GPUs, and returns a table of the `most` largest sums.
pub(super) fn work_table(profile: &Profile, events: &[JoinedActivity], most: usize) -> Table {
    let columns = &["total_ns", "share_percent", "count", "avg_ns", "min_ns", "max_ns", "name"];
    let mut table = Table::new("stats", columns);
    let mut sums: HashMap<Cow<'_, str>, (u64, u64, u64, u64)> = HashMap::new();
    for event in events {
        let Some(nanos) = event.activity.duration() else { continue };
        let sum = sums.entry(work_name(profile, event.activity.work())).or_insert((0, 0, u64::MAX, 0));
        *sum = (sum.0.saturating_add(nanos), sum.1 + 1, sum.2.min(nanos), sum.3.max(nanos));
    }
    let total = saturating_sum(sums.values().map(|sum| sum.0));
    let (rows, all) = (sums.len(), saturating_sum(sums.values().map(|sum| sum.1)));
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by(|a, b| b.1.0.cmp(&a.1.0).then_with(|| a.0.cmp(&b.0)));
    for (name, (nanos, count, min, max)) in sums.into_iter().take(most) {
        table.add_row([
            Cell::Nanos(nanos),
            Cell::share(nanos, total),
            Cell::Count(count),
            Cell::Nanos(nanos / count),
            Cell::Nanos(min),
            Cell::Nanos(max),
            Cell::Kernels(vec![name.into_owned()]),
        ]);
    }
    let mut cells = vec![Cell::Nanos(total), Cell::share(total, total), Cell::Count(all)];
    cells.resize(columns.len() - 1, Cell::Blank);
    table.set_total(cells.into_iter().chain(["total".into()]));
    table.set_all_rows(rows);
    table
}

/// Returns a table of copies, with one row for each combination of GPU, direction and kinds of memory. The rows of the
/// table are sorted by GPU time, longest first. Kinds of memory that this version of gpuflame does not know are shown
/// as unknown.
pub(super) fn copy_table(copies: &CopySums, most: usize) -> Table {
    let columns = &[
        "total_ns",
        "share_percent",
        "count",
        "bytes",
        "bandwidth_gb_per_s",
        "device",
        "direction",
        "from",
        "to",
    ];
    let mut table = Table::new("copies", columns);
    let mut sums: BTreeMap<_, Weight> = BTreeMap::new();
    let mut all = Weight::default();
    for (&CopyPath { device, kind, from, to }, weight) in copies.iter() {
        let key = (device, known_kind(kind.label()), known_kind(from.label()), known_kind(to.label()));
        for sum in [sums.entry(key).or_default(), &mut all] {
            add_to(&mut sum.count, weight.count);
            add_to(&mut sum.nanos, weight.nanos);
            add_to(&mut sum.bytes, weight.bytes);
        }
    }
    // Sorting by time is stable, so rows with equal times stay in the order of their keys.
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by_key(|(_, sum)| std::cmp::Reverse(sum.nanos));
    let figures = |sum: &Weight| {
        // In traces that lack the sizes of copies, the number of bytes is 0.
        let (bytes, bandwidth) = match (sum.bytes, sum.nanos) {
            (0, _) => (Cell::Nothing, Cell::Nothing),
            (bytes, 0) => (Cell::Bytes(bytes), Cell::Nothing),
            (bytes, nanos) => (Cell::Bytes(bytes), Cell::Bandwidth(bytes as f64 / nanos as f64)),
        };
        [Cell::Nanos(sum.nanos), Cell::share(sum.nanos, all.nanos), Cell::Count(sum.count), bytes, bandwidth]
    };
    let rows = sums.len();
    for ((device, direction, from, to), sum) in sums.into_iter().take(most) {
        let kinds = [direction, from, to].map(|kind| kind.map_or(Cell::Nothing, Cell::from));
        table.add_row(figures(&sum).into_iter().chain([Cell::Id(device.0.into())]).chain(kinds));
    }
    table.set_total(figures(&all).into_iter().chain([Cell::Blank, Cell::Blank, Cell::Blank, "total".into()]));
    table.set_all_rows(rows);
    table
}

/// Returns the word for a direction or a kind of memory, unless the word represents an unknown kind.
fn known_kind(word: &'static str) -> Option<&'static str> {
    Some(word).filter(|word| *word != MemoryKind::UNKNOWN.label())
}

/// Returns a table of launch delays: the times from the launching call to the start of the work on the GPU. The table
/// has one row per name of GPU work, sorted by total delay, largest first.
fn delay_table(delays: &LaunchDelays, profile: &Profile, most: usize) -> Table {
    let mut table =
        Table::new("delay", &["avg_ns", "p50_ns", "p95_ns", "max_ns", "count", "before_launch", "name"]);
    let mut delays: Vec<_> = delays.iter().map(|(work, delay)| (work_name(profile, work), delay)).collect();
    delays.sort_by(|(a_name, a), (b_name, b)| b.sum().cmp(&a.sum()).then_with(|| a_name.cmp(b_name)));
    let rows = delays.len();
    for (name, delay) in delays.into_iter().take(most) {
        table.add_row([
            Cell::Nanos(delay.average()),
            Cell::Nanos(delay.percentile(50)),
            Cell::Nanos(delay.percentile(95)),
            Cell::Nanos(delay.max()),
            Cell::Count(delay.count()),
            Cell::Count(delay.started_before_call()),
            Cell::Kernels(vec![name.into_owned()]),
        ]);
    }
    table.set_all_rows(rows);
    table
}
