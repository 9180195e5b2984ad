//! Reads the waits and the records of events in exports of Nsight Systems.

use super::Text;
use super::model::*;
use super::nsys::{NsysReader, no_name, process_of, read_labels};
use super::sqlite::{self, integer, integer_u32};
use gpuflame_model::error::Result;

impl<S: Sink> NsysReader<'_, S> {
    /// Notes the kind of wait that the call `name` makes. The number in the column `syncType` is not sufficient:
    /// exports of schema 3.24 use the number of a stream's wait for calls of `cudaStreamSynchronize`.
    pub(super) fn note_wait_call(&mut self, name: &[u8], global: Option<i64>, correlation: Option<u64>) {
        if let (Some(kind), Some(id)) = (wait_kind(name), correlation) {
            self.wait_calls.insert((global.map(|global| global >> 24), id), kind);
        }
    }

    pub(super) fn read_syncs(&mut self) -> Result<()> {
        let table = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION";
        const WANTED: [&str; 10] = [
            "start",
            "end",
            "globalPid",
            "correlationId",
            "deviceId",
            "contextId",
            "streamId",
            "syncType",
            "eventId",
            "eventSyncId",
        ];
        let labels = read_labels(self.base, "ENUM_CUPTI_SYNC_TYPE")?;
        self.for_each_row(table, &no_name(), &WANTED, |reader, row| {
            let (Some(start), Some(end)) = (integer(row, 1), integer(row, 2)) else { return false };
            let (global, correlation) = (integer(row, 3), sqlite::id(row, 4));
            let call = correlation.and_then(|id| reader.wait_calls.get(&(global.map(|id| id >> 24), id)));
            let number = integer(row, 8);
            let label = number.and_then(|number| labels.get(&number)).map(String::as_str);
            let name = call.copied().or(label).unwrap_or_else(|| kind_of_number(number));
            reader.sink.event(&Event::Sync(Sync {
                name: Text::from(name),
                start,
                end,
                process: process_of(global),
                correlation,
                device: integer_u32(row, 5),
                context: integer_u32(row, 6),
                stream: integer_u32(row, 7),
                event: event_id(integer_u32(row, 9)),
                record: record_number(sqlite::id(row, 10)),
                ..Sync::default()
            }));
            true
        })
    }

    pub(super) fn read_event_records(&mut self) -> Result<()> {
        let table = "CUPTI_ACTIVITY_KIND_CUDA_EVENT";
        let wanted = ["globalPid", "correlationId", "contextId", "streamId", "eventId", "eventSyncId"];
        self.for_each_row(table, &no_name(), &wanted, |reader, row| {
            reader.sink.event(&Event::EventRecord(EventRecord {
                process: process_of(integer(row, 1)),
                correlation: sqlite::id(row, 2),
                context: integer_u32(row, 3),
                stream: integer_u32(row, 4),
                event: event_id(integer_u32(row, 5)),
                number: record_number(sqlite::id(row, 6)),
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
