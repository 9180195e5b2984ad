//! Writes a timeline with additional tracks, for `gpuflame convert --to perfetto` with `--critical-path` or `--states`.

use super::console::Console;
use super::explain::explain;
use super::found_path::{FoundPath, print_remarks};
use super::input::Source;
use super::output::Target;
use super::path_track::path_track;
use super::state_tracks::StateBands;
use gpuflame_explain::events::JoinedRows;
use gpuflame_model::error::Result;
use gpuflame_model::profile::Profile;
use gpuflame_offline::analysis::{HostHistoryRows, InstructionRows, StreamRows};
use gpuflame_offline::formats::write_perfetto_with_tracks;
use gpuflame_offline::run::ReadOptions;

/// Tracks to add to the timeline.
#[derive(Clone, Copy, Debug)]
pub(super) struct AddedTracks {
    /// Whether to add a track with the critical path.
    pub(super) path: bool,
    /// Whether to add one track per stream with the stream's states.
    pub(super) states: bool,
}

impl AddedTracks {
    /// Reads `input`, and writes it in Perfetto's format with the selected tracks.
    pub(super) fn write(
        self,
        input: &Source,
        output: &Target,
        options: &ReadOptions,
        console: Console,
    ) -> Result<()> {
        let mut events = JoinedRows::default();
        let mut path_rows = self.path.then(InstructionRows::default);
        let mut stream_rows = self.states.then(StreamRows::with_culprits);
        let mut history = self.path.then(HostHistoryRows::default);
        let sinks = (&mut events, ((&mut path_rows, &mut history), &mut stream_rows));
        let options =
            &ReadOptions { between_launches: if self.path { usize::MAX } else { 0 }, ..options.clone() };
        let explained = explain(input, options, console, sinks)?;
        if let Some(linked) = &explained.facts.linked {
            events.set_source_ids(linked.file_ids.to_vec());
        }
        explained.facts.require_work(input)?;
        explained.facts.require_rows(input)?;
        events.sort();
        let bands =
            |profile: &Profile| stream_rows.map(|rows| StateBands::new(rows, input, profile)).transpose();
        if let Some((rows, history)) = path_rows.zip(history) {
            let found = FoundPath::new(input, explained, rows)?.with_host_stacks(history);
            print_remarks(input, &found, console);
            let profile = &found.explained.profile;
            let bands = bands(profile)?;
            let states = bands.iter().flat_map(|bands| bands.tracks(profile));
            let tracks = [path_track(&found)].into_iter().chain(states).collect();
            return output.write(console, |out| write_perfetto_with_tracks(profile, &events, tracks, out));
        }
        let bands = bands(&explained.profile)?;
        let tracks = bands.iter().flat_map(|bands| bands.tracks(&explained.profile)).collect();
        output.write(console, |out| write_perfetto_with_tracks(&explained.profile, &events, tracks, out))
    }
}
