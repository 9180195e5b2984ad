//! Opens the input files of a verb, explains errors in these files, and shows the progress of reading.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::console::{Console, usage_error};
use super::near_misses::{near_misses, quoted};
use super::step_threads::StepThreads;
use super::table_output::group_digits;
use gpuflame_explain::events::JoinedRows;
use gpuflame_model::error::{Error, ErrorKind, Result};
use gpuflame_model::profile::format_nanos;
use gpuflame_model::record::{Provenance, Row, StepSpans};
use gpuflame_offline::analysis::{HostStates, InstructionRows};
use gpuflame_offline::run::ReadOptions;
use gpuflame_traces::import::{
    self, CaptureCoverage, Kind, LinkReport, MAX_RENUMBERED_DEVICES, Opened, Options, ReadCounts,
    RecordingSummary, WriterState,
};

/// Minimum file size in bytes for a progress bar. Smaller files are read before a user could notice the bar.
const MIN_PROGRESS_BYTES: u64 = 32 << 20;
/// Maximum number of unknown categories of trace events that a message lists.
const MAX_CATEGORIES: usize = 5;
/// Maximum number of renumbered GPUs that a remark lists.
const MAX_RENUMBERED: usize = 8;
/// Maximum number of damaged rows of a recording for which a remark is printed.
const MAX_REMARKS: u64 = 3;

/// Input of a verb.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Source {
    /// Standard input, which the command line names `-`.
    Stdin,
    /// A file.
    File(PathBuf),
}

impl From<OsString> for Source {
    fn from(argument: OsString) -> Self {
        if argument == "-" { Self::Stdin } else { Self::File(argument.into()) }
    }
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Stdin => f.write_str("standard input"),
            Self::File(path) => path.display().fmt(f),
        }
    }
}

/// Facts about a source that were found while reading its rows.
#[derive(Debug)]
pub(super) struct Facts {
    /// Kind of the source, such as a recording or a trace of a certain tool.
    pub(super) kind: Kind,
    /// Number of rows of a recording that could not be read.
    pub(super) damaged: u64,
    /// Whether the source is a recording that contains sums instead of single activities.
    pub(super) has_only_sums: bool,
    /// Whether the source contains the sums of a process that exited and wrote its files.
    pub(super) is_finished: bool,
    /// State of the recorded process; `None` if the recording has an end row.
    pub(super) writer_state: Option<WriterState>,
    /// Number of GPU operations in the trace that are matched to a launch, and number of the other GPU operations.
    /// `None` if the source is a recording.
    pub(super) linked: Option<LinkReport>,
    /// Time ranges of the run's steps, or of the recording windows if the recording has no steps.
    pub(super) steps: StepSpans,
    /// Threads on which the steps ran.
    pub(super) step_threads: StepThreads,
    /// States of the host's threads, if [`ReadOptions::kernel_gaps`] requested them.
    pub(super) host_states: HostStates,
    /// Number of ranks of the job, if the source contains this number.
    pub(super) world_size: Option<u32>,
}

impl Facts {
    /// Passes the correlation ids in another tool's trace to `events`, which then shows the trace's ids instead of
    /// gpuflame's.
    pub(super) fn give_source_ids(&mut self, events: &mut JoinedRows) {
        if let Some(linked) = &mut self.linked {
            events.set_source_ids(std::mem::take(&mut linked.file_ids).to_vec());
        }
    }

    /// Passes facts about another tool's trace to `rows`: the trace's correlation ids, and the kinds of its streams.
    pub(super) fn add_to(&mut self, rows: &mut InstructionRows) {
        if let Some(linked) = &mut self.linked {
            rows.add_trace_facts(linked);
        }
    }

    /// Returns an error if the recording has only sums. Verbs that need single activities call this function.
    ///
    /// # Errors
    /// Returns `Format`.
    pub(super) fn require_rows(&self, source: &Source) -> Result<()> {
        if self.has_only_sums { Err(sums_only_error(source, self.is_finished)) } else { Ok(()) }
    }

