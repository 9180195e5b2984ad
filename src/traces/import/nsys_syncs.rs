//! Reads the waits and the records of events in exports of Nsight Systems.

use super::Text;
use super::model::*;
use super::nsys::{NsysReader, no_name, read_labels};
use super::nsys_columns::{FIRST_OWN, call_key};
use super::sqlite::{self, integer, integer_u32};
use gpuflame_model::error::Result;

impl<S: Sink> NsysReader<'_, S> {
    /// Notes the kind of wait that the call `name` makes. The number in the column `syncType` is not sufficient:
    /// exports of schema 3.24 use the number of a stream's wait for calls of `cudaStreamSynchronize`.
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

/// Kinds of waits: part of the call's name, and the name that [`Sync::name`] uses.
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

/// Returns CUPTI's meaning of the number of a kind, for files that do not explain the number.
fn kind_of_number(number: Option<i64>) -> &'static str {
    match number {
        Some(1) => "Event Sync",
        Some(2) => "Stream Wait Event",
        Some(3) => "Stream Sync",
        Some(4) => "Context Sync",
        _ => "Sync",
    }
}

/// Returns the event of a row. CUPTI's number for "no event" is -1 as an unsigned number.
fn event_id(id: Option<u32>) -> Option<u32> {
    id.filter(|id| *id != u32::MAX)
}

/// Returns the number of an event's record. The numbers 0 and -1 (as an unsigned number) mean that there is none.
fn record_number(number: Option<u64>) -> Option<u64> {
    number.filter(|number| *number != u64::from(u32::MAX))
}
