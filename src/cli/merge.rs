//! `gpuflame merge`: merges CPU stacks from an eBPF probe and a GPU trace from another tool into one folded file.
//! `gpuflame merge` has the flags of `merge_gpu_cpu_trace.py` in eunomia's tutorial.

use std::collections::{BTreeMap, HashMap};
use std::io::Write;

use clap::Args;

use super::console::{Console, Outcome};
use super::input::{Source, print_remarks, with_progress};
use super::output::Target;
use super::table_output::group_digits;
use super::times::{parse_millis, parse_offset};
use gpuflame_export::{Unit, clean_frame};
use gpuflame_model::error::{Error, ErrorKind, Result};
use gpuflame_model::profile::{add_to, format_nanos, saturating_sum};
use gpuflame_model::record::IdMap;
use gpuflame_traces::import::{Event, Id, Kind, Op, OpKind, Options, Sink, Wants};
use gpuflame_traces::merge::{self, Launch, Method, Report, Stack};

/// Merge CPU stacks that were taken at launches with the kernels of a GPU trace.
///
/// CPU stacks are lines of `TIME COMM PID TID CPU main;decode;cudaLaunchKernel`. If the last frame is `[correlation
/// N]`, it matches the stack to its launch exactly. Without a frame `[correlation N]`, stacks are matched in order if a
/// thread has as many launches as stacks. Otherwise stacks and launches are matched one to one by time, so that the sum
/// of the distances is smallest.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  gpuflame merge -c cpu.txt -g gpu.json -o merged.folded -s")]
pub(super) struct Merge {
    /// CPU stacks (extended folded).
    #[arg(short, long, default_value = "cpu_results.txt")]
    cpu: Source,
    /// GPU trace: the tutorial's JSON or text, or any other trace that `info` reads.
    #[arg(short, long, default_value = "gpu_results.json")]
    gpu: Source,
    /// Output file for the folded stacks.
    #[arg(short, long, default_value = "merged_trace.folded")]
    output: Target,
    /// Maximum time between a stack and its launch, such as `10ms` or `500us`. A time without a unit is in
    /// milliseconds.
    #[arg(short, long, default_value = "10ms", overrides_with = "tolerance", value_name = "TIME", value_parser = parse_millis)]
    tolerance: i64,
    /// Print a summary.
    #[arg(short, long)]
    summary: bool,
    /// Weight of a stack: ns, us, or count (of kernels).
    #[arg(short, long, default_value_t)]
    unit: Unit,
    /// Offset added to the times of the stacks, such as `-2ms`. A time without a unit is in microseconds.
    #[arg(long, default_value = "0", allow_hyphen_values = true, value_name = "TIME", value_parser = parse_offset)]
    offset: i64,
    /// Reproduce the tutorial's first script with its errors. Each stack takes the nearest launch, which several stacks
    /// may take, and only one of the launch's kernels. Each stack counts 1. Launch stubs lose their names.
    #[arg(long)]
    seed1_compat: bool,
}

impl Merge {
    pub(super) fn run(&self, console: Console) -> Result<Outcome> {
        let cpu = CpuStacks::read(&self.cpu, self.seed1_compat, console)?;
        let mut gpu = GpuTrace::read(&self.gpu, console)?;
        gpu.align_clock(&cpu.stacks);
        let tolerance = self.tolerance.unsigned_abs();
        let (lines, report) = if self.seed1_compat {
            (merge_as_tutorial(&cpu, &gpu, tolerance), None)
        } else {
            let options = merge::Options { tolerance, offset: self.offset };
            let (pairs, report) = merge::merge(&cpu.stacks, &gpu.launches, &options);
            (merge_lines(&cpu, &gpu, &pairs), Some(report))
        };
        self.output.write(console, |out| {
            for (stack, weight) in &lines {
                writeln!(
                    out,
                    "{stack} {}",
                    weight.in_unit(if self.seed1_compat { Unit::Count } else { self.unit })
                )?;
            }
            Ok(())
        })?;
        if let Some(report) = &report {
            print_match_share(&cpu, &gpu, report, &lines, console);
            print_doubts(report, console);
        }
        if self.summary {
            Target::Stdout.write(console, |out| write_summary(&cpu, &gpu, report.as_ref(), &lines, out))?;
        }
        Ok(Outcome::Clean)
    }
}

