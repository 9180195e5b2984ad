//! Waits: which work a record about a wait waits for.

use std::collections::HashMap;

use super::events::{EventKind, EventRow, HtaEvents};
use super::window::Selection;

/// Source of a wait for an event, and the work that waits.
#[derive(Debug, Default)]
pub(super) struct EventWaits {
    /// Last work before the record of an event, by the correlation id of the recording call.
    recorded: HashMap<u64, u32>,
    /// First work after a call that makes a stream wait, by the row of the call.
    waiting: HashMap<u32, u32>,
}

/// A launch on a stream.
struct StreamLaunch {
    /// Start of the call.
    time: i64,
    device: Option<u32>,
    stream: Option<u32>,
    /// Thread of the call.
    track: u32,
    work: u32,
}

impl EventWaits {
    /// Finds the work around records of events and waits for events, in the whole trace. `launches` are calls and their work.
    pub(super) fn new(events: &HtaEvents, selection: &Selection, launches: &[(u32, u32)]) -> Self {
        let row = |at: u32| &events.rows[at as usize];
        let to_launch = |(call, work): &(u32, u32)| StreamLaunch {
            time: row(*call).start,
            device: row(*work).device,
            stream: row(*work).stream,
            track: row(*call).track,
            work: *work,
        };
        let mut launches: Vec<StreamLaunch> = launches.iter().map(to_launch).collect();
        launches.sort_by_key(|launch| launch.time);
        let recorded = find_recorded(events, selection, &launches);
        Self { recorded, waiting: find_waiting(events, selection, &launches) }
    }

    /// Returns the work that a wait waits for.
    pub(super) fn source(&self, wait: &EventRow) -> Option<u32> {
        self.recorded.get(&wait.record_correlation?).copied()
    }

    /// Returns the work that waits because of a call.
    pub(super) fn target(&self, call: u32) -> Option<u32> {
        self.waiting.get(&call).copied()
    }
}

/// Returns the last launch before each record of an event, on the stream that the waits for the event name.
fn find_recorded(events: &HtaEvents, selection: &Selection, launches: &[StreamLaunch]) -> HashMap<u64, u32> {
    let rows = || selection.all.iter().map(|at| &events.rows[*at as usize]);
    let mut streams = HashMap::new();
    for row in rows().filter(|row| row.kind == EventKind::Sync) {
        if let (Some(id), Some(stream)) = (row.record_correlation, row.on_stream) {
            streams.entry(id).or_insert((row.device, stream));
        }
    }
    let mut recorded = HashMap::new();
    for row in rows().filter(|row| events.name(row.name) == "cudaEventRecord") {
        let Some(id) = row.correlation else { continue };
        let Some((device, stream)) = streams.get(&id) else { continue };
        let before = &launches[..launches.partition_point(|launch| launch.time <= row.start)];
        let is_same = |launch: &&StreamLaunch| launch.device == *device && launch.stream == Some(*stream);
        if let Some(launch) = before.iter().rev().find(is_same) {
            recorded.insert(id, launch.work);
        }
    }
    recorded
}

/// Returns the first launch after each call that makes a stream wait for an event, on the same thread and stream.
fn find_waiting(events: &HtaEvents, selection: &Selection, launches: &[StreamLaunch]) -> HashMap<u32, u32> {
    let mut waiting = HashMap::new();
    for at in selection.all.iter().copied() {
        let row = &events.rows[at as usize];
        let Some(wait) = selection.partner(at) else { continue };
        if events.name(row.name) != "cudaStreamWaitEvent" {
            continue;
        }
        let stream = events.rows[wait as usize].stream;
        let after = &launches[launches.partition_point(|launch| launch.time <= row.start)..];
        let is_same = |launch: &&StreamLaunch| launch.track == row.track && launch.stream == stream;
        if let Some(launch) = after.iter().find(is_same) {
            waiting.insert(at, launch.work);
        }
    }
    waiting
}
