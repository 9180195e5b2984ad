//! Tracks that an analysis adds to a timeline. The tracks contain slices, with flows between the slices.

use super::proto;
use gpuflame_export::clean;

/// A track and its slices. The slices must be sorted by time and must not overlap.
pub struct SliceTrack<'a> {
    /// Name of the track that contains this track; `None` if the track is directly below the process.
    pub group: Option<&'static str>,
    /// Name of the track.
    pub name: String,
    /// Category of the slices.
    pub category: &'static str,
    /// Slices of the track. Each slice is created only when it is written, because a run may have millions of slices.
    pub slices: Box<dyn Iterator<Item = TrackSlice> + 'a>,
}

/// A slice of a track.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrackSlice {
    /// Start in ns since 1970.
    pub start: u64,
    /// End in ns since 1970.
    pub end: u64,
    /// Title of the slice.
    pub title: String,
    /// Facts about the slice with a text value, as (name, value).
    pub texts: Vec<(&'static str, String)>,
    /// Facts about the slice with a numeric value, as (name, value).
    pub numbers: Vec<(&'static str, u64)>,
    /// Ids of the flows that begin at the slice.
    pub flows: Vec<u64>,
    /// Ids of the flows that end at the slice.
    pub ending_flows: Vec<u64>,
}

/// Track id of the process.
const PROCESS: u64 = 1;
/// Lowest id of an added track. The ids of thread tracks are below 2^32 + 2, so the two ranges of ids do not overlap.
const FIRST_TRACK: u64 = 1 << 33;

/// Assigns ids to the added tracks.
#[derive(Default)]
pub(super) struct TrackNumbers {
    used: u64,
    groups: Vec<(&'static str, u64)>,
}

impl TrackNumbers {
    fn next(&mut self) -> u64 {
        self.used += 1;
        FIRST_TRACK + self.used - 1
    }
}

/// Returns the id of a new track, and the packets that describe the track and its group.
pub(super) fn track_packets(numbers: &mut TrackNumbers, track: &SliceTrack<'_>) -> (u64, Vec<proto::Packet>) {
    let mut packets = Vec::new();
    let mut describe = |uuid: u64, name: &str, parent: u64| {
        let track = proto::Track {
            uuid: Some(uuid),
            name: Some(clean::text(name)),
            parent: Some(parent),
            ..proto::Track::default()
        };
        packets.push(proto::Packet { track: Some(track), ..proto::Packet::default() });
    };
    let parent = track.group.map_or(PROCESS, |group| {
        if let Some((_, uuid)) = numbers.groups.iter().find(|(name, _)| *name == group) {
            return *uuid;
        }
        let uuid = numbers.next();
        numbers.groups.push((group, uuid));
        describe(uuid, group, PROCESS);
        uuid
    });
    let uuid = numbers.next();
    describe(uuid, &track.name, parent);
    (uuid, packets)
}

/// Returns the packets for the begin and the end of a slice.
pub(super) fn slice_packets(track: u64, category: &str, slice: TrackSlice) -> [proto::Packet; 2] {
    let text = |(name, value): &(&str, String)| proto::Annotation {
        text: Some(clean::text(value)),
        ..proto::Annotation::named(name)
    };
    let number = |(name, value): &(&str, u64)| proto::Annotation {
        number: Some(*value),
        ..proto::Annotation::named(name)
    };
    let begin = proto::TrackEvent {
        annotations: slice.texts.iter().map(text).chain(slice.numbers.iter().map(number)).collect(),
        kind: Some(1),
        track: Some(track),
        categories: vec![category.to_owned()],
        name: Some(clean::text(&slice.title)),
        flows: slice.flows,
        ending_flows: slice.ending_flows,
        ..proto::TrackEvent::default()
    };
    let end = proto::TrackEvent { kind: Some(2), track: Some(track), ..proto::TrackEvent::default() };
    [(slice.start, begin), (slice.end, end)].map(|(time, event)| proto::Packet {
        timestamp: Some(time),
        track_event: Some(event),
        ..proto::Packet::default()
    })
}
