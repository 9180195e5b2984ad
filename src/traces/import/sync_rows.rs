//! Rows for waits. A record of a wait gets the correlation id and the stack of the call that waited, and the record of
//! the event that was waited for.

use gpuflame_model::record::{
    ContextId, CorrelationId, EventCall, EventId, EventRecord, EventUse, GpuContextId, IdMap, Nanos, Row,
    StreamId, SyncId, SyncKind, SyncRecord as SyncRow, Wait,
};

use super::trace_collector::{SyncRecord, TraceCollector};
use super::work::CallRecord;

/// Calls that waited or recorded an event, with their contexts and correlation ids.
#[derive(Debug, Default)]
pub(super) struct SyncCalls {
    /// Calls by correlation id of the trace.
    calls: IdMap<u64, u32>,
    /// Contexts by call.
    pub(super) contexts: IdMap<u32, ContextId>,
    /// Correlation ids of the rows by call. Calls that are launches already have an id.
    pub(super) ids: IdMap<u32, CorrelationId>,
}

impl SyncCalls {
    /// Finds the calls to which records of waits refer. Of nested calls with one id, the outermost is used. An id that
    /// several threads use identifies no call.
    pub(super) fn find(syncs: &[SyncRecord], calls: &[CallRecord]) -> Self {
        let ids = syncs.iter().flat_map(|sync| [sync.correlation, sync.record_correlation]);
        let wanted: IdMap<u64, ()> = ids.filter(|id| *id != 0).map(|id| (id, ())).collect();
        let mut found: IdMap<u64, Option<u32>> = IdMap::default();
        for (number, call) in (0..).zip(calls).filter(|(_, call)| wanted.contains_key(&call.correlation)) {
            let known = found.entry(call.correlation).or_insert(Some(number));
            let Some(other) = known.map(|other: u32| &calls[other as usize]) else { continue };
            if other.thread != call.thread {
                *known = None;
            } else if (call.start, -call.end) < (other.start, -other.end) {
                *known = Some(number);
            }
        }
        let calls = found.into_iter().filter_map(|(id, call)| Some((id, call?))).collect();
        Self { calls, ..Self::default() }
    }

    /// Returns the calls in file order.
    pub(super) fn numbers(&self) -> Vec<u32> {
        let mut numbers: Vec<u32> = self.calls.values().copied().collect();
        numbers.sort_unstable();
        numbers
    }

    /// Returns the call with the trace's id `id`, and the row's correlation id for it, which is new if the call has none.
    fn id_of(&mut self, id: u64, file_ids: &mut Vec<u64>) -> (Option<u32>, CorrelationId) {
        let call = self.calls.get(&id).copied();
        let next = CorrelationId(file_ids.len() as u32);
        let of_row = match call {
            Some(call) => *self.ids.entry(call).or_insert(next),
            None => next,
        };
        if of_row == next {
            file_ids.push(id);
        }
        (call, of_row)
    }
}