    /// Returns an error if a trace contains no GPU work, because no verb can show anything for such a trace.
    ///
    /// # Errors
    /// Returns `Format`. The message lists the event categories that the trace contains instead.
    pub(super) fn require_work(&self, source: &Source) -> Result<()> {
        let Some(linked) = self.linked.as_ref().filter(|linked| linked.ops == 0) else { return Ok(()) };
        let names: Vec<_> =
            linked.unknown_categories.iter().take(MAX_CATEGORIES).map(|(name, _)| name.as_str()).collect();
        let (events, cpu_events) = (linked.counts.events, linked.cpu_events);
        let found = match names.is_empty() {
            true if cpu_events == events => "all of its events are CPU events".to_owned(),
            true if cpu_events == 0 => {
                format!("none of its {} events is a call, an operator or a range", group_digits(events))
            }
            true => {
                format!("{} of its {} events are CPU events", group_digits(cpu_events), group_digits(events))
            }
            false => format!("unknown categories: {}", names.join(", ")),
        };
        let untimed = match linked.counts.untimed {
            0 => String::new(),
            count => format!("; {} events have no usable times", group_digits(count)),
        };
        let launches = match linked.launches_without_op {
            0 => String::new(),
            count => {
                format!("; {} launches have none: the profiler did not record the GPU", group_digits(count))
            }
        };
        let what = format!(
            "{source}: contains no GPU work (categories such as kernel, gpu_memcpy, gpu_memset); \
             {found}{untimed}{launches}; `gpuflame info` shows the contents"
        );
        Err(Error::new(ErrorKind::Format, what))
    }
}

