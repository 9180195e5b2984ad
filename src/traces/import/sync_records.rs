//! Stores waits and recordings of CUDA events until the whole trace has been read.

use super::model::{EventRecord, Sync};
use super::work::CallRecord;
use gpuflame_model::record::{IdMap, SyncKind};

/// A wait for a CUDA event, a stream or a device.
#[derive(Clone, Copy, Debug)]
pub(super) struct SyncRecord {
    pub(super) start: i64,
    pub(super) end: i64,
    pub(super) kind: SyncKind,
    pub(super) context: u32,
    pub(super) stream: Option<u32>,
    pub(super) event: Option<u32>,
    pub(super) correlation: u64,
    /// Stream on which the awaited CUDA event was recorded.
    pub(super) on_stream: Option<u32>,
    /// Correlation id of the call that recorded the awaited CUDA event; 0 if the id is unknown.
    pub(super) record_correlation: u64,
    /// Index of the waiting process; 0 if correlation ids are unique in the whole trace.
    pub(super) process: u32,
    /// Id of the recording of the awaited CUDA event, unique within the process.
    pub(super) record: Option<u64>,
}

impl SyncRecord {
    pub(super) fn new(sync: &Sync<'_>, process: u32) -> Self {
        Self {
            start: sync.start,
            end: sync.end,
            kind: sync_kind(&sync.name.decode()),
            context: sync.context.unwrap_or(0),
            stream: sync.stream,
            event: sync.event,
            correlation: sync.correlation.unwrap_or(0),
            on_stream: sync.on_stream,
            record_correlation: sync.record_correlation.unwrap_or(0),
            process,
            record: sync.record,
        }
    }
}

/// A recording of a CUDA event on a stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordedEvent {
    /// Index of the recording process; 0 if correlation ids are unique in the whole trace.
    pub(super) process: u32,
    pub(super) context: u32,
    pub(super) stream: u32,
    pub(super) event: Option<u32>,
    pub(super) correlation: u64,
    /// Id of this recording. The id is unique within the process.
    pub(super) number: Option<u64>,
}

impl RecordedEvent {
    pub(super) fn new(record: &EventRecord<'_>, process: u32) -> Self {
        Self {
            process,
            context: record.context.unwrap_or(0),
            stream: record.stream.unwrap_or(0),
            event: record.event,
            correlation: record.correlation.unwrap_or(0),
            number: record.number,
        }
    }
}

/// First id that the importer assigns to recordings of CUDA events that have no id in the trace. Ids in traces have at
/// most 63 bits, because the integers of sqlite are signed.
const FIRST_NEW_NUMBER: u64 = 1 << 63;

/// Finds the recording of the CUDA event for each wait that only contains the id of the CUDA event, as in traces of
/// CUPTI before 12.8. This is the latest recording of the CUDA event whose call began before the waiting call.
/// `call_of` returns the call by which a recording was made.
pub(super) fn find_unnumbered_records(
    syncs: &mut [SyncRecord],
    records: &mut [RecordedEvent],
    call_of: impl Fn(&RecordedEvent) -> Option<CallRecord>,
) {
    let mut by_event: IdMap<(u32, u32), Vec<(i64, u64)>> = IdMap::default();
    for (number, record) in (FIRST_NEW_NUMBER..).zip(records.iter_mut()) {
        if let (None, Some(event), Some(call)) = (record.number, record.event, call_of(record)) {
            record.number = Some(number);
            by_event.entry((record.process, event)).or_default().push((call.start, number));
        }
    }
    by_event.values_mut().for_each(|times| times.sort_unstable());
    for sync in syncs.iter_mut().filter(|sync| sync.record.is_none()) {
        let Some(times) = sync.event.and_then(|event| by_event.get(&(sync.process, event))) else { continue };
        let before = times.partition_point(|(time, _)| *time <= sync.start);
        sync.record = before.checked_sub(1).map(|at| times[at].1);
    }
}

/// Determines the kind of wait from a name such as `Stream Sync`, `STREAM_SYNCHRONIZE` or `cudaStreamSynchronize`.
fn sync_kind(name: &str) -> SyncKind {
    let name = name.to_ascii_lowercase();
    match name {
        _ if name.contains("wait") => SyncKind::STREAM_WAIT,
        _ if name.contains("event") => SyncKind::EVENT,
        _ if name.contains("stream") => SyncKind::STREAM,
        _ if name.contains("context") || name.contains("device") || name.contains("ctx") => SyncKind::CONTEXT,
        _ => SyncKind::OTHER,
    }
}