/// Weight of an output line, in each of the units that the user can select.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Weight {
    nanos: u64,
    count: u64,
}

impl Weight {
    fn in_unit(self, unit: Unit) -> u64 {
        match unit {
            Unit::Nanos => self.nanos,
            Unit::Micros => self.nanos / 1000 + u64::from(self.nanos % 1000 >= 500),
            Unit::Count => self.count,
        }
    }
}

#[derive(Default)]
struct CpuStacks {
    stacks: Vec<Stack>,
    /// Distinct stacks, whose frames are separated by `;`.
    texts: Vec<String>,
    ids: HashMap<String, u32>,
    /// Ids of stacks, keyed by the raw bytes of the stack in the file. A job launches from few call sites, so this
    /// cache contains most of the stacks.
    cache: HashMap<Vec<u8>, u32>,
    compat: bool,
}

impl CpuStacks {
    fn read(source: &Source, compat: bool, console: Console) -> Result<Self> {
        let opened = source.open().map_err(|error| error.within("CPU stacks (-c)"))?;
        if opened.kind() != Kind::ExtendedFolded {
            let what = format!(
                "{source}: is {}, not CPU stacks; give lines of `TIME COMM PID TID CPU main;cudaLaunchKernel`",
                opened.kind()
            );
            return Err(Error::new(ErrorKind::Format, what));
        }
        let mut cpu = Self { compat, ..Self::default() };
        let (options, _bar) =
            with_progress(Options { accept_cut: console.accept_cut, ..Options::default() }, &opened, console);
        let seen = opened.read(&options, &mut cpu)?;
        if let Some(first) = seen.first_non_event_line {
            console.remark(format!(
                "{source}: skipped {} of {} lines ({:.1} %) that are not `TIME COMM PID TID CPU FRAMES`; the \
                 first is line {first}",
                group_digits(seen.non_events),
                group_digits(seen.events),
                100.0 * seen.non_events as f64 / seen.events.max(1) as f64
            ));
        }
        Ok(cpu)
    }
}

impl Sink for CpuStacks {
    fn wants(&self) -> Wants {
        Wants::STACKS
    }

    fn event(&mut self, event: &Event<'_>) {
        let Event::Stack(line) = event else { return };
        let (raw, correlation) = split_correlation(line.frames.raw());
        let found = self.cache.get(raw).map(|id| (*id, correlation));
        let Some((id, correlation)) = found.or_else(|| self.intern_stack(raw, correlation)) else { return };
        self.stacks.push(Stack {
            time: line.time,
            process: line.process.into(),
            thread: line.thread.into(),
            correlation,
            frames: id,
        });
    }
}

/// Removes the last frame if it contains a correlation id. Returns the remaining frames, and the correlation id if the
/// removed frame contained one.
fn split_correlation(raw: &[u8]) -> (&[u8], Option<u64>) {
    let at = raw.iter().rposition(|&byte| byte == b';').map_or(0, |at| at + 1);
    match std::str::from_utf8(&raw[at..]).ok().and_then(parse_correlation) {
        Some(id) => (&raw[..at], Some(id)),
        None => (raw, None),
    }
}

fn parse_correlation(frame: &str) -> Option<u64> {
    frame.trim().strip_prefix("[correlation ")?.strip_suffix(']')?.parse().ok()
}

