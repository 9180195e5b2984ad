//! Work, waits and event records of a run, by stream, in the form that the reconstruction of states needs.

use gpuflame_explain::join::{Launched, Origin, Sink};
use gpuflame_model::record::{
    Activity, ContextId, CorrelationId, Detail, DeviceId, EventId, EventRecord, EventUse, GpuContextId,
    IdMap, Nanos, Row, StreamId, SyncId, SyncKind, SyncRecord, Work,
};

/// Device, GPU context and stream.
pub type StreamKey = (DeviceId, GpuContextId, StreamId);

/// An operation of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct StreamOp {
    /// Number of the stream.
    pub(super) stream: u32,
    /// Duration of the launch call in ns, as [`Launched`] has it.
    pub(super) call_ns: u32,
    pub(super) start: u64,
    pub(super) end: u64,
    /// Start of the launch call; 0 if the launch is unknown.
    pub(super) call: u64,
    pub(super) work: Work,
}

const _: () = assert!(size_of::<StreamOp>() == 40, "an operation grew: millions are stored");

impl StreamOp {
    pub(super) fn launched(&self) -> Option<Launched> {
        let launched = Launched { time: Nanos(self.call), duration: self.call_ns, context: ContextId::NONE };
        (self.call != 0).then_some(launched)
    }
}

/// Bytes that a copy or fill moved.
#[derive(Clone, Copy, Debug)]
pub(super) struct MovedBytes {
    pub(super) device: DeviceId,
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) bytes: u64,
}

/// A call that made a stream wait for an event.
#[derive(Clone, Copy, Debug)]
pub(super) struct StreamWait {
    /// Number of the stream.
    pub(super) stream: u32,
    /// Time of the call.
    pub(super) time: u64,
    pub(super) event: Option<EventId>,
    /// Time at which the event happened; `None` if the data does not tell.
    pub(super) until: Option<u64>,
    /// Last work before the event was recorded, if it is known.
    pub(super) last_work: Option<Work>,
}

/// A [`Sink`] that stores the operations of all streams, and what makes streams wait. It takes 40 bytes per operation.
#[derive(Debug, Default)]
pub struct StreamRows {
    pub(super) ops: Vec<StreamOp>,
    pub(super) moved: Vec<MovedBytes>,
    /// Streams, by number.
    pub(super) keys: Vec<StreamKey>,
    numbers: IdMap<StreamKey, u32>,
    last: u32,
    waits: Vec<SyncRecord>,
    records: Vec<EventRecord>,
    /// Whether any wait, of a stream or the host, names the record of its event.
    tells_records: bool,
    /// Times of calls that recorded events, by correlation id.
    record_calls: IdMap<u32, Nanos>,
    /// Number of activities without usable times, which are not stored.
    pub(super) untimed: u64,
}

impl StreamRows {
    /// Returns the streams so far.
    pub fn keys(&self) -> Vec<StreamKey> {
        self.keys.clone()
    }

    fn stream_number(&mut self, key: StreamKey) -> u32 {
        // Most work runs on the same stream as the work before it.
        if self.keys.get(self.last as usize) != Some(&key) {
            self.last = *self.numbers.entry(key).or_insert_with(|| {
                self.keys.push(key);
                self.keys.len() as u32 - 1
            });
        }
        self.last
    }

    /// Sorts the operations by stream and time. Streams are then numbered by device, context and stream.
    pub(super) fn sort(&mut self) {
        let mut order: Vec<u32> = (0..self.keys.len() as u32).collect();
        order.sort_unstable_by_key(|number| self.keys[*number as usize]);
        let mut numbers = vec![0; order.len()];
        (0..).zip(&order).for_each(|(new, old)| numbers[*old as usize] = new);
        self.ops.iter_mut().for_each(|op| op.stream = numbers[op.stream as usize]);
        self.keys = order.iter().map(|old| self.keys[*old as usize]).collect();
        self.numbers = self.keys.iter().copied().zip(0..).collect();
        self.ops.sort_unstable_by_key(|op| (op.stream, op.start, op.end, op.call, op.call_ns, op.work));
    }

    /// Operations of the stream with this number. Requires sorted operations.
    pub(super) fn ops_of(&self, stream: u32) -> &[StreamOp] {
        let from = self.ops.partition_point(|op| op.stream < stream);
        let to = self.ops.partition_point(|op| op.stream <= stream);
        &self.ops[from..to]
    }