impl TraceCollector {
    /// Emits the waits in order of time, and before them the records of the events that they waited for. The position of
    /// a correlation id in `file_ids` is the correlation id of the row.
    pub(super) fn emit_syncs(
        &self,
        mut calls: SyncCalls,
        file_ids: &mut Vec<u64>,
        nanos: &impl Fn(i64) -> Nanos,
        each: &mut dyn FnMut(&Row<'_>),
    ) {
        let mut syncs: Vec<&SyncRecord> = self.syncs.iter().collect();
        syncs.sort_by_key(|sync| (sync.start, sync.end));
        let mut recorded: IdMap<u64, ()> = IdMap::default();
        let mut waited: IdMap<u32, ()> = IdMap::default();
        for sync in syncs {
            let event_call = |call: u32, id, context, event_use, stream: Option<u32>| {
                let call = &self.calls[call as usize];
                Row::EventCall(EventCall {
                    time: nanos(call.start),
                    duration: u32::try_from(duration(call)).unwrap_or(u32::MAX),
                    correlation: id,
                    context,
                    event_use,
                    event: sync.event.unwrap_or(0).into(),
                    stream: stream.unwrap_or(0).into(),
                })
            };
            let record = sync.record_correlation;
            if let Some(stream) = sync.on_stream.filter(|_| record != 0)
                && recorded.insert(record, ()).is_none()
            {
                let (call, id) = calls.id_of(record, file_ids);
                if let Some((call, &context)) = call.and_then(|call| Some((call, calls.contexts.get(&call)?)))
                {
                    each(&event_call(call, id, context, EventUse::Record, Some(stream)));
                }
                each(&Row::EventRecord(EventRecord {
                    correlation: id,
                    context: GpuContextId(sync.context),
                    stream: StreamId(stream),
                    event: EventId(sync.event.unwrap_or(0)),
                    sync: Some(SyncId(record)),
                }));
            }
            let (call, id) = calls.id_of(sync.correlation, file_ids);
            if let Some((number, &context)) = call.and_then(|call| Some((call, calls.contexts.get(&call)?)))
                && waited.insert(number, ()).is_none()
            {
                let call = &self.calls[number as usize];
                each(&match sync.kind {
                    SyncKind::STREAM_WAIT => event_call(number, id, context, EventUse::Wait, sync.stream),
                    _ => Row::Wait(Wait {
                        time: nanos(call.start),
                        duration: duration(call),
                        correlation: id,
                        context,
                    }),
                });
            }
            each(&Row::Sync(SyncRow {
                kind: sync.kind,
                start: nanos(sync.start),
                end: nanos(sync.end),
                correlation: id,
                context: GpuContextId(sync.context),
                stream: sync.stream.map(StreamId),
                event: sync.event.map(EventId),
                sync: Some(SyncId(record)).filter(|_| record != 0),
                result: 0,
            }));
        }
    }
}

fn duration(call: &CallRecord) -> u64 {
    call.end.saturating_sub(call.start).max(0) as u64
}

#[cfg(test)]
mod tests {
    use super::super::model::{Call, Event, Sink as _, Sync};
    use super::super::{Id, Text};
    use super::*;

    #[test]
    fn a_wait_has_the_id_and_stack_of_its_call_and_the_record_of_its_event() {
        let mut collector = TraceCollector::new(false, None);
        for (name, start, end, id) in
            [("cudaEventRecord", 1_000, 1_003, 50), ("cudaEventSynchronize", 1_010, 1_045, 60)]
        {
            let (process, thread) = (Id::Number(1), Id::Number(2));
            let (name, correlation) = (Text::from(name), Some(id));
            collector.event(&Event::Call(Call {
                name,
                start,
                end,
                process,
                thread,
                correlation,
                ..Call::default()
            }));
        }
        collector.event(&Event::Sync(Sync {
            name: Text::from("Event Sync"),
            start: 1_011,
            end: 1_044,
            context: Some(1),
            event: Some(8),
            correlation: Some(60),
            on_stream: Some(7),
            record_correlation: Some(50),
            ..Sync::default()
        }));
        let mut rows = Vec::new();
        let report = collector.emit_rows(&mut |row| match *row {
            Row::EventCall(one) => rows.push(Row::EventCall(one)),
            Row::EventRecord(one) => rows.push(Row::EventRecord(one)),
            Row::Wait(one) => rows.push(Row::Wait(one)),
            Row::Sync(one) => rows.push(Row::Sync(one)),
            _ => {}
        });
        let (record, wait) = (CorrelationId(1), CorrelationId(2));
        let (first, second) = (ContextId::FIRST, ContextId(ContextId::FIRST.0 + 1));
        let expected = [
            Row::EventCall(EventCall {
                time: Nanos(1_000),
                duration: 3,
                correlation: record,
                context: first,
                event_use: EventUse::Record,
                event: 8,
                stream: 7,
            }),
            Row::EventRecord(EventRecord {
                correlation: record,
                context: GpuContextId(1),
                stream: StreamId(7),
                event: EventId(8),
                sync: Some(SyncId(50)),
            }),
            Row::Wait(Wait { time: Nanos(1_010), duration: 35, correlation: wait, context: second }),
            Row::Sync(SyncRow {
                kind: SyncKind::EVENT,
                start: Nanos(1_011),
                end: Nanos(1_044),
                correlation: wait,
                context: GpuContextId(1),
                stream: None,
                event: Some(EventId(8)),
                sync: Some(SyncId(50)),
                result: 0,
            }),
        ];
        assert_eq!(rows, expected);
        assert_eq!(report.file_ids, [0, 50, 60]);
    }
}
