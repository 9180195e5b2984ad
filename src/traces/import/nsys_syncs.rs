//! Reads waits and recordings of CUDA events from exports of Nsight Systems.

use super::Text;
use super::model::*;
use super::nsys::{NsysReader, no_name, read_labels};
use super::nsys_columns::{FIRST_OWN, call_key};
use super::sqlite::{self, integer, integer_u32};
use gpuflame_model::error::Result;

impl<S: Sink> NsysReader<'_, S> {
    /// Stores the kind of wait that a call of the function `name` makes. The kind is needed because the column
    /// `syncType` may be wrong: for calls of `cudaStreamSynchronize`, exports of schema 3.24 contain the value for a
    /// wait by a stream.
    pub(super) fn note_wait_call(&mut self, name: &[u8], global: Option<i64>, correlation: Option<u64>) {
        if let (Some(kind), Some(id)) = (wait_kind(name), correlation) {
            self.wait_calls.insert(call_key(global, id), kind);
        }
    }

    pub(super) fn read_syncs(&mut self) -> Result<()> {
        let table = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION";
        let labels = read_labels(self.base, "ENUM_CUPTI_SYNC_TYPE")?;
        let own = ["syncType", "eventId", "eventSyncId"];
        self.for_each_gpu_row(table, &no_name(), &own, |reader, shared, row| {
            let Some((start, end)) = shared.span else { return false };
            let call = shared.correlation.and_then(|_| reader.wait_calls.get(&shared.call_key()));
            let number = integer(row, FIRST_OWN);
            let label = number.and_then(|number| labels.get(&number)).map(String::as_str);
            let name = call.copied().or(label).unwrap_or_else(|| kind_of_number(number));
            reader.sink.event(&Event::Sync(Sync {
                name: Text::from(name),
                start,
                end,
                process: shared.process(),
                correlation: shared.correlation,
                device: shared.device,
                context: shared.context,
                stream: shared.stream,
                event: event_id(integer_u32(row, FIRST_OWN + 1)),
                record: record_number(sqlite::id(row, FIRST_OWN + 2)),
                ..Sync::default()
            }));
            true
        })
    }

    pub(super) fn read_event_records(&mut self) -> Result<()> {
        let table = "CUPTI_ACTIVITY_KIND_CUDA_EVENT";
        self.for_each_gpu_row(table, &no_name(), &["eventId", "eventSyncId"], |reader, shared, row| {
            reader.sink.event(&Event::EventRecord(EventRecord {
                process: shared.process(),
                correlation: shared.correlation,
                context: shared.context,
                stream: shared.stream,
                event: event_id(integer_u32(row, FIRST_OWN)),
                number: record_number(sqlite::id(row, FIRST_OWN + 1)),
            }));
            true
        })
    }
}

/// Kinds of waits. Each entry consists of a part of the API function's name, and of the name of the wait in
/// [`Sync::name`].
const WAIT_KINDS: [(&str, &str); 6] = [
    ("WaitEvent", "Stream Wait Event"),
    ("EventSynchronize", "Event Sync"),
    ("StreamSynchronize", "Stream Sync"),
    ("DeviceSynchronize", "Context Sync"),
    ("CtxSynchronize", "Context Sync"),
    ("ThreadSynchronize", "Context Sync"),
];

fn wait_kind(call: &[u8]) -> Option<&'static str> {
    let call = std::str::from_utf8(call).ok()?;
    WAIT_KINDS.iter().find(|(part, _)| call.contains(part)).map(|(_, kind)| *kind)
}

/// Returns the kind of wait for a value in CUPTI's enum. This function is used for files that do not explain the
/// values.
fn kind_of_number(number: Option<i64>) -> &'static str {
    match number {
        Some(1) => "Event Sync",
        Some(2) => "Stream Wait Event",
        Some(3) => "Stream Sync",
        Some(4) => "Context Sync",
        _ => "Sync",
    }
}

/// Returns the id of a CUDA event. Returns `None` if the id is -1 as an unsigned number, which CUPTI uses if there is
/// no CUDA event.
fn event_id(id: Option<u32>) -> Option<u32> {
    id.filter(|id| *id != u32::MAX)
}

/// Returns the id of a recording of a CUDA event. Returns `None` for the ids 0 and -1 (as an unsigned number), which
/// mean that there is no recording.
fn record_number(number: Option<u64>) -> Option<u64> {
    number.filter(|number| *number != u64::from(u32::MAX))
}