impl CpuStacks {
    /// Adds a stack whose bytes are not in the cache. Returns `None` if no frame of the stack is shown.
    fn intern_stack(&mut self, raw: &[u8], last: Option<u64>) -> Option<(u32, Option<u64>)> {
        let (text, inside) = self.shown_frames(&String::from_utf8_lossy(raw));
        if text.is_empty() {
            return None;
        }
        let next = self.texts.len() as u32;
        let id = *self.ids.entry(text).or_insert_with_key(|text| {
            self.texts.push(text.clone());
            next
        });
        if inside.is_none() {
            self.cache.insert(raw.to_owned(), id);
        }
        Some((id, last.or(inside)))
    }

    /// Returns the frames to show, and the correlation id if a frame contains one.
    fn shown_frames(&self, frames: &str) -> (String, Option<u64>) {
        let mut shown: Vec<String> = Vec::new();
        let (mut id, mut seen_launch) = (None, false);
        for frame in frames.split(';').map(str::trim) {
            if let Some(found) = parse_correlation(frame) {
                id = Some(found);
            } else if matches!(frame, "" | "_start" | "__libc_start_main") {
            } else if self.compat && (frame.contains("cudaLaunchKernel") || frame.contains("__device_stub__"))
            {
                if !seen_launch {
                    shown.push("cudaLaunchKernel".to_owned());
                }
                seen_launch = true;
            } else if self.compat {
                shown.push(frame.to_owned());
            } else {
                shown.push(clean_frame(frame).into_owned());
            }
        }
        (shown.join(";"), id)
    }
}

/// A kernel, copy or fill, with the id of the frame that shows it.
#[derive(Debug)]
struct FramedWork {
    frame: u32,
    nanos: u64,
}

#[derive(Default)]
struct GpuTrace {
    launches: Vec<Launch>,
    /// Kernels, keyed by correlation id; kernels with the same id are in the order of the file. Copies and fills are
    /// stored in the field `others`.
    kernels: IdMap<u64, Vec<FramedWork>>,
    others: Vec<FramedWork>,
    frames: Vec<String>,
    ids: HashMap<String, u32>,
    /// Ids of frames, keyed by the raw name in the file. There is one such map for each kind of operation.
    cache: [HashMap<Vec<u8>, u32>; 4],
    count: u64,
    nanos: u64,
    begin: i64,
    end: i64,
    /// Base time of the trace in ns since 1970 (`baseTimeNanoseconds`). The times in the trace may be relative to the
    /// base time.
    base: i64,
}

impl GpuTrace {
    fn read(source: &Source, console: Console) -> Result<Self> {
        let opened = source.open().map_err(|error| error.within("GPU trace (-g)"))?;
        if matches!(opened.kind(), Kind::Folded | Kind::ExtendedFolded | Kind::Recording) {
            let what = format!(
                "{source}: is {}, not a GPU trace; give the tutorial's JSON or text, or a Kineto trace",
                opened.kind()
            );
            return Err(Error::new(ErrorKind::Format, what));
        }
        let mut gpu = Self { begin: i64::MAX, end: i64::MIN, ..Self::default() };
        let (options, _bar) =
            with_progress(Options { accept_cut: console.accept_cut, ..Options::default() }, &opened, console);
        let seen = opened.read(&options, &mut gpu)?;
        print_remarks(source, &seen, console);
        if gpu.launches.is_empty() && gpu.count == 0 {
            let what = format!("{source}: contains no launches and no kernels; is it a GPU trace?");
            return Err(Error::new(ErrorKind::Format, what));
        }
        Ok(gpu)
    }