impl Source {
    /// Calls `each` with every row of this source. `opened` is this source after it was opened. Prints a remark if a
    /// recording is damaged.
    ///
    /// # Errors
    /// Returns `Io` or `Format` if nothing can be read. The message of the error states the failure, its location and
    /// the next step for the user.
    pub(super) fn rows(
        &self,
        opened: Opened,
        reading: &ReadOptions,
        console: Console,
        each: &mut dyn FnMut(&Row<'_>),
    ) -> Result<Facts> {
        let (kind, world_size) = (opened.kind(), opened.world_size());
        let (options, _bar) = with_progress(
            Options {
                backward_under_forward: reading.backward_under_forward,
                kernel_gaps: reading.kernel_gaps,
                between_launches: reading.between_launches,
                without_thread_states: reading.without_host_states,
                ranges: reading.ranges,
                graph_captures: reading.graph_captures.clone(),
                accept_cut: console.accept_cut,
                ..Options::default()
            },
            &opened,
            console,
        );
        let (mut steps, mut host_states) = (StepSpans::default(), HostStates::default());
        let mut step_threads = StepThreads::default();
        let each: &mut dyn FnMut(&Row<'_>) = &mut |row| {
            steps.add_row(row);
            step_threads.add_row(row);
            if reading.kernel_gaps {
                host_states.row(row);
            }
            each(row);
        };
        if kind == Kind::Recording {
            let mut world_size = None;
            let RecordingSummary { damaged, has_only_sums, is_finished, writer_state, .. } =
                self.recording(opened, &options, console, &mut |row| {
                    if let Row::Provenance { what: Provenance::WORLD_SIZE, text } = row {
                        world_size = text.parse().ok().filter(|size| *size > 0);
                    }
                    each(row);
                })?;
            return Ok(Facts {
                kind,
                damaged,
                has_only_sums,
                is_finished,
                writer_state,
                linked: None,
                steps,
                step_threads,
                host_states,
                world_size,
            });
        }
        let linked = import::rows(opened, &options, each)?;
        print_remarks(self, &linked.counts, console);
        remark_on_links(self, &linked, console);
        if linked.linked_ops < linked.ops {
            console.remark(format!("{self}: {}", describe_unlinked(&linked)));
        }
        if let Some((backward, attributed)) = linked.backward_ns {
            console
                .remark(format!("{self}: {}", describe_backward_pass(backward, attributed, linked.gpu_ns)));
        }
        if let Some(coverage) = linked.capture_coverage {
            console.remark(format!("{self}: {}", describe_captures(coverage)));
        }
        let (has_only_sums, writer_state) = (false, None);
        let is_finished = false;
        Ok(Facts {
            kind,
            damaged: 0,
            has_only_sums,
            is_finished,
            writer_state,
            linked: Some(linked),
            steps,
            step_threads,
            host_states,
            world_size,
        })
    }

    /// Passes the trace events of this source, which must be a trace, to `sink`. `opened` is this source after it was
    /// opened.
    ///
    /// # Errors
    /// Returns `Io` or `Format` if nothing can be read.
    pub(super) fn events(
        &self,
        opened: Opened,
        console: Console,
        sink: &mut impl import::Sink,
    ) -> Result<()> {
        let options = Options { accept_cut: console.accept_cut, ..Options::default() };
        let (options, _bar) = with_progress(options, &opened, console);
        let counts = opened.read(&options, sink)?;
        // Trace events without usable times are passed to `sink` too, so they are not reported as skipped.
        print_remarks(self, &ReadCounts { untimed: 0, ..counts }, console);
        Ok(())
    }

    /// Opens the source, which may be of any kind.
    pub(super) fn open(&self) -> Result<Opened> {
        match self {
            Self::Stdin if io::stdin().is_terminal() => Err(usage_error(
                "standard input is a terminal; pipe a recording or trace into it, or name a file",
            )),
            Self::Stdin => import::open(Path::new("-")),
            Self::File(path) => {
                check_readable(path)?;
                import::open(path)
            }
        }
    }

    /// Calls `each` with every row of an open recording. Prints remarks on the first few damaged rows of the recording.
    pub(super) fn recording(
        &self,
        opened: Opened,
        options: &Options,
        console: Console,
        each: &mut dyn FnMut(&Row<'_>),
    ) -> Result<RecordingSummary> {
        let mut remarks = 0;
        let mut remark = |error: Error| {
            remarks += 1;
            if remarks <= MAX_REMARKS {
                console.remark(error.within(self));
            }
        };
        let is_alive = gpuflame_offline::run::is_writer_alive;
        let recorded = import::recording(opened, options, is_alive, &mut remark, each);
        let recorded = recorded.map_err(|error| error.within(self))?;
        let RecordingSummary { damaged, skipped, .. } = recorded;
        if damaged > MAX_REMARKS {
            console.remark(format!("{self}: {} more records are damaged", damaged - MAX_REMARKS));
        }
        if skipped > 0 {
            console.remark(format!(
                "{self}: skipped {skipped} rows of kinds that only newer versions of gpuflame can read"
            ));
        }
        Ok(recorded)
    }
}

/// Returns the error for a recording that has only sums. `is_finished` is whether the recorded process exited and wrote
/// its files.
pub(super) fn sums_only_error(source: &Source, is_finished: bool) -> Error {
    let what = match is_finished {
        true => {
            "has the sums of the run, but no single activities, which are needed here; record them with \
             `gpuflame run --rows PROGRAM`"
        }
        false => {
            "has only sums, no single activities: it is the checkpoint of a process that has not exited \
             normally; summary, report, flamegraph, top, info, check, merge-ranks, recover, and `convert` to \
             formats of sums can read it; GPUFLAME_FORMATS=gfr records activities"
        }
    };
    Error::new(ErrorKind::Format, format!("{source}: {what}"))
}

/// Prints remarks on unusual properties of a trace that are not errors.
pub(super) fn print_remarks(source: &Source, seen: &ReadCounts, console: Console) {
    if let Some(at) = seen.truncated_at {
        console.remark(format!("{source}: truncated at byte {at}; read {} complete events", seen.events));
    }
    if seen.untimed > 0 {
        console.remark(format!("{source}: skipped {} events without usable times", seen.untimed));
    }
    for remark in &seen.remarks {
        console.remark(format!("{source}: {remark}"));
    }
}

/// Prints remarks on duplicate or incomplete launches and slices of a trace.
fn remark_on_links(source: &Source, linked: &LinkReport, console: Console) {
    let remark = |what: String| console.remark(format!("{source}: {what}"));
    if linked.ambiguous_ops > 0 {
        remark(format!(
            "{} GPU operations have correlation ids that several calls share, and no flow tells the right call: they \
             have no launch, and {} calls are not among the launches",
            group_digits(linked.ambiguous_ops),
            group_digits(linked.ambiguous_calls)
        ));
    }
    if linked.ordered_ops > 0 {
        remark(format!(
            "{} GPU operations have correlation ids that several launches of their thread share, so the ids do not tell \
             the launch: they are linked in order of time",
            group_digits(linked.ordered_ops)
        ));
    }
    if linked.ops_without_id > 0 {
        remark(format!(
            "{} GPU operations have neither a correlation id nor a flow from a single launch",
            group_digits(linked.ops_without_id)
        ));
    }
    let (begins, ends) = linked.unpaired_edges;
    if ends > 0 {
        let word = if ends == 1 { "end" } else { "ends" };
        remark(format!("ignored {} {word} without a begin", group_digits(ends)));
    }
    if begins > 0 {
        let word = if begins == 1 { "begin" } else { "begins" };
        remark(format!(
            "{} {word} without an end: slices last to the end of the trace, GPU work has no time",
            group_digits(begins)
        ));
    }
    if linked.crossing_slices > 0 {
        remark(format!(
            "{} slices are in no stack, because each crosses more than 64 open slices of its thread",
            group_digits(linked.crossing_slices)
        ));
    }
    if linked.unclosed_functions > 0 {
        remark(format!(
            "{} Python functions last until recording stopped, beyond their callers: they are taken to end with the first \
             slice in them",
            group_digits(linked.unclosed_functions)
        ));
    }
    for (new, old, part) in linked.renumbered_devices.iter().take(MAX_RENUMBERED) {
        remark(format!("GPU {new} is GPU {old} of `{part}`"));
    }
    if linked.renumbered_devices.len() == MAX_RENUMBERED_DEVICES {
        remark("GPUs of further parts of the file are not kept apart".to_owned());
    }
    if linked.renumbered_devices.len() > MAX_RENUMBERED {
        let more = linked.renumbered_devices.len() - MAX_RENUMBERED;
        remark(format!("{more} more GPUs have new numbers, because parts of the file use the same numbers"));
    }
}

/// Describes two shares in words: the share of the backward pass's GPU time that is attributed to the forward pass, and
/// the share of all GPU time that the backward pass takes.
pub(super) fn describe_backward_pass(backward: u64, attributed: u64, all: u64) -> String {
    let share = 100.0 * attributed as f64 / backward.max(1) as f64;
    let all = 100.0 * backward as f64 / all.max(1) as f64;
    format!(
        "{share:.1} % of the GPU time of backward operators is drawn under forward operators; backward \
         operators take {all:.1} % of all GPU time"
    )
}

/// Describes which share of the graphs' GPU time is attributed to the stacks that captured the graphs.
fn describe_captures(coverage: CaptureCoverage) -> String {
    let share = |nanos: u64| 100.0 * nanos as f64 / coverage.total.max(1) as f64;
    let mut text = match coverage.total {
        0 => "contains no work launched by graphs".to_owned(),
        all => format!(
            "{:.1} % of the graphs' GPU time ({}) is drawn under the stacks that captured the graphs",
            share(coverage.attributed),
            format_nanos(all)
        ),
    };
    if coverage.guessed > 0 {
        let _ = write!(
            text,
            ", {:.1} % of that guessed by count",
            100.0 * coverage.guessed as f64 / coverage.attributed as f64
        );
    }
    if coverage.ambiguous > 0 {
        let _ = write!(
            text,
            "; {:.1} % match several captured calls and are attributed to none",
            share(coverage.ambiguous)
        );
    }
    text
}

/// Describes which share of a trace's GPU work has no launch, and why.
fn describe_unlinked(linked: &LinkReport) -> String {
    let without_id = match linked.ops_without_id {
        0 => String::new(),
        count => format!(", {} have no correlation id", group_digits(count)),
    };
    let share = 100.0 * (linked.gpu_ns - linked.linked_gpu_ns) as f64 / linked.gpu_ns.max(1) as f64;
    format!(
        "{} of {} GPU operations ({share:.1} % of the GPU time) have no launch in the trace; {} were \
         launched before the trace began{without_id}",
        group_digits(linked.ops - linked.linked_ops),
        group_digits(linked.ops),
        group_digits(linked.launched_before_trace)
    )
}

/// Maximum number of files in a folder that are searched for similar names.
const MAX_FILES: usize = 1000;

/// Lists files in the folder of `path` whose names are similar to the name in `path`; `None` if there are no such
/// files.
fn similar_files(path: &Path) -> Option<String> {
    let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let files = std::fs::read_dir(folder.unwrap_or(Path::new("."))).ok()?.take(MAX_FILES);
    let files = files.filter_map(|file| Some(file.ok()?.path()).filter(|path| path.is_file()));
    let names: Vec<String> = files.filter_map(|path| Some(path.file_name()?.to_str()?.to_owned())).collect();
    let near = near_misses(path.file_name()?.to_str()?, names.iter().map(String::as_str));
    let paths: Vec<String> =
        near.into_iter().map(|name| path.with_file_name(name).display().to_string()).collect();
    (!paths.is_empty()).then(|| quoted(&paths.iter().map(String::as_str).collect::<Vec<_>>()))
}

/// Returns an error that explains why a path cannot be read as a file.
fn check_readable(path: &Path) -> Result<()> {
    let refuse = |what: &str| Error::new(ErrorKind::Io, format!("{}: {what}", path.display()));
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => Err(refuse(match path.extension() {
            Some(ending) if ending == "trace" => {
                "is a bundle of Instruments (xctrace), which gpuflame does not read; open it in Instruments"
            }
            _ => "is a folder; name a file in it",
        })),
        // A pipe can be opened only once, so this check does not open it.
        Ok(metadata) if !metadata.is_file() => Ok(()),
        Ok(_) => match std::fs::File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                Err(refuse("permission denied; check the file's owner and mode"))
            }
            Err(error) => Err(refuse(&error.to_string())),
            Ok(_) => Ok(()),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(refuse(&match similar_files(path).as_deref() {
                Some(similar) => format!("no such file; did you mean {similar}?"),
                None => "no such file; name a recording (`gpuflame run` makes one) or a trace".to_owned(),
            }))
        }
        Err(error) => Err(refuse(&error.to_string())),
    }
}

/// A progress bar, which is removed from the terminal when this guard is dropped.
pub(super) struct ProgressGuard(ProgressBar);

impl Drop for ProgressGuard {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// Adds a progress bar to `options`, if stderr is a terminal and the file is large.
pub(super) fn with_progress(
    options: Options,
    opened: &Opened,
    console: Console,
) -> (Options, Option<ProgressGuard>) {
    let bytes = opened.size().unwrap_or(0);
    if !console.shows_progress() || bytes < MIN_PROGRESS_BYTES || !io::stderr().is_terminal() {
        return (options, None);
    }
    let style =
        ProgressStyle::with_template("{bar:40} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left");
    let bar = ProgressBar::new(bytes).with_style(style.expect("the template is right"));
    let read = Arc::new(AtomicU64::new(0));
    let (watched, count) = (bar.clone(), Arc::clone(&read));
    std::thread::spawn(move || {
        while !watched.is_finished() {
            watched.set_position(count.load(Ordering::Relaxed));
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    (Options { progress: Some(read), ..options }, Some(ProgressGuard(bar)))
}
