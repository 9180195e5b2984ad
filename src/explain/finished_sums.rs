//! The recording of a process that has exited and stores no rows: all definitions and sums of the run. It has the layout
//! of a checkpoint, but is written once, and ends with an end row.

use std::io::Write;

use super::checkpoint_sums::sums;
use super::{Definitions, Ledger};
use gpuflame_model::error::Result;
use gpuflame_model::profile::Profile;
use gpuflame_model::record::{CheckpointMark, Chunk, Nanos, RecordingState, Row, SumsWriter, WindowEdge};

/// Maximum size in bytes of a piece of definitions that is assembled in memory.
const MAX_PIECE_BYTES: usize = 1 << 20;

/// Content of the recording.
#[derive(Clone, Copy, Debug)]
pub struct FinishedSums<'a> {
    /// Profile with the final sums.
    pub profile: &'a Profile,
    /// Ledger of the run.
    pub ledger: &'a Ledger,
    /// Rows with the functions of native frames, which [`Symbolizer::take_rows`](crate::symbolize::Symbolizer::take_rows)
    /// returned.
    pub functions: &'a [u8],
    /// Whether stacks of several threads were merged. Stacks are then written without a thread.
    pub are_threads_merged: bool,
    /// Whether the process could not write its other outputs. The recording is then one from which they can be
    /// recovered, and has no end row.
    pub outputs_failed: bool,
    /// Time of the end of recording.
    pub time: Nanos,
}

impl FinishedSums<'_> {
    /// Writes the recording.
    ///
    /// # Errors
    /// Any error of `out`.
    pub fn write(&self, out: &mut dyn Write) -> Result<()> {
        let Self { profile, ledger, functions, are_threads_merged, outputs_failed, time } = *self;
        let state =
            RecordingState { missed_mark: false, exited: outputs_failed, finished: !outputs_failed };
        out.write_all(&Chunk::header(state))?;
        out.write_all(functions)?;
        let mut chunk = Chunk::default();
        for (address, name) in profile.generated_names() {
            chunk.row(&Row::Generated { address, name });
        }
        let mut definitions = Definitions::default();
        while !definitions.write(profile, are_threads_merged, &mut chunk, MAX_PIECE_BYTES) {
            out.write_all(&chunk.take())?;
        }
        SumsWriter::default().write(&mut chunk, |each| sums(profile, ledger, profile.windows(), each));
        let opened = profile.windows().iter().find(|(edge, _)| *edge == WindowEdge::Open);
        let began = opened.map_or(time, |(_, opened)| *opened);
        chunk.mark(&CheckpointMark { began, time, interval_ms: 0, open: ledger.tally.launches.open() });
        if !outputs_failed {
            chunk.end();
        }
        Ok(out.write_all(&chunk.take())?)
    }
}
