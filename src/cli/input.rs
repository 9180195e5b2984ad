//! Opens what a verb is to read, says what is wrong with it in words that help, and shows how far it is.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::console::{Console, usage};
use super::report::grouped;
use crate::error::{Error, ErrorKind, Result};
use crate::import::{
    self, CaptureCoverage, Kind, LinkReport, Opened, Options, ReadCounts, RecordingSummary, WriterState,
};
use crate::profile::human;
use crate::record::{Row, WindowEdge};
use crate::run::ReadOptions;

/// Files smaller than this are read before anybody could look at a bar.
const LONG: u64 = 32 << 20;
/// So many categories that are not known are named.
const MOST_CATEGORIES: usize = 5;
/// So many remarks about a damaged file are made one by one.
const REMARKS: u64 = 3;

/// What a verb reads.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Source {
    /// `-`.
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

/// What was found while reading, beside the rows.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    /// What the source is.
    pub(super) kind: Kind,
    /// Records of a recording that could not be read.
    pub(super) damaged: u64,
    /// Whether a recording has sums in the place of single activities.
    pub(super) is_of_sums: bool,
    /// What became of the process of a recording that has not come to its end.
    pub(super) writer_state: Option<WriterState>,
    /// How well a trace of another tool is linked.
    pub(super) linked: Option<LinkReport>,
    /// Steps of a trace, windows of a recording.
    pub(super) steps: u64,
    /// When they began and ended.
    pub(super) step_times: Vec<(u64, u64)>,
}

impl Facts {
    /// Refuses a recording that has only sums, for a verb that looks at single activities.
    ///
    /// # Errors
    /// `Format`.
    pub(super) fn need_rows(&self, source: &Source) -> Result<()> {
        if self.is_of_sums { Err(sums_only(source)) } else { Ok(()) }
    }

    /// Refuses a trace without GPU work, of which there is nothing to show.
    ///
    /// # Errors
    /// `Format`, with the categories that it has in its place.
    pub(super) fn need_work(&self, source: &Source) -> Result<()> {
        let Some(linked) = self.linked.as_ref().filter(|linked| linked.ops == 0) else { return Ok(()) };
        let names: Vec<_> =
            linked.unknown_categories.iter().take(MOST_CATEGORIES).map(|(name, _)| name.as_str()).collect();
        let found = match names.is_empty() {
            true => "all of its events are the CPU's".to_owned(),
            false => format!("of its categories these are not known here: {}", names.join(", ")),
        };
        let untimed = match linked.counts.untimed {
            0 => String::new(),
            count => format!(", and {} events have no usable times", grouped(count)),
        };
        let what = format!(
            "{source}: no GPU work is in it (categories such as kernel, gpu_memcpy, gpu_memset); {found}{untimed}; \
             `gpuflame info` says what there is"
        );
        Err(Error::new(ErrorKind::Format, what))
    }
}

impl Source {
    /// Calls `each` with every row of it, `opened`. What is damaged in a recording is remarked upon.
    ///
    /// # Errors
    /// `Io` or `Format`, with what, where and what next, if there is nothing to be had.
    pub(super) fn rows(
        &self,
        opened: Opened,
        reading: &ReadOptions,
        console: Console,
        each: &mut dyn FnMut(&Row<'_>),
    ) -> Result<Facts> {
        let kind = opened.kind();
        let (options, _bar) = watched(
            Options {
                backward_under_forward: reading.backward_under_forward,
                graph_captures: reading.graph_captures.clone(),
                accept_cut: console.accept_cut,
                ..Options::default()
            },
            &opened,
            console,
        );
        if kind == Kind::Recording {
            let (mut steps, mut opened_at, mut step_times) = (0, None, Vec::new());
            let RecordingSummary { damaged, is_of_sums, writer_state, .. } =
                self.recording(opened, &options, console, &mut |row| {
                    match row {
                        Row::Window { edge: WindowEdge::Open, time } => opened_at = Some(time.0),
                        Row::Window { edge: WindowEdge::Close, time } => {
                            steps += 1;
                            step_times.extend(opened_at.take().map(|from| (from, time.0)));
                        }
                        _ => {}
                    }
                    each(row);
                })?;
            return Ok(Facts { kind, damaged, is_of_sums, writer_state, linked: None, steps, step_times });
        }
        let linked = import::rows(opened, &options, each)?;
        remark_on(self, &linked.counts, console);
        if linked.linked_ops < linked.ops {
            console.remark(format!("{self}: {}", unlinked(&linked)));
        }
        if let Some((backward, attributed)) = linked.backward_ns {
            console.remark(format!("{self}: {}", backward_pass(backward, attributed, linked.gpu_ns)));
        }
        if let Some(coverage) = linked.capture_coverage {
            console.remark(format!("{self}: {}", captured(coverage)));
        }
        let (steps, step_times) = (linked.steps, linked.step_times.clone());
        let (is_of_sums, writer_state) = (false, None);
        Ok(Facts { kind, damaged: 0, is_of_sums, writer_state, linked: Some(linked), steps, step_times })
    }

    /// Opens it, of whatever kind it is.
    pub(super) fn open(&self) -> Result<Opened> {
        match self {
            Self::Stdin if io::stdin().is_terminal() => {
                Err(usage("standard input is a terminal; pipe a recording or a trace in, or name a file"))
            }
            Self::Stdin => import::open(Path::new("-")),
            Self::File(path) => {
                check(path)?;
                import::open(path)
            }
        }
    }

    /// Calls `each` with every row of a recording that was opened. The first few that are damaged are remarked upon.
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
            if remarks <= REMARKS {
                console.remark(error.within(self));
            }
        };
        let recorded = import::recording(opened, options, &mut remark, each);
        let recorded = recorded.map_err(|error| error.within(self))?;
        let RecordingSummary { damaged, skipped, .. } = recorded;
        if damaged > REMARKS {
            console.remark(format!("{self}: {} more records are damaged", damaged - REMARKS));
        }
        if skipped > 0 {
            console.remark(format!(
                "{self}: passed over {skipped} rows of a kind that only later versions know"
            ));
        }
        Ok(recorded)
    }
}

