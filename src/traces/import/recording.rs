//! Reads gpuflame's recordings, including recordings that are incomplete. A damaged row is reported and skipped. In a
//! truncated recording, all rows before the truncation are read. A missing end row is reported as well.

use super::{Opened, Options};
use gpuflame_model::error::{Error, ErrorKind, Result};
use gpuflame_model::record::{CheckpointMark, Reader, RecordingState, Row, WriterId};

/// Properties of a recording, in addition to its rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordingSummary {
    /// Number of rows that could not be read because they are damaged.
    pub damaged: u64,
    /// Number of rows that were skipped because only later versions of gpuflame know their kind.
    pub skipped: u64,
    /// Whether the recording contains sums instead of single activities.
    pub has_only_sums: bool,
    /// Whether the recording contains the sums of a process that has exited and has written its output files.
    pub is_finished: bool,
    /// State of the process that wrote the recording. The field is `None` if the recording has an end row and is
    /// therefore complete.
    pub writer_state: Option<WriterState>,
}

/// State of a process whose recording has no end row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriterState {
    /// The process no longer exists.
    Gone,
    /// The process is still running.
    Alive,
    /// It is unknown whether the process exists, for example because it runs on another machine.
    Unknown,
    /// The process ran out of memory, and recording stopped while the process continued.
    OutOfMemory,
    /// The process has exited, but could not write its output files.
    OutputsFailed,
}

