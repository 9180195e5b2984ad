//! Emits rows for waits, and for recordings of CUDA events. The row of a wait contains the correlation id and the stack
//! of the call that waited. The row of a wait for a CUDA event refers to the recording of this CUDA event.

use gpuflame_model::record::{
    ContextId, CorrelationId, EventCall, EventId, EventRecord, EventUse, GpuContextId, IdMap, Nanos, Row,
    StreamId, SyncId, SyncKind, SyncRecord as SyncRow, Wait,
};

use super::call_records::CallRecords;
use super::file_ids::FileIds;
use super::sync_records::{RecordedEvent, SyncRecord, find_unnumbered_records};
use super::trace_collector::TraceCollector;
use super::work::CallRecord;

/// Index of a process, and a correlation id. The process is 0 if correlation ids are unique in the whole trace.
type CallKey = (u32, u64);

/// Calls that waited or recorded a CUDA event, with their launch contexts (stack and API call) and correlation ids.
#[derive(Debug, Default)]
pub(super) struct SyncCalls {
    /// Index of each call, keyed by the process and correlation id in the trace.
    calls: IdMap<CallKey, u32>,
    /// Launch context of each call, keyed by the call's index.
    pub(super) contexts: IdMap<u32, ContextId>,
    /// Correlation id of each call in the rows, keyed by the call's index. A call that is a launch already has a
    /// correlation id in the rows.
    pub(super) ids: IdMap<u32, CorrelationId>,
}

impl SyncCalls {
    /// Finds the calls to which waits and recordings of CUDA events refer. If nested calls have the same id, the
    /// outermost call is used. If calls on several threads have the same id, this id is ignored.
    pub(super) fn find(collector: &TraceCollector) -> Self {
        let calls = &collector.calls;
        let of_sync =
            |sync: &SyncRecord| [sync.correlation, sync.record_correlation].map(|id| (sync.process, id));
        let of_record = |record: &RecordedEvent| (record.process, record.correlation);
        let keys = collector.syncs.iter().flat_map(of_sync);
        let keys = keys.chain(collector.event_records.iter().map(of_record));
        let mut found: IdMap<CallKey, Option<Option<u32>>> =
            keys.filter(|(_, id)| *id != 0).map(|key| (key, None)).collect();
        for (number, call) in (0..).zip(calls.iter()) {
            for process in [0, collector.thread_facts[call.thread as usize].0] {
                let Some(known) = found.get_mut(&(process, call.correlation)) else { continue };
                let Some(other) = known.get_or_insert(Some(number)).map(|other: u32| calls.get(other)) else {
                    continue;
                };
                if other.thread != call.thread {
                    *known = Some(None);
                } else if (call.start, -call.end) < (other.start, -other.end) {
                    *known = Some(Some(number));
                }
            }
        }
        let calls = found.into_iter().filter_map(|(key, call)| Some((key, call??))).collect();
        Self { calls, ..Self::default() }
    }

    /// Returns the indexes of the calls, in file order.
    pub(super) fn numbers(&self) -> Vec<u32> {
        let mut numbers: Vec<u32> = self.calls.values().copied().collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers
    }

    /// Returns the index of the call that has this id in the trace, and the call's correlation id in the rows. If the
    /// call has no correlation id in the rows yet, creates one.
    fn id_of(&mut self, key: CallKey, file_ids: &mut FileIds) -> (Option<u32>, CorrelationId) {
        let call = self.calls.get(&key).copied();
        let next = CorrelationId(file_ids.len() as u32);
        let of_row = match call {
            Some(call) => *self.ids.entry(call).or_insert(next),
            None => next,
        };
        if of_row == next {
            file_ids.push(key.1);
        }
        (call, of_row)
    }
}

impl TraceCollector {
    /// Assigns ids to recordings of CUDA events, and to the waits for these recordings, if the trace contains no such
    /// ids.
    pub(super) fn number_event_records(&mut self) {
        if self.event_records.iter().all(|record| record.number.is_some()) {
            return;
        }
        let calls = SyncCalls::find(self).calls;
        let call_of = |record: &RecordedEvent| {
            calls.get(&(record.process, record.correlation)).map(|call| self.calls.get(*call))
        };
        find_unnumbered_records(&mut self.syncs, &mut self.event_records, call_of);
    }