    /// Converts the times of launches to the clock of the CPU stacks. Some profilers write times relative to
    /// `baseTimeNanoseconds`. Other profilers also write a base time, but the times in their traces are absolute.
    /// Therefore the base time is added only if two conditions hold: with the base time, the launches overlap the
    /// stacks in time; without the base time, they do not.
    fn align_clock(&mut self, stacks: &[Stack]) {
        let (Some((from, to)), Some((first, last))) =
            (time_range(stacks, |stack| stack.time), self.launch_range())
        else {
            return;
        };
        let is_beside = |by: i64| first.saturating_add(by) <= to && last.saturating_add(by) >= from;
        if self.base != 0 && !is_beside(0) && is_beside(self.base) {
            self.launches.iter_mut().for_each(|launch| launch.time = launch.time.saturating_add(self.base));
        }
    }

    /// Returns the times of the first and the last launch in the GPU trace.
    fn launch_range(&self) -> Option<(i64, i64)> {
        time_range(&self.launches, |launch| launch.time)
    }

    fn intern_work(&mut self, op: &Op<'_>) -> FramedWork {
        let nanos = u64::try_from(op.end.saturating_sub(op.start)).unwrap_or(0);
        if let Some(&frame) = self.cache[op.kind as usize].get(op.name.raw()) {
            return FramedWork { frame, nanos };
        }
        let name = op.name.decode();
        let frame = match op.kind {
            OpKind::Kernel => format!("[GPU_Kernel]{}", clean_frame(&name)),
            OpKind::Copy => format!("[GPU_Memcpy]{}", clean_frame(&name)),
            OpKind::Set => "[GPU_Memset]".to_owned(),
            OpKind::Graph => "[GPU_Graph]".to_owned(),
        };
        let next = self.frames.len() as u32;
        let frame = *self.ids.entry(frame).or_insert_with_key(|frame| {
            self.frames.push(frame.clone());
            next
        });
        self.cache[op.kind as usize].insert(op.name.raw().to_owned(), frame);
        FramedWork { frame, nanos }
    }
}

impl Sink for GpuTrace {
    fn wants(&self) -> Wants {
        Wants::OPS.and(Wants::CALLS).and(Wants::NAMES)
    }

    fn event(&mut self, event: &Event<'_>) {
        match event {
            Event::Call(call) if call.name.decode().contains("LaunchKernel") => self.launches.push(Launch {
                time: call.start,
                process: numeric_id(call.process),
                thread: numeric_id(call.thread),
                correlation: call.correlation.unwrap_or(0),
            }),
            Event::Property(property) if property.key.raw() == b"baseTimeNanoseconds" => {
                let value =
                    std::str::from_utf8(property.value).ok().and_then(|value| value.trim().parse().ok());
                self.base = value.unwrap_or(0);
            }
            Event::Op(op) => {
                let work = self.intern_work(op);
                self.begin = self.begin.min(op.start);
                self.end = self.end.max(op.end);
                if op.kind == OpKind::Kernel {
                    self.count += 1;
                    add_to(&mut self.nanos, work.nanos);
                    self.kernels.entry(op.correlation.unwrap_or(0)).or_default().push(work);
                } else {
                    self.others.push(work);
                }
            }
            _ => {}
        }
    }
}

fn numeric_id(id: Id<'_>) -> Option<i64> {
    match id {
        Id::Number(number) => Some(number),
        Id::None | Id::Text(_) => None,
    }
}

type WeightedLines = BTreeMap<String, Weight>;

