//! Work, waits and event records of a run, by stream, in the form that the reconstruction of states needs.

use super::super::packed_ops::{PackedOp, PackedOps};
use super::host_activity::HostActivity;
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
    pub(super) start: u64,
    pub(super) end: u64,
    /// Start of the launch call; 0 if the launch is unknown.
    pub(super) call: u64,
    /// Duration of the launch call in ns, as [`Launched`] has it.
    pub(super) call_ns: u32,
    /// Context of the launch call.
    pub(super) context: ContextId,
    pub(super) work: Work,
}

impl From<PackedOp> for StreamOp {
    fn from(PackedOp { start, end, launched, work, .. }: PackedOp) -> Self {
        let (call, call_ns, context) = match launched {
            Some(launched) => (launched.time.0, launched.duration, launched.context),
            None => (0, 0, ContextId::NONE),
        };
        Self { start, end, call, call_ns, context, work }
    }
}

impl StreamOp {
    fn packed(&self) -> PackedOp {
        let &Self { start, end, call, call_ns: duration, context, work } = self;
        let is_launched = (call, duration, context) != (0, 0, ContextId::NONE);
        let launched = is_launched.then_some(Launched { time: Nanos(call), duration, context });
        PackedOp { start, end, launched, work, correlation: 0, place: 0 }
    }

    pub(super) fn launched(&self) -> Option<Launched> {
        let launched = Launched { time: Nanos(self.call), duration: self.call_ns, context: self.context };
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
    /// Number of the stream that ran `last_work`.
    pub(super) source: Option<u32>,
}

/// Operations of one stream.
#[derive(Debug, Default)]
struct StreamOps {
    ops: PackedOps,
    last: Option<StreamOp>,
    is_unsorted: bool,
}

impl StreamOps {
    fn push(&mut self, op: StreamOp) {
        self.is_unsorted |= self.last.is_some_and(|last| op < last);
        self.last = Some(op);
        self.ops.push(op.packed());
    }

    /// Sorts the operations by time. Most streams are sorted, because their operations run in the order of their launches.
    fn sort(&mut self) {
        if !self.is_unsorted {
            return;
        }
        let mut sorted = Vec::with_capacity(self.ops.len());
        std::mem::take(self).ops.take_all(|op| sorted.push(StreamOp::from(op)));
        sorted.sort_unstable();
        sorted.into_iter().for_each(|op| self.push(op));
    }
}

/// A [`Sink`] that stores the operations of all streams, and what makes streams wait. It takes about 10 bytes per operation.
#[derive(Debug, Default)]
pub struct StreamRows {
    /// Operations by number of the stream.
    ops: Vec<StreamOps>,
    /// Start of the first operation, and end of the last.
    pub(super) times: Option<(u64, u64)>,
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
    /// States and calls of threads; `None` if no culprits of idle time are wanted.
    pub(super) host: Option<HostActivity>,
}

impl StreamRows {
    /// Creates a sink that stores the states and calls of threads too, from which the culprits of idle time follow.
    pub fn with_culprits() -> Self {
        Self { host: Some(HostActivity::default()), ..Self::default() }
    }

    /// Returns the streams so far.
    pub fn keys(&self) -> Vec<StreamKey> {
        self.keys.clone()
    }

    fn stream_number(&mut self, key: StreamKey) -> u32 {
        // Most work runs on the same stream as the work before it.
        if self.keys.get(self.last as usize) != Some(&key) {
            self.last = *self.numbers.entry(key).or_insert_with(|| {
                self.keys.push(key);
                self.ops.push(StreamOps::default());
                self.keys.len() as u32 - 1
            });
        }
        self.last
    }

    /// Sorts each stream's operations by time. Streams are then numbered by device, context and stream.
    pub(super) fn sort(&mut self) {
        let mut streams: Vec<_> = self.keys.drain(..).zip(self.ops.drain(..)).collect();
        streams.sort_unstable_by_key(|(key, _)| *key);
        (self.keys, self.ops) = streams.into_iter().unzip();
        self.numbers = self.keys.iter().copied().zip(0..).collect();
        self.ops.iter_mut().for_each(StreamOps::sort);
    }

    /// Operations of the stream with this number.
    pub(super) fn ops_of(&self, stream: u32) -> impl Iterator<Item = StreamOp> + use<'_> {
        self.ops[stream as usize].ops.iter().map(StreamOp::from)
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
            let happened = wait.sync.and_then(|sync| events.happened(records.get(&sync)?));
            let (time, event) = (wait.start.0, wait.event);
            waits.push(match happened {
                Some(Happened { time: until, last_work, source }) => {
                    StreamWait { stream, time, event, until: Some(until), last_work, source }
                }
                None => StreamWait { stream, time, event, until: None, last_work: None, source: None },
            });
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
    /// Returns when the event happened; `None` if the data does not tell.
    fn happened(&mut self, record: &EventRecord) -> Option<Happened> {
        let time = self.rows.record_calls.get(&record.correlation.0)?.0;
        let without_work = Happened { time, last_work: None, source: None };
        let Some(&stream) = self.by_context.get(&(record.context, record.stream)) else {
            return Some(without_work);
        };
        let rows = self.rows;
        let launched = self.launched.entry(stream).or_insert_with(|| {
            let mut ops: Vec<_> = rows.ops_of(stream).map(|op| (op.call, op.end, op.work)).collect();
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
            Some((_, end, work)) => {
                Happened { time: end.max(time), last_work: Some(work), source: Some(stream) }
            }
            None => without_work,
        })
    }
}

/// The time at which a recorded event happened.
#[derive(Clone, Copy, Debug)]
struct Happened {
    time: u64,
    /// Last work before the record, and the number of its stream.
    last_work: Option<Work>,
    source: Option<u32>,
}

impl Sink for StreamRows {
    fn activity(&mut self, activity: &Activity, origin: Origin) {
        if activity.duration().is_none() {
            self.untimed += 1;
            return;
        }
        let stream = self.stream_number((activity.device, activity.context, activity.stream));
        let (start, end) = (activity.start.0, activity.end.0);
        let (first, last) = self.times.unwrap_or((start, end));
        self.times = Some((first.min(start), last.max(end)));
        self.ops[stream as usize].push(PackedOp::new(activity, origin).into());
        let bytes = match activity.detail {
            Detail::Copy(copy) => copy.bytes,
            Detail::Set(set) => set.bytes,
            _ => 0,
        };
        if bytes > 0 {
            self.moved.push(MovedBytes { device: activity.device, start, end, bytes });
        }
    }

    fn pending(&mut self, _: CorrelationId, launched: Launched) {
        self.matched(launched, false);
    }

    fn matched(&mut self, launched: Launched, _: bool) {
        if let Some(host) = &mut self.host {
            host.add_launch(launched);
        }
    }

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
            _ => {
                if let Some(host) = &mut self.host {
                    host.add_row(row);
                }
            }
        }
    }
}
