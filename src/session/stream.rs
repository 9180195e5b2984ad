//! The outputs that are written while the application runs, since they grow with it: the recording and
//! the table of activities. The table lies under a temporary name and, like all outputs, gets its final one at
//! exit; the recording has a name that was free for all outputs when it began. What goes wrong is kept until the
//! exit: the application is not to be told in mid-run.

use std::io::{self, Write};
use std::path::Path;

use crate::capture;
use crate::control::Outputs;
use crate::error::{Error, ErrorKind, Result};
use crate::export::ActivityTable;
use crate::host::alive::Identity;
use crate::host::file::{Draft, Out};
use crate::join::{Launched, Origin, Sink};
use crate::record::{self, Activity, CorrelationId, Mark, NameId, Nanos, Row, WriterId};
use crate::settings::Output;
use crate::symbolize;

pub(super) use super::write::is_taken;
use super::write::make_folders;

/// After each flush of the tracer, and so often rows are written down.
const WRITTEN_EVERY_MS: u32 = 1200;
/// So often a name is looked for.
const MOST_NAMES: usize = 1000;

/// See the module's documentation.
pub(super) struct Streams {
    activities: Stream<ActivityTable<Out>>,
    recording: Stream<record::Writer<Out>>,
    began: Nanos,
    /// Whether the recording says who writes it, and whether it holds rows that no mark stands behind.
    is_named: bool,
    is_ahead: bool,
}

/// One such output.
enum Stream<W> {
    /// Nobody asked for it, or it is finished.
    None,
    Open(Draft, W),
    Failed(Error),
}

impl Streams {
    /// Begins those that are among `formats`.
    pub(super) fn open(outputs: &Outputs, formats: &[Output]) -> Self {
        Self {
            activities: match formats.contains(&Output::Activities) {
                true => Stream::open(draft(outputs), |out| ActivityTable::new(out, symbolize::kernel_name)),
                false => Stream::None,
            },
            recording: match formats.contains(&Output::Recording) {
                true => Stream::open(in_place(outputs, formats), |out| {
                    let mut writer = record::Writer::new(out)?;
                    // Also what a process leaves that is killed at once is a recording.
                    writer.flush()?;
                    Ok(writer)
                }),
                false => Stream::None,
            },
            began: capture::now(),
            is_named: false,
            is_ahead: false,
        }
    }

    /// Where the recording is, which has a name already.
    pub(super) fn recording(&self) -> Option<&Path> {
        match &self.recording {
            Stream::Open(draft, _) => Some(draft.path()),
            _ => None,
        }
    }

    /// Takes a row of any kind, before the join does.
    pub(super) fn row(&mut self, row: &Row<'_>) {
        if let Stream::Open(_, table) = &mut self.activities {
            table.row(row);
        }
        if let Stream::Open(_, writer) = &mut self.recording {
            self.is_ahead = true;
            if let Err(error) = writer.row(row) {
                self.recording = Stream::Failed(error);
            }
        }
    }

    /// Has the recording hold all that it was told so far, for whoever reads what a killed process leaves. To be called
    /// on the thread that does so; `open` launches have no activity yet.
    pub(super) fn flush(&mut self, open: u64) {
        let Stream::Open(_, writer) = &mut self.recording else { return };
        if !std::mem::take(&mut self.is_ahead) {
            return;
        }
        let is_named = std::mem::replace(&mut self.is_named, true);
        let named = if is_named { Ok(()) } else { writer.writer(&this_thread()) };
        let mark = Mark { began: self.began, time: capture::now(), interval_ms: WRITTEN_EVERY_MS, open };
        if let Err(error) = named.and_then(|()| writer.mark(&mark)).and_then(|()| writer.flush()) {
            self.recording = Stream::Failed(error);
        }
    }

    /// Forgets the names of kernels but those that `keep` names.
    pub(super) fn keep_kernels(&mut self, keep: impl Fn(NameId) -> bool) {
        if let Stream::Open(_, table) = &mut self.activities {
            table.keep_kernels(keep);
        }
    }

    /// Ends `output` and gives it its name.
    pub(super) fn publish(&mut self, output: Output, path: &Path) -> Result<()> {
        match output {
            Output::Activities => self.activities.publish(path, ActivityTable::finish),
            _ => self.recording.publish(path, record::Writer::finish),
        }
    }

    /// Has `write` add to the table, if there is one. A table that fails goes at once: what it has written
    /// so far takes room that the other outputs need.
    fn table(&mut self, write: impl FnOnce(&mut ActivityTable<Out>)) {
        let Stream::Open(_, table) = &mut self.activities else { return };
        write(table);
        if let Some(error) = table.failure() {
            self.activities = Stream::Failed(error);
        }
    }
}

/// Who writes, as recordings say it.
pub(super) fn this_thread() -> WriterId {
    let Identity { process, thread, started, namespace, boot } = Identity::of_this_thread();
    WriterId { process, thread, started, namespace, boot }
}

/// A temporary file for the table.
fn draft(outputs: &Outputs) -> Result<Draft> {
    let (names, _) = outputs.choose(&[&Output::Activities.suffix()], |_| false);
    make_folders(&names[0])?;
    Ok(Draft::create(&names[0])?)
}

/// A recording under a name whose number no output has. Another process may be quicker.
fn in_place(outputs: &Outputs, formats: &[Output]) -> Result<Draft> {
    free_name(outputs, formats, Draft::create_in_place)
}

/// What `take` makes of a name for the recording, whose number no output has and that nobody has taken meanwhile.
pub(super) fn free_name<T>(
    outputs: &Outputs,
    formats: &[Output],
    mut take: impl FnMut(&Path) -> io::Result<T>,
) -> Result<T> {
    let suffixes: Vec<_> = formats.iter().map(|output| output.suffix()).collect();
    let suffixes: Vec<_> = suffixes.iter().map(String::as_str).collect();
    for _ in 0..MOST_NAMES {
        let (names, _) = outputs.choose(&suffixes, is_taken);
        let own = formats.iter().zip(&names).find(|(output, _)| **output == Output::Recording);
        let Some((_, path)) = own else { break };
        make_folders(path)?;
        match take(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            taken => return Ok(taken?),
        }
    }
    Err(Error::new(ErrorKind::Io, "every name for it is taken"))
}

impl<W> Stream<W> {
    fn open(draft: Result<Draft>, begin: impl FnOnce(Out) -> Result<W>) -> Self {
        let opened = draft.and_then(|mut draft| {
            let begun = begin(draft.out())?;
            Ok((draft, begun))
        });
        match opened {
            Ok((draft, writer)) => Self::Open(draft, writer),
            Err(error) => Self::Failed(error),
        }
    }

    fn publish(&mut self, path: &Path, end: impl FnOnce(W) -> Result<Out>) -> Result<()> {
        match std::mem::replace(self, Self::None) {
            Self::Open(draft, writer) => {
                end(writer)?.flush()?;
                // The program may have chosen another folder since it was begun.
                make_folders(path)?;
                Ok(draft.publish_as(path)?)
            }
            Self::Failed(error) => Err(error),
            Self::None => Err(Error::new(ErrorKind::State, "it was never opened")),
        }
    }
}

impl Sink for Streams {
    fn activity(&mut self, activity: &Activity, origin: Origin) {
        self.table(|table| table.activity(activity, origin));
    }

    fn pending(&mut self, id: CorrelationId, launched: Launched) {
        self.table(|table| table.pending(id, launched));
    }
}