/// Returns one line for every stack, with the GPU work of the stack's launch. The lines for GPU work without a stack
/// come last. The returned lines therefore include all GPU time.
fn merge_lines(cpu: &CpuStacks, gpu: &GpuTrace, pairs: &[Option<(usize, Method)>]) -> WeightedLines {
    let mut sums: HashMap<(Option<u32>, Option<u32>), Weight> = HashMap::new();
    let mut add = |stack, work: Option<&FramedWork>| {
        let sum = sums.entry((stack, work.map(|work| work.frame))).or_default();
        add_to(&mut sum.nanos, work.map_or(0, |work| work.nanos));
        sum.count += 1;
    };
    let mut shown: std::collections::HashSet<u64> = std::collections::HashSet::new();
    for (stack, pair) in cpu.stacks.iter().zip(pairs) {
        let id = pair.map(|(at, _)| gpu.launches[at].correlation);
        let kernels = id.filter(|id| shown.insert(*id)).and_then(|id| gpu.kernels.get(&id));
        match kernels {
            Some(kernels) => kernels.iter().for_each(|kernel| add(Some(stack.frames), Some(kernel))),
            None => add(Some(stack.frames), None),
        }
    }
    let alone = gpu.kernels.iter().filter(|(id, _)| !shown.contains(id)).flat_map(|(_, kernels)| kernels);
    alone.chain(&gpu.others).for_each(|work| add(None, Some(work)));
    let mut lines = WeightedLines::new();
    for ((stack, frame), weight) in sums {
        let stack = stack.map_or("[no launch stack]", |stack| &cpu.texts[stack as usize]);
        let leaf = frame.map_or("[GPU_Launch_Pending]", |frame| &gpu.frames[frame as usize]);
        let sum = lines.entry(format!("{stack};{leaf}")).or_default();
        add_to(&mut sum.nanos, weight.nanos);
        add_to(&mut sum.count, weight.count);
    }
    lines
}

/// Reproduces the tutorial's first script. Each stack gets the nearest launch within `tolerance` (in ns), and the first
/// kernel with that launch's correlation id.
fn merge_as_tutorial(cpu: &CpuStacks, gpu: &GpuTrace, tolerance: u64) -> WeightedLines {
    // If two launches have the same correlation id, the second launch takes the place of the first launch in the list.
    let mut places: HashMap<u64, usize> = HashMap::new();
    let mut launches: Vec<(i64, usize, u64)> = Vec::new();
    for launch in gpu.launches.iter().filter(|launch| launch.correlation > 0) {
        let next = launches.len();
        match *places.entry(launch.correlation).or_insert(next) {
            at if at == next => launches.push((launch.time, next, launch.correlation)),
            at => launches[at].0 = launch.time,
        }
    }
    launches.sort_unstable();
    let nearest = |time: i64| {
        let at = launches.partition_point(|(start, ..)| *start < time);
        // The latest launch before the time of the stack is a candidate. If several launches have this time, the first
        // of these launches is the candidate.
        let before =
            at.checked_sub(1).map(|last| launches.partition_point(|(start, ..)| *start < launches[last].0));
        let near = before.into_iter().chain([at]).filter_map(|at| launches.get(at));
        let near = near.min_by_key(|(start, place, _)| (start.abs_diff(time), *place));
        near.filter(|(start, ..)| start.abs_diff(time) < tolerance)
    };
    let mut lines = WeightedLines::new();
    for stack in &cpu.stacks {
        let text = &cpu.texts[stack.frames as usize];
        let kernel =
            nearest(stack.time).and_then(|(.., id)| gpu.kernels.get(id)?.iter().find(|work| work.nanos > 0));
        let leaf = kernel.map_or("[GPU_Launch_Pending]", |kernel| &gpu.frames[kernel.frame as usize]);
        lines.entry(format!("{text};{leaf}")).or_default().count += 1;
    }
    lines
}

fn time_range<T>(all: &[T], time: impl Fn(&T) -> i64) -> Option<(i64, i64)> {
    Some((all.iter().map(&time).min()?, all.iter().map(&time).max()?))
}

