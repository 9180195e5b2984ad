//! Stores the operations, waits and event records of each stream, from which the states of the stream are
//! reconstructed.

use super::super::packed_ops::{PackedOp, PackedOps};
use super::host_activity::HostActivity;
use gpuflame_explain::join::{Launched, Origin, Sink};
use gpuflame_model::record::{
    Activity, ContextId, CorrelationId, Detail, DeviceId, EventId, EventRecord, EventUse, GpuContextId,
    IdMap, Nanos, Row, StreamId, SyncId, SyncKind, SyncRecord, Work,
};

/// Key of a stream: device, CUDA context and stream id.
pub type StreamKey = (DeviceId, GpuContextId, StreamId);

/// An operation on a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct StreamOp {
    pub(super) start: u64,
    pub(super) end: u64,
    /// Start of the launch call, or 0 if the launch is unknown.
    pub(super) call: u64,
    /// Duration of the launch call in ns, encoded as in [`Launched`].
    pub(super) call_ns: u32,
    /// Launch context (stack and API call) of the operation.
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

/// A copy or fill: its start and end, and the number of bytes that it moved.
#[derive(Clone, Copy, Debug)]
pub(super) struct MovedBytes {
    pub(super) device: DeviceId,
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) bytes: u64,
}

/// A call that made a stream wait for a CUDA event.
#[derive(Clone, Copy, Debug)]
pub(super) struct StreamWait {
    /// Index of the stream that waits.
    pub(super) stream: u32,
    /// Time of the call that made the stream wait.
    pub(super) time: u64,
    pub(super) event: Option<EventId>,
    /// Time at which the awaited CUDA event happened, or `None` if the data does not show this time.
    pub(super) until: Option<u64>,
    /// Last operation before the event record on the stream that recorded the CUDA event, if this operation is known.
    pub(super) last_work: Option<Work>,
    /// Index of the stream that ran `last_work`.
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

    /// Sorts the operations of the stream by time. On most streams, the operations are already sorted, because they run
    /// in launch order.
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

/// A [`Sink`] that stores the operations of all streams, and the reasons why streams wait. The stored data takes about
/// 10 bytes per operation.
#[derive(Debug, Default)]
pub struct StreamRows {
    /// Operations of each stream, indexed by stream.
    ops: Vec<StreamOps>,
    /// Earliest start and latest end of all operations, or `None` if there are no operations.
    pub(super) times: Option<(u64, u64)>,
    pub(super) moved: Vec<MovedBytes>,
    /// Keys of the streams, indexed by stream.
    pub(super) keys: Vec<StreamKey>,
    numbers: IdMap<StreamKey, u32>,
    last: u32,
    waits: Vec<SyncRecord>,
    records: Vec<EventRecord>,
    /// Whether any wait of a stream or of the host identifies the record of the CUDA event for which it waits.
    tells_records: bool,
    /// Times of calls that recorded CUDA events, keyed by correlation id.
    record_calls: IdMap<u32, Nanos>,
    /// Number of activities without usable times, which are not stored.
    pub(super) untimed: u64,
    /// States and calls of host threads, or `None` if the caller does not request the culprits of idle time.
    pub(super) host: Option<HostActivity>,
}

impl StreamRows {
    /// Creates a sink that also stores the states and calls of host threads. The states and calls are needed to find
    /// the culprits of idle time.
    pub fn with_culprits() -> Self {
        Self { host: Some(HostActivity::default()), ..Self::default() }
    }

    /// Returns the keys of the streams that were added so far.
    pub fn keys(&self) -> Vec<StreamKey> {
        self.keys.clone()
    }

    fn stream_number(&mut self, key: StreamKey) -> u32 {
        // Most operations run on the same stream as the previous operation.
        if self.keys.get(self.last as usize) != Some(&key) {
            self.last = *self.numbers.entry(key).or_insert_with(|| {
                self.keys.push(key);
                self.ops.push(StreamOps::default());
                self.keys.len() as u32 - 1
            });
        }
        self.last
    }

    /// Sorts each stream's operations by time. Also gives new indexes to the streams, in the order of device, CUDA
    /// context and stream.
    pub(super) fn sort(&mut self) {
        let mut streams: Vec<_> = self.keys.drain(..).zip(self.ops.drain(..)).collect();
        streams.sort_unstable_by_key(|(key, _)| *key);
        (self.keys, self.ops) = streams.into_iter().unzip();
        self.numbers = self.keys.iter().copied().zip(0..).collect();
        self.ops.iter_mut().for_each(StreamOps::sort);
    }

    /// Returns the operations of the stream with this index.
    pub(super) fn ops_of(&self, stream: u32) -> impl Iterator<Item = StreamOp> + use<'_> {
        self.ops[stream as usize].ops.iter().map(StreamOp::from)
    }

    /// Returns the calls that made streams wait for CUDA events, sorted by stream and time. Each returned wait contains
    /// the time at which the wait ended, if this time is known. A stream does not wait for a CUDA event that was never
    /// recorded. So if any wait in the data identifies an event record, all waits that identify no event record are
    /// omitted. Call `stream_waits` after `sort`.
    pub(super) fn stream_waits(&self) -> Vec<StreamWait> {
        // The device is not part of the key, because a CUDA context belongs to one device.
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

/// Finds the times at which recorded CUDA events happened. A CUDA event happens when all work has ended that was
/// launched before the event record on the same stream.
struct RecordedEvents<'a> {
    rows: &'a StreamRows,
    by_context: &'a IdMap<(GpuContextId, StreamId), u32>,
    /// Launches of each stream in order of time, as (time of the launch, latest end of all work launched up to this
    /// time, work that has this end).
    launched: IdMap<u32, Vec<(u64, u64, Work)>>,
}

impl RecordedEvents<'_> {
    /// Returns the time at which the recorded CUDA event happened, or `None` if the data does not show this time.
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

/// Time at which a recorded CUDA event happened.
#[derive(Clone, Copy, Debug)]
struct Happened {
    time: u64,
    /// Last operation that was launched before the event record. `source` is the index of the stream that ran this
    /// operation.
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