/// What a verb says that wants single activities.
pub(super) fn sums_only(source: &Source) -> Error {
    let what = "has only sums, since its process did not end in the ordinary way: single activities are in recordings \
                that were asked for (GPUFLAME_FORMATS=gfr); flamegraph, top, info, check, merge-ranks and recover read \
                this one, and convert into formats of sums";
    Error::new(ErrorKind::Format, format!("{source}: {what}"))
}

/// What is odd about a trace, and no failure.
pub(super) fn remark_on(source: &Source, seen: &ReadCounts, console: Console) {
    if let Some(at) = seen.truncated_at {
        console.remark(format!("{source}: cut short behind byte {at}; read {} whole events", seen.events));
    }
    if seen.untimed > 0 {
        console.remark(format!("{source}: passed over {} events without usable times", seen.untimed));
    }
}

/// How much of what a backward pass launched hangs under the forward pass, of so much GPU time in all.
pub(super) fn backward_pass(backward: u64, attributed: u64, all: u64) -> String {
    let share = 100.0 * attributed as f64 / backward.max(1) as f64;
    let all = 100.0 * backward as f64 / all.max(1) as f64;
    format!(
        "{share:.1} % of the GPU time of backward operators hangs under the forward ones; all of theirs is {all:.1} % of the \
         GPU time"
    )
}

/// How much of what graphs launched hangs under the stacks that captured it.
fn captured(coverage: CaptureCoverage) -> String {
    let share = |nanos: u64| 100.0 * nanos as f64 / coverage.total.max(1) as f64;
    let mut text = match coverage.total {
        0 => "no graph is launched in it".to_owned(),
        all => format!(
            "{:.1} % of the {} of graphs hang under the stacks that captured them",
            share(coverage.attributed),
            human(all)
        ),
    };
    if coverage.guessed > 0 {
        let _ = write!(
            text,
            ", {:.1} % of these no more than guessed by count",
            100.0 * coverage.guessed as f64 / coverage.attributed as f64
        );
    }
    if coverage.ambiguous > 0 {
        let _ = write!(
            text,
            "; {:.1} % fit more than one captured call, and are tied to none",
            share(coverage.ambiguous)
        );
    }
    text
}

/// How much of a trace hangs under no call, and why.
fn unlinked(linked: &LinkReport) -> String {
    let share = 100.0 * (linked.gpu_ns - linked.linked_gpu_ns) as f64 / linked.gpu_ns.max(1) as f64;
    format!(
        "{} of {} GPU operations ({share:.1} % of the GPU time) have no launch in the trace; {} of them were \
         launched before it began",
        grouped(linked.ops - linked.linked_ops),
        grouped(linked.ops),
        grouped(linked.launched_before_trace)
    )
}

/// What can be said about a path that is no file to read.
fn check(path: &Path) -> Result<()> {
    let refuse = |what: &str| Error::new(ErrorKind::Io, format!("{}: {what}", path.display()));
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => Err(refuse("is a folder; name a file in it")),
        // A pipe can be opened only once.
        Ok(metadata) if !metadata.is_file() => Ok(()),
        Ok(_) => match std::fs::File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                Err(refuse("may not be read by this user; look at its owner and mode"))
            }
            Err(error) => Err(refuse(&error.to_string())),
            Ok(_) => Ok(()),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(refuse("no such file; name a recording (`gpuflame run --formats gfr` makes one) or a trace"))
        }
        Err(error) => Err(refuse(&error.to_string())),
    }
}

/// A bar that is there while it lives.
pub(super) struct Bar(ProgressBar);

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// `options` with a bar on a terminal, where reading takes long enough to be watched.
pub(super) fn watched(options: Options, opened: &Opened, console: Console) -> (Options, Option<Bar>) {
    let bytes = opened.size().unwrap_or(0);
    if !console.shows_progress() || bytes < LONG || !io::stderr().is_terminal() {
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
    (Options { progress: Some(read), ..options }, Some(Bar(bar)))
}
