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

/// Launches by stream and something else, each as the start of the call and the work, in order of time.
type LaunchesBy<K> = HashMap<(K, Option<u32>), Vec<(i64, u32)>>;

impl EventWaits {
    /// Finds the work around records of events and waits for events, in the whole trace. `launches` are calls and
    /// their work.
    pub(super) fn new(events: &HtaEvents, selection: &Selection, launches: &[(u32, u32)]) -> Self {
        let row = |at: u32| &events.rows[at as usize];
        let mut launches = launches.to_vec();
        launches.sort_by_key(|(call, _)| row(*call).start);
        let (mut by_device, mut by_thread) = (LaunchesBy::new(), LaunchesBy::new());
        for (call, work) in launches {
            let (launch, stream) = ((row(call).start, work), row(work).stream);
            by_device.entry((row(work).device, stream)).or_default().push(launch);
            by_thread.entry((row(call).track, stream)).or_default().push(launch);
        }
        let recorded = find_recorded(events, selection, &by_device);
        Self { recorded, waiting: find_waiting(events, selection, &by_thread) }
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
fn find_recorded(
    events: &HtaEvents,
    selection: &Selection,
    launches: &LaunchesBy<Option<u32>>,
) -> HashMap<u64, u32> {
    let rows = || selection.all.iter().map(|at| &events.rows[*at as usize]);
    let mut streams = HashMap::new();
    for row in rows().filter(|row| row.kind == EventKind::Sync) {
        if let (Some(id), Some(stream)) = (row.record_correlation, row.on_stream) {
            streams.entry(id).or_insert((row.device, Some(stream)));
        }
    }
    let mut recorded = HashMap::new();
    for row in rows().filter(|row| events.name(row.name) == "cudaEventRecord") {
        let Some(id) = row.correlation else { continue };
        let Some(launches) = streams.get(&id).and_then(|stream| launches.get(stream)) else { continue };
        let before = launches.partition_point(|(time, _)| *time <= row.start);
        if let Some((_, work)) = launches[..before].last() {
            recorded.insert(id, *work);
        }
    }
    recorded
}

/// Returns the first launch after each call that makes a stream wait for an event, on the same thread and stream.
fn find_waiting(events: &HtaEvents, selection: &Selection, launches: &LaunchesBy<u32>) -> HashMap<u32, u32> {
    let mut waiting = HashMap::new();
    for at in selection.all.iter().copied() {
        let row = &events.rows[at as usize];
        let Some(wait) = selection.partner(at) else { continue };
        if events.name(row.name) != "cudaStreamWaitEvent" {
            continue;
        }
        let stream = events.rows[wait as usize].stream;
        let Some(launches) = launches.get(&(row.track, stream)) else { continue };
        let after = launches.partition_point(|(time, _)| *time <= row.start);
        if let Some((_, work)) = launches.get(after) {
            waiting.insert(at, *work);
        }
    }
    waiting
}
