//! Finds, for each wait in a trace, the GPU work for which it waited.

use std::collections::HashMap;

use super::events::{EventKind, EventRow, HtaEvents};
use super::window::Selection;

/// Tables that give the awaited work and the waiting work of each wait for a CUDA event.
#[derive(Debug, Default)]
pub(super) struct EventWaits {
    /// For each record of a CUDA event, the last operation launched before it, keyed by the correlation id of the call
    /// that recorded the event.
    recorded: HashMap<u64, u32>,
    /// For each call that makes a stream wait, the first operation launched after the call, keyed by the index of the
    /// call's row.
    waiting: HashMap<u32, u32>,
}

/// Launches for each pair of a key `K` and a stream. A launch is given as (start of the call, launched operation). The
/// launches are sorted by time.
type LaunchesBy<K> = HashMap<(K, Option<u32>), Vec<(i64, u32)>>;

impl EventWaits {
    /// Searches the whole trace for the operations before records of CUDA events, and for the operations after waits
    /// for CUDA events. `launches` contains pairs of a call and the operation that the call launched.
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

    /// Returns the operation that has to end before a wait for a CUDA event ends.
    pub(super) fn source(&self, wait: &EventRow) -> Option<u32> {
        self.recorded.get(&wait.record_correlation?).copied()
    }

    /// Returns the operation that has to wait because of a `cudaStreamWaitEvent` call.
    pub(super) fn target(&self, call: u32) -> Option<u32> {
        self.waiting.get(&call).copied()
    }
}

/// For each record of a CUDA event, returns the last operation that was launched before it on the stream. The stream on
/// which the event was recorded is taken from the rows about waits for this event.
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

/// For each call that makes a stream wait for a CUDA event, returns the first operation that the calling thread
/// launched on this stream after the call.
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
