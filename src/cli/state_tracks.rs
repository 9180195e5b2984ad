//! Converts the states of streams to slices of tracks, for `gpuflame convert --to perfetto --states`. There is one
//! track per stream. A flow leads from the work before the recording of a CUDA event to the work that waited for the
//! event.

use std::collections::BTreeMap;

use super::input::Source;
use super::states::{collective_test, no_states};
use gpuflame_export::{NameFolding, folded_names, work_name};
use gpuflame_model::error::Result;
use gpuflame_model::profile::Profile;
use gpuflame_offline::analysis::{
    Interval, State, StateCause, StateOptions, StreamKey, StreamRows, reconstruct_states,
};
use gpuflame_offline::formats::{SliceTrack, TrackSlice};

/// Name of the parent track that contains the tracks of all streams.
const GROUP: &str = "states of streams";

/// States of a run's streams, with the flows between their intervals.
pub(super) struct StateBands {
    streams: BTreeMap<StreamKey, Vec<Interval>>,
    /// Ids of the flows that begin in an interval of a stream, and ids of the flows that end in that interval.
    flows: BTreeMap<(StreamKey, usize), [Vec<u64>; 2]>,
}

impl StateBands {
    /// Reconstructs the states of all streams from `rows`.
    ///
    /// # Errors
    /// Returns `Format` if no GPU work has usable times.
    pub(super) fn new(rows: StreamRows, input: &Source, profile: &Profile) -> Result<Self> {
        let mut streams: BTreeMap<StreamKey, Vec<Interval>> = BTreeMap::new();
        let report = reconstruct_states(
            rows,
            profile,
            StateOptions::default(),
            &collective_test(profile),
            &mut |key, interval| streams.entry(key).or_default().push(*interval),
        );
        if report.is_none_or(|report| report.window.0 == report.window.1) {
            return Err(no_states(input, None));
        }
        let flows = find_flows(&streams);
        Ok(Self { streams, flows })
    }

    /// Returns one track per stream.
    pub(super) fn tracks<'a>(&'a self, profile: &'a Profile) -> impl Iterator<Item = SliceTrack<'a>> {
        self.streams.iter().map(move |(&key, intervals)| {
            let slices = intervals.iter().enumerate().map(move |(at, interval)| {
                let [flows, ending_flows] = self.flows.get(&(key, at)).cloned().unwrap_or_default();
                TrackSlice { flows, ending_flows, ..slice(profile, interval) }
            });
            let slices = Box::new(slices);
            SliceTrack { group: Some(GROUP), name: self.name(key), category: "stream_state", slices }
        })
    }

    /// Returns the name of a stream's track. The name of a stream's track contains the CUDA context only if the GPU has
    /// several contexts.
    fn name(&self, (device, context, stream): StreamKey) -> String {
        let has_contexts = self.streams.keys().any(|other| other.0 == device && other.1 != context);
        let context = if has_contexts { format!(" context {}", context.0) } else { String::new() };
        format!("GPU {}{context} stream {}", device.0, stream.0)
    }
}

/// Finds the waits for CUDA events for which the awaited work is known. The flow of a wait leads from the slice in
/// which the awaited work ended to the slice that runs next on the waiting stream.
fn find_flows(streams: &BTreeMap<StreamKey, Vec<Interval>>) -> BTreeMap<(StreamKey, usize), [Vec<u64>; 2]> {
    let mut flows: BTreeMap<(StreamKey, usize), [Vec<u64>; 2]> = BTreeMap::new();
    let mut number = 0;
    for (&key, intervals) in streams {
        for (at, waiting) in intervals.iter().enumerate() {
            let Some(source) = waiting.source else { continue };
            let Some(others) = streams.get(&source) else { continue };
            let ended = others.partition_point(|other| other.start < waiting.end).checked_sub(1);
            let ended = ended.filter(|ended| others[*ended].state == State::Running);
            let next = intervals[at..].iter().position(|next| next.state == State::Running);
            if let (Some(ended), Some(next)) = (ended, next) {
                number += 1;
                flows.entry((source, ended)).or_default()[0].push(number);
                flows.entry((key, at + next)).or_default()[1].push(number);
            }
        }
    }
    flows
}

fn slice(profile: &Profile, interval: &Interval) -> TrackSlice {
    let work = interval.work.map(|work| work_name(profile, work).into_owned());
    let mut texts = vec![("state", interval.state.word().to_owned())];
    if interval.cause != StateCause::None {
        texts.push(("cause", interval.cause.word().to_owned()));
    }
    let title = title(interval, work.as_deref());
    texts.extend(work.map(|work| ("work", work)));
    let names = NameFolding::default();
    texts.extend(interval.culprit.map(|site| ("culprit", folded_names(profile, site, names).join(";"))));
    let numbers = interval.event.map(|event| ("event", event.0.into())).into_iter().collect();
    let (start, end) = (interval.start, interval.end);
    TrackSlice { start, end, title, texts, numbers, ..TrackSlice::default() }
}

/// Returns the title of a slice. The title contains the state, and the cause, CUDA event or collective of the state.
fn title(interval: &Interval, work: Option<&str>) -> String {
    let state = interval.state.word().replace('_', " ");
    match (interval.cause, interval.event) {
        (StateCause::None, _) => state,
        (StateCause::Collective, _) => format!("waiting for {}", work.unwrap_or("a collective")),
        (StateCause::Event, Some(event)) => format!("waiting for event {}", event.0),
        (StateCause::Event, None) => "waiting for an event".to_owned(),
        (cause, _) => format!("{state}: {}", cause.word().replace('_', " ")),
    }
}