/// Prints how many stacks matched a launch. If fewer than half of the stacks matched, also prints the time ranges of
/// the stacks' clock and of the trace's clock.
fn print_match_share(
    cpu: &CpuStacks,
    gpu: &GpuTrace,
    report: &Report,
    lines: &WeightedLines,
    console: Console,
) {
    let (stacks, found) = (cpu.stacks.len() as u64, report.matched.iter().sum::<u64>());
    let with_stack = lines.iter().filter(|(line, _)| !line.starts_with("[no launch stack];"));
    let (all, part) = (
        saturating_sum(lines.values().map(|weight| weight.nanos)),
        saturating_sum(with_stack.map(|(_, weight)| weight.nanos)),
    );
    console.remark(format!(
        "{} of {} stacks matched a launch; {} launches have no stack; {:.1} % of the GPU time has a stack",
        group_digits(found),
        group_digits(stacks),
        group_digits(report.launches_left),
        100.0 * part as f64 / all.max(1) as f64
    ));
    if found * 2 < stacks
        && let (Some(ours), Some(theirs)) = (time_range(&cpu.stacks, |stack| stack.time), gpu.launch_range())
    {
        console.remark(format!(
            "less than half matched: the stacks are from {} to {} ns, the launches from {} to {} ns; if \
             their clocks differ, try --offset {:.1}",
            ours.0,
            ours.1,
            theirs.0,
            theirs.1,
            (theirs.0 - ours.0) as f64 / 1e3
        ));
    }
}

/// Prints a remark if matching stacks to launches by time gave hardly better results than chance.
fn print_doubts(report: &Report, console: Console) {
    let guessed = report.matched[Method::Order as usize] + report.matched[Method::Time as usize];
    if report.matched[Method::Time as usize] > 0 && report.doubtful * 100 > guessed {
        console.remark(format!(
            "{} of {} stacks matched without an id are doubtful: the clocks seem {} apart, launches only {}; \
             let the probe add a frame `[correlation N]`, or correct the clock with --offset {:.1}",
            group_digits(report.doubtful),
            group_digits(guessed),
            format_nanos(report.clock_distance.unsigned_abs()),
            format_nanos(report.median_gap),
            report.clock_distance as f64 / 1e3,
        ));
    }
}

fn write_summary(
    cpu: &CpuStacks,
    gpu: &GpuTrace,
    report: Option<&Report>,
    lines: &WeightedLines,
    out: &mut (dyn Write + Send),
) -> Result<()> {
    writeln!(out, "=== Summary Statistics ===")?;
    let times = || cpu.stacks.iter().map(|stack| stack.time);
    if let (Some(first), Some(last)) = (times().min(), times().max()) {
        writeln!(out, "CPU trace duration: {:.2} ms", (last - first) as f64 / 1e6)?;
        writeln!(out, "CPU stacks captured: {}", cpu.stacks.len())?;
    }
    if gpu.count > 0 {
        writeln!(out, "\nGPU kernels executed: {}", gpu.count)?;
        writeln!(out, "CUDA launch events: {}", gpu.launches.len())?;
        writeln!(out, "Total kernel execution time: {:.2} ms", gpu.nanos as f64 / 1e6)?;
        let mut counts: HashMap<&str, u64> = HashMap::new();
        for work in gpu.kernels.values().flatten() {
            let name = &gpu.frames[work.frame as usize];
            *counts.entry(name.strip_prefix("[GPU_Kernel]").unwrap_or(name)).or_default() += 1;
        }
        let mut counts: Vec<_> = counts.into_iter().collect();
        counts.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
        writeln!(out, "\nKernel execution counts:")?;
        for (name, count) in counts {
            writeln!(out, "  {name}: {count}")?;
        }
    }
    writeln!(out, "\nUnique stacks: {}", lines.len())?;
    if let Some(report) = report {
        let [by_id, by_order, by_time] = report.matched;
        writeln!(out, "Stacks matched: {by_id} by id, {by_order} by order, {by_time} by time")?;
        writeln!(out, "Stacks without a launch: {}", report.unmatched)?;
        writeln!(out, "Launches without a stack: {}", report.launches_left)?;
        writeln!(out, "Ambiguous (another launch within the tolerance): {}", report.ambiguous)?;
        writeln!(
            out,
            "Doubtful (clocks {} ns apart, gaps {} ns): {}",
            report.clock_distance, report.median_gap, report.doubtful
        )?;
    }
    Ok(())
}