    /// Returns the calls that made streams wait, by stream and time, with the end of each wait if it is known. A wait for
    /// an event that has no record is left out if other events have one: a stream does not wait for an event that was
    /// never recorded. Requires sorted operations.
    pub(super) fn stream_waits(&self) -> Vec<StreamWait> {
        // A context belongs to one device.
        let by_context: IdMap<(GpuContextId, StreamId), u32> =
            (0..).zip(&self.keys).map(|(number, key)| ((key.1, key.2), number)).collect();
        let mut events = RecordedEvents { rows: self, by_context: &by_context, launched: IdMap::default() };
        let records: IdMap<SyncId, &EventRecord> =
            self.records.iter().filter_map(|record| Some((record.sync?, record))).collect();
        let mut waits: Vec<StreamWait> = Vec::new();
        let has_record = |wait: &&SyncRecord| !self.tells_records || wait.sync.is_some();
        for wait in self.waits.iter().filter(has_record) {
            let Some(&stream) = wait.stream.and_then(|stream| by_context.get(&(wait.context, stream))) else {
                continue;
            };
            let happened = wait.sync.and_then(|sync| events.last_before(records.get(&sync)?));
            let (until, last_work) = match happened {
                Some((until, work)) => (Some(until), work),
                None => (None, None),
            };
            waits.push(StreamWait { stream, time: wait.start.0, event: wait.event, until, last_work });
        }
        waits.sort_by_key(|wait| (wait.stream, wait.time, wait.event, wait.until));
        waits
    }
}

/// Finds when recorded events happened: at the end of the work that was launched on the stream before the record.
struct RecordedEvents<'a> {
    rows: &'a StreamRows,
    by_context: &'a IdMap<(GpuContextId, StreamId), u32>,
    /// By stream: times of launches in order, each with the latest end so far and its work.
    launched: IdMap<u32, Vec<(u64, u64, Work)>>,
}

impl RecordedEvents<'_> {
    /// Returns the end of the last work before the record, and that work; `None` if the data does not tell.
    fn last_before(&mut self, record: &EventRecord) -> Option<(u64, Option<Work>)> {
        let time = self.rows.record_calls.get(&record.correlation.0)?.0;
        let Some(&stream) = self.by_context.get(&(record.context, record.stream)) else {
            return Some((time, None));
        };
        let rows = self.rows;
        let launched = self.launched.entry(stream).or_insert_with(|| {
            let mut ops: Vec<_> = rows.ops_of(stream).iter().map(|op| (op.call, op.end, op.work)).collect();
            ops.sort_unstable();
            for at in 1..ops.len() {
                if ops[at - 1].1 > ops[at].1 {
                    (ops[at].1, ops[at].2) = (ops[at - 1].1, ops[at - 1].2);
                }
            }
            ops
        });
        let before = launched.partition_point(|(call, ..)| *call < time);
        Some(match before.checked_sub(1).map(|at| launched[at]) {
            Some((_, end, work)) => (end.max(time), Some(work)),
            None => (time, None),
        })
    }
}

impl Sink for StreamRows {
    fn activity(&mut self, activity: &Activity, origin: Origin) {
        if activity.duration().is_none() {
            self.untimed += 1;
            return;
        }
        let (call, call_ns) = match origin {
            Origin::Launch(launched) => (launched.time.0, launched.duration),
            Origin::Missing(_) => (0, 0),
        };
        let stream = self.stream_number((activity.device, activity.context, activity.stream));
        let (start, end) = (activity.start.0, activity.end.0);
        self.ops.push(StreamOp { stream, call_ns, start, end, call, work: activity.work() });
        let bytes = match activity.detail {
            Detail::Copy(copy) => copy.bytes,
            Detail::Set(set) => set.bytes,
            _ => 0,
        };
        if bytes > 0 {
            self.moved.push(MovedBytes { device: activity.device, start, end, bytes });
        }
    }

    fn pending(&mut self, _: CorrelationId, _: Launched) {}

    fn outside(&mut self, activity: &Activity, launched: Launched) {
        self.activity(activity, Origin::Launch(launched));
    }

    fn host(&mut self, row: &Row<'_>) {
        match *row {
            Row::Sync(sync) => {
                self.tells_records |= sync.sync.is_some();
                if sync.kind == SyncKind::STREAM_WAIT && sync.start.0 != 0 {
                    self.waits.push(sync);
                }
            }
            Row::EventRecord(record) => self.records.push(record),
            Row::EventCall(call) if call.event_use == EventUse::Record => {
                self.record_calls.insert(call.correlation.0, call.time);
            }
            _ => {}
        }
    }
}
