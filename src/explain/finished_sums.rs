//! Writes the recording of a process that stored only sums and has exited. The recording contains all definitions and
//! all sums of the run. The recording has the layout of a checkpoint file, but is written only once and ends with an
//! end row.

use std::io::Write;

use super::checkpoint_sums::sums;
use super::{Definitions, Ledger};
use gpuflame_model::error::Result;
use gpuflame_model::profile::Profile;
use gpuflame_model::record::{
    CheckpointMark, Chunk, Frame, Nanos, RecordingState, Row, ThreadId, TreeStack, WindowEdge,
    write_final_sums,
};

/// Maximum size in bytes of one chunk of definitions. The limit bounds the memory for a chunk, because a chunk is
/// assembled in memory before it is written.
const MAX_PIECE_BYTES: usize = 1 << 20;

/// Data that is written to the recording of an exited process.
#[derive(Clone, Copy, Debug)]
pub struct FinishedSums<'a> {
    /// Profile with the final sums.
    pub profile: &'a Profile,
    /// Ledger of the run.
    pub ledger: &'a Ledger,
    /// Rows with the functions of native frames, which [`Symbolizer::take_rows`](crate::symbolize::Symbolizer::take_rows)
    /// returned.
    pub functions: &'a [u8],
    /// Whether equal stacks of different threads were merged. If threads are merged, stacks are written without a
    /// thread id.
    pub are_threads_merged: bool,
    /// Whether the process failed to write its outputs other than this recording. If the process failed to write its
    /// other outputs, the recording gets no end row, so that `gpuflame recover` can make these outputs from the
    /// recording.
    pub outputs_failed: bool,
    /// Time at which recording ended.
    pub time: Nanos,
}

impl FinishedSums<'_> {
    /// Writes the recording.
    ///
    /// # Errors
    /// Returns any error from writing to `out`.
    pub fn write(&self, out: &mut dyn Write) -> Result<()> {
        let Self { profile, ledger, functions, are_threads_merged, outputs_failed, time } = *self;
        let state = RecordingState { missed_mark: false, exited: outputs_failed, finished: !outputs_failed };
        out.write_all(&Chunk::header(state))?;
        out.write_all(functions)?;
        let mut chunk = Chunk::default();
        for (address, name) in profile.generated_names() {
            chunk.row(&Row::Generated { address, name });
        }
        let mut definitions = Definitions::default();
        while !definitions.write_without_contexts(profile, &mut chunk, MAX_PIECE_BYTES) {
            out.write_all(&chunk.take())?;
        }
        write_stacks(profile, are_threads_merged, &mut chunk, out)?;
        write_final_sums(&mut chunk, |each| sums(profile, ledger, profile.windows(), each));
        let opened = profile.windows().iter().find(|(edge, _)| *edge == WindowEdge::Open);
        let began = opened.map_or(time, |(_, opened)| *opened);
        chunk.mark(&CheckpointMark { began, time, interval_ms: 0, open: ledger.tally.launches.open() });
        if !outputs_failed {
            chunk.end();
        }
        Ok(out.write_all(&chunk.take())?)
    }
}

