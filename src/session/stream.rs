//! The outputs that are written while the application runs, since they grow with it: the recording and
//! the table of activities. They lie under temporary names and, like all outputs, get their final ones
//! at exit. What goes wrong is kept until then: the application is not to be told in mid-run.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use crate::control::Outputs;
use crate::error::{Error, ErrorKind, Result};
use crate::export::ActivityTable;
use crate::host::file::Draft;
use crate::join::{Launched, Origin, Sink};
use crate::record::{self, Activity, CorrelationId, Row};
use crate::settings::Output;
use crate::symbolize;

use super::write::make_folders;

/// See the module's documentation.
pub(super) struct Streams {
    activities: Stream<ActivityTable<BufWriter<File>>>,
    recording: Stream<record::Writer<BufWriter<File>>>,
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
            activities: Stream::open(outputs, formats, Output::Activities, |file| {
                ActivityTable::new(file, symbolize::kernel_name)
            }),
            recording: Stream::open(outputs, formats, Output::Recording, record::Writer::new),
        }
    }

    /// Takes a row of any kind, before the join does.
    pub(super) fn row(&mut self, row: &Row<'_>) {
        if let Stream::Open(_, table) = &mut self.activities {
            table.row(row);
        }
        if let Stream::Open(_, writer) = &mut self.recording
            && let Err(error) = writer.row(row)
        {
            self.recording = Stream::Failed(error);
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
    fn table(&mut self, write: impl FnOnce(&mut ActivityTable<BufWriter<File>>)) {
        let Stream::Open(_, table) = &mut self.activities else { return };
        write(table);
        if let Some(error) = table.failure() {
            self.activities = Stream::Failed(error);
        }
    }
}

impl<W> Stream<W> {
    fn open(
        outputs: &Outputs,
        formats: &[Output],
        output: Output,
        begin: impl FnOnce(BufWriter<File>) -> Result<W>,
    ) -> Self {
        if !formats.contains(&output) {
            return Self::None;
        }
        let (names, _) = outputs.choose(&[&output.suffix()], |_| false);
        let opened = make_folders(&names[0]).and_then(|()| {
            let draft = Draft::create(&names[0])?;
            let file = BufWriter::with_capacity(1 << 16, draft.file().try_clone()?);
            Ok((draft, begin(file)?))
        });
        match opened {
            Ok((draft, writer)) => Self::Open(draft, writer),
            Err(error) => Self::Failed(error),
        }
    }

    fn publish(&mut self, path: &Path, end: impl FnOnce(W) -> Result<BufWriter<File>>) -> Result<()> {
        match std::mem::replace(self, Self::None) {
            Self::Open(draft, writer) => {
                end(writer)?.flush()?;
                Ok(draft.publish_as(path)?)
            }
            Self::Failed(error) => Err(error),
            Self::None => Err(Error::new(ErrorKind::State, "it was not begun")),
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