    /// Emits the recordings of CUDA events, and then the waits in order of time. For each new correlation id in the
    /// rows, the correlation id in the file is appended to `file_ids`.
    pub(super) fn emit_syncs(
        &self,
        calls: SyncCalls,
        file_ids: &mut FileIds,
        nanos: &dyn Fn(i64) -> Nanos,
        each: &mut dyn FnMut(&Row<'_>),
    ) {
        let mut emitter = SyncEmitter {
            all: &self.calls,
            calls,
            file_ids,
            nanos,
            each,
            numbers: IdMap::default(),
            recorded: IdMap::default(),
            waited: IdMap::default(),
        };
        for record in &self.event_records {
            emitter.recorded.insert(record.correlation, ());
            emitter.record(record);
        }
        let mut syncs: Vec<&SyncRecord> = self.syncs.iter().collect();
        syncs.sort_by_key(|sync| (sync.start, sync.end));
        syncs.into_iter().for_each(|sync| emitter.wait(sync));
    }
}

/// Creates the rows for waits and for recordings of CUDA events.
struct SyncEmitter<'a> {
    all: &'a CallRecords,
    calls: SyncCalls,
    file_ids: &'a mut FileIds,
    nanos: &'a dyn Fn(i64) -> Nanos,
    each: &'a mut dyn FnMut(&Row<'_>),
    /// Id in the rows of each recording of a CUDA event, keyed by the process and the id in the trace.
    numbers: IdMap<(u32, u64), u64>,
    /// Correlation ids of the recordings of CUDA events for which a row was emitted.
    recorded: IdMap<u64, ()>,
    /// Indexes of the waiting calls for which a row was emitted.
    waited: IdMap<u32, ()>,
}

impl SyncEmitter<'_> {
    fn record(&mut self, record: &RecordedEvent) {
        let (call, correlation) = self.calls.id_of((record.process, record.correlation), self.file_ids);
        if let Some((call, context)) = self.call_with_context(call) {
            self.event_call(
                call,
                correlation,
                context,
                EventUse::Record,
                (record.event, Some(record.stream)),
            );
        }
        let sync = record.number.map(|number| self.sync_id(record.process, number));
        (self.each)(&Row::EventRecord(EventRecord {
            correlation,
            context: GpuContextId(record.context),
            stream: StreamId(record.stream),
            event: EventId(record.event.unwrap_or(0)),
            sync,
        }));
    }

    /// Emits the row of a wait. If the recording of the CUDA event is known only from the wait, a row for this
    /// recording is emitted first.
    fn wait(&mut self, sync: &SyncRecord) {
        let (context, correlation) = (sync.context, sync.record_correlation);
        if let Some(stream) = sync.on_stream.filter(|_| correlation != 0)
            && self.recorded.insert(correlation, ()).is_none()
        {
            let (event, number) = (sync.event, Some(correlation));
            self.record(&RecordedEvent {
                process: sync.process,
                context,
                stream,
                event,
                correlation,
                number,
            });
        }
        let (call, correlation) = self.calls.id_of((sync.process, sync.correlation), self.file_ids);
        if let Some((call, context)) = self.call_with_context(call)
            && self.waited.insert(call, ()).is_none()
        {
            self.wait_call(call, correlation, context, sync);
        }
        let record = sync.record.or(Some(sync.record_correlation).filter(|record| *record != 0));
        let record = record.map(|number| self.sync_id(sync.process, number));
        (self.each)(&Row::Sync(SyncRow {
            kind: sync.kind,
            start: (self.nanos)(sync.start),
            end: (self.nanos)(sync.end),
            correlation,
            context: GpuContextId(context),
            stream: sync.stream.map(StreamId),
            event: sync.event.map(EventId),
            sync: record,
            result: 0,
        }));
    }

    fn wait_call(&mut self, number: u32, correlation: CorrelationId, context: ContextId, sync: &SyncRecord) {
        if sync.kind == SyncKind::STREAM_WAIT {
            self.event_call(number, correlation, context, EventUse::Wait, (sync.event, sync.stream));
            return;
        }
        let call = &self.all.get(number);
        let time = (self.nanos)(call.start);
        (self.each)(&Row::Wait(Wait { time, duration: duration(call), correlation, context }));
    }

    fn event_call(
        &mut self,
        number: u32,
        correlation: CorrelationId,
        context: ContextId,
        event_use: EventUse,
        (event, stream): (Option<u32>, Option<u32>),
    ) {
        let call = &self.all.get(number);
        (self.each)(&Row::EventCall(EventCall {
            time: (self.nanos)(call.start),
            duration: u32::try_from(duration(call)).unwrap_or(u32::MAX),
            correlation,
            context,
            event_use,
            event: event.unwrap_or(0).into(),
            stream: stream.unwrap_or(0).into(),
        }));
    }

    fn call_with_context(&self, call: Option<u32>) -> Option<(u32, ContextId)> {
        Some((call?, *self.calls.contexts.get(&call?)?))
    }

    /// Returns the id that a recording of a CUDA event has in the rows. The recording needs a new id if ids in the
    /// trace are unique only within a process.
    fn sync_id(&mut self, process: u32, number: u64) -> SyncId {
        if process == 0 {
            return SyncId(number);
        }
        let next = self.numbers.len() as u64 + 1;
        SyncId(*self.numbers.entry((process, number)).or_insert(next))
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
        assert_eq!(report.file_ids.iter().collect::<Vec<_>>(), [0, 50, 60]);
    }
}