/// Calls `each` with every row of a recording, and calls `remark` with an error for each row that cannot be read.
/// `is_alive` returns whether the thread that writes the recording is still running, or `None` if this is unknown.
///
/// # Errors `Io`; `Format` if no row can be read.
pub fn recording(
    opened: Opened,
    options: &Options,
    is_alive: fn(&WriterId) -> Option<bool>,
    remark: &mut dyn FnMut(Error),
    each: &mut dyn FnMut(&Row<'_>),
) -> Result<RecordingSummary> {
    // Another thread may decompress the bytes, but the current thread calls `each`.
    opened.bytes(options, |input| {
        let mut reader = Reader::new(input)?;
        let mut damaged = 0;
        loop {
            match reader.next_row() {
                Ok(Some(row)) => each(&row),
                Ok(None) => break,
                Err(error) if error.kind() == ErrorKind::Format => {
                    damaged += 1;
                    remark(error);
                }
                Err(error) => return Err(error),
            }
        }
        let state = reader.state();
        if state.finished && !reader.is_complete() {
            damaged += 1;
            remark(Error::new(
                ErrorKind::Format,
                "its process exited normally, but the end of the file is missing",
            ));
        }
        let is_unfinished = !reader.is_complete() && !state.finished;
        let writer_state = is_unfinished.then(|| match reader.is_memory_exhausted() {
            true => WriterState::OutOfMemory,
            false if state.exited => WriterState::OutputsFailed,
            false => match reader.writer().and_then(is_alive) {
                Some(true) => WriterState::Alive,
                Some(false) => WriterState::Gone,
                None => WriterState::Unknown,
            },
        });
        if let Some(writer_state) = writer_state.filter(|_| damaged == 0 || reader.mark().is_some()) {
            let sentence = describe_missing(writer_state, reader.mark(), state);
            remark(Error::new(ErrorKind::Format, sentence));
        }
        Ok(RecordingSummary {
            damaged,
            skipped: reader.skipped(),
            has_only_sums: reader.has_sums(),
            is_finished: state.finished,
            writer_state,
        })
    })
}

/// Returns a sentence that explains to the user which data are missing. The process may have ended long after the last
/// checkpoint mark, because the process does not write data again that have not changed. A process that cannot write to
/// the file system cannot store this fact in the recording either. Such a process has printed a message instead.
fn describe_missing(
    writer_state: WriterState,
    mark: Option<&CheckpointMark>,
    RecordingState { missed_mark, exited, .. }: RecordingState,
) -> String {
    let after = mark.map(|mark| format!("after {:.1} s", mark.time.since(mark.began) as f64 / 1e9));
    let later = after.as_ref().map(|after| format!(", {after} or later")).unwrap_or_default();
    let held = match mark {
        Some(CheckpointMark { open, .. }) => format!("{open} activities that CUPTI still held"),
        None => "activities that CUPTI had not handed over".to_owned(),
    };
    let last = match mark {
        Some(_) if missed_mark => {
            format!("the file could no longer be written: everything after that, and {held}, are missing")
        }
        Some(CheckpointMark { open: 0, .. }) if exited => "all launches are in the file".to_owned(),
        Some(_) if exited => format!("{held} are missing"),
        Some(mark) => {
            let seconds = f64::from(mark.interval_ms) / 1e3;
            format!(
                "at most the last {seconds} s, and {held}, are missing, unless it printed that checkpoints stop"
            )
        }
        None => format!("launches of the last second, and {held}, are missing"),
    };
    match (writer_state, after) {
        (WriterState::Alive, Some(after)) if missed_mark => {
            format!(
                "its process is still running; this is its state {after}, when the file could no longer be written"
            )
        }
        (WriterState::Alive, Some(after)) => {
            format!("its process is still running; this is its state {after}")
        }
        (WriterState::OutputsFailed, _) => {
            format!("its process exited but could not write its files{later}; {last}")
        }
        (WriterState::Gone, Some(_)) => format!("its process ended without its exit hooks{later}; {last}"),
        (WriterState::Unknown, Some(_)) => {
            format!("its process ended without its exit hooks, or is still running elsewhere{later}; {last}")
        }
        (WriterState::Gone | WriterState::Alive | WriterState::Unknown, None) => {
            format!("its process was killed, or is still running: {last}")
        }
        (WriterState::OutOfMemory, _) => format!(
            "recording stopped for lack of memory{later}, while its process continued: everything after that, and \
             {held}, are missing"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuflame_model::record::Nanos;

    #[test]
    fn the_sentence_names_the_missing_part_of_an_unfinished_recording() {
        let mark =
            CheckpointMark { began: Nanos(1_000), time: Nanos(12_345_000_000), interval_ms: 1500, open: 7 };
        let [on_time, late, over] = [(false, false), (true, false), (false, true)]
            .map(|(missed_mark, exited)| RecordingState { missed_mark, exited, finished: false });
        let describe = |writer_state, state| describe_missing(writer_state, Some(&mark), state);
        assert_eq!(
            describe(WriterState::Gone, on_time),
            "its process ended without its exit hooks, after 12.3 s or later; at most the last 1.5 s, and 7 \
             activities that CUPTI still held, are missing, unless it printed that checkpoints stop"
        );
        assert_eq!(
            describe(WriterState::Gone, late),
            "its process ended without its exit hooks, after 12.3 s or later; the file could no longer be written: \
             everything after that, and 7 activities that CUPTI still held, are missing"
        );
        assert_eq!(
            describe(WriterState::Alive, on_time),
            "its process is still running; this is its state after 12.3 s"
        );
        assert_eq!(
            describe(WriterState::Alive, late),
            "its process is still running; this is its state after 12.3 s, when the file could no longer be written"
        );
        assert_eq!(
            describe(WriterState::OutOfMemory, on_time),
            "recording stopped for lack of memory, after 12.3 s or later, while its process continued: everything \
             after that, and 7 activities that CUPTI still held, are missing"
        );
        assert_eq!(
            describe(WriterState::OutputsFailed, over),
            "its process exited but could not write its files, after 12.3 s or later; 7 activities that CUPTI still \
             held are missing"
        );
        assert_eq!(
            describe_missing(WriterState::OutputsFailed, Some(&CheckpointMark { open: 0, ..mark }), over),
            "its process exited but could not write its files, after 12.3 s or later; all launches are in the \
             file"
        );
        assert_eq!(
            describe(WriterState::OutputsFailed, RecordingState { missed_mark: true, ..over }),
            "its process exited but could not write its files, after 12.3 s or later; the file could no longer be \
             written: everything after that, and 7 activities that CUPTI still held, are missing"
        );
        assert!(describe(WriterState::Unknown, on_time).contains("or is still running elsewhere"));
    }
}