/// Writes all contexts of a profile. If threads are merged, contexts are written without a thread, as [`Definitions`]
/// does.
fn write_stacks(profile: &Profile, are_merged: bool, chunk: &mut Chunk, out: &mut dyn Write) -> Result<()> {
    for frames in profile.frames().chunks(MAX_PIECE_BYTES / size_of::<Frame>()) {
        chunk.frames(frames);
        out.write_all(&chunk.take())?;
    }
    let tree = profile.stack_tree();
    let mut nodes = tree.nodes().map(|(_, parent, frames)| (parent.index(), frames));
    while !chunk.nodes(&mut nodes, MAX_PIECE_BYTES) {
        out.write_all(&chunk.take())?;
    }
    let mut stacks = profile.all_contexts().map(|(id, context)| {
        let thread = if are_merged { ThreadId::OTHERS } else { context.thread };
        TreeStack { id, thread, flags: context.flags, node: context.stack.node().index() as u32 }
    });
    while !chunk.stacks(&mut stacks, MAX_PIECE_BYTES) {
        out.write_all(&chunk.take())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::{Explain, Options, Snapshot};
    use super::*;
    use gpuflame_model::profile::{RowFacts, StepKind, VIEWS, WorkDelays};
    use gpuflame_model::record::Reader;
    use gpuflame_model::record::testing::each_row_of_cycle;

    /// Returns all data from which outputs are made, as text.
    fn described(profile: &Profile, ledger: &Ledger) -> String {
        let samples: Vec<_> = VIEWS.iter().map(|view| profile.samples(view)).collect();
        let beside =
            (profile.works(), profile.devices(), profile.times(), profile.streams(), profile.windows());
        let delays = profile.delays().iter().map(|WorkDelays { work, device, delays }| {
            let buckets: Vec<_> = delays.histogram.buckets().collect();
            (*work, *device, buckets, delays.sum, delays.max, delays.started_before_call)
        });
        let series = profile.step_series();
        let durations =
            |kind: &StepKind| (kind.count, kind.nanos, kind.durations.buckets().collect::<Vec<_>>());
        let durations: Vec<_> = series.kinds.iter().map(durations).collect();
        let steps = (&series.groups, durations, &series.longest);
        let more = (
            profile.spreads(),
            delays.collect::<Vec<_>>(),
            profile.copies(),
            profile.row_facts(),
            profile.coverage(),
            steps,
        );
        format!("{ledger:?}\n{samples:?}\n{beside:?}\n{more:?}")
    }

    fn file(outputs_failed: bool) -> (Vec<u8>, String) {
        let mut explain = Explain::new(Options { has_squares: true, ..Options::default() });
        (0..30).for_each(|turn| each_row_of_cycle(turn, &mut |row| explain.push(row, &mut ())));
        let Snapshot { profile, ledger } = explain.finish(&[], &mut ());
        assert!(
            !profile.spreads().is_empty() && !profile.delays().is_empty() && !profile.copies().is_empty()
        );
        let series = profile.step_series();
        assert!(!series.longest.is_empty() && series.groups.iter().any(|group| group.work > 0));
        assert!(series.groups.iter().any(|group| group.coverage.launches > 0));
        assert!(profile.row_facts().is_some_and(|facts| facts != RowFacts::default()));
        let squares: u128 = profile.spreads().iter().map(|spread| spread.squares).sum();
        let bound: u128 = profile.spreads().iter().map(|spread| u128::from(spread.nanos).pow(2)).sum();
        assert!(squares > 0 && squares < bound, "{squares}");
        let mut file = Vec::new();
        let sums = FinishedSums {
            profile,
            ledger: &ledger,
            functions: &[],
            are_threads_merged: false,
            outputs_failed,
            time: Nanos(7),
        };
        sums.write(&mut file).unwrap();
        (file, described(profile, &ledger))
    }

    #[test]
    fn finished_sums_read_back_equal_the_final_result() {
        let (file, expected) = file(false);
        let (mut explain, mut reader) = (Explain::default(), Reader::new(&file[..]).unwrap());
        while let Some(row) = reader.next_row().unwrap() {
            explain.push(&row, &mut ());
        }
        assert!(reader.is_complete() && reader.state().finished && !reader.state().exited);
        let Snapshot { profile, ledger } = explain.snapshot(&[], &mut ());
        assert_eq!(described(profile, &ledger), expected);
    }

    #[test]
    fn sums_of_a_process_without_its_other_outputs_can_be_recovered() {
        let (file, _) = file(true);
        let mut reader = Reader::new(&file[..]).unwrap();
        while reader.next_row().unwrap().is_some() {}
        assert!(!reader.is_complete() && reader.state().exited && !reader.state().finished);
        assert!(reader.has_sums() && reader.mark().is_some());
    }
}
